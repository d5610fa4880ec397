"""Lines of a file of requests, and what is wrong with one."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Annotated, BinaryIO, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from tahr.errors import ConfigError
from tahr.server.bodies.decoding import MALFORMED

MAX_LINES = 1_000_000
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
PIECE_BYTES = 1 << 20  # longest piece of a line that is too long
BOM = b"\xef\xbb\xbf"  # some editors begin files with it
ENVELOPE_BYTES = 1 << 16  # limit on a line beside its body


class InputLine(NamedTuple):
    """A line that is not empty."""

    number: int  # number in the file, from 1
    digest: int  # digest of its bytes; never 0
    data: bytes | None  # None: the line is too long


class LineError(Exception):
    """A line that is no request."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class BatchRequest(Struct, forbid_unknown_fields=True):
    """A request of a batch."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: str
    url: str
    body: Raw


class Named(Struct):
    """The name of a line, whatever else is wrong with it."""

    custom_id: Annotated[str, Meta(max_length=512)]


class Streamed(Struct):
    """The field of a body that no batch can honour."""

    stream: bool | None = None


def read_lines(file: BinaryIO, most_bytes: int) -> Iterator[InputLine]:
    """All lines; of one that is longer than `most_bytes` never more than a piece is in memory."""
    file.seek(0)
    number = 0
    while data := file.readline(most_bytes + 1):
        number += 1
        if number > MAX_LINES:
            raise ConfigError(f"The file has more than {MAX_LINES:,} lines: split it.")
        digest = blake2b(data, digest_size=8)
        is_whole = len(data) <= most_bytes
        rest = data
        while not is_whole and rest and not rest.endswith(b"\n"):
            rest = file.readline(PIECE_BYTES)
            digest.update(rest)
        if number == 1:
            data = data.removeprefix(BOM)
        if data.strip():
            yield InputLine(number, int.from_bytes(digest.digest()) or 1, data if is_whole else None)


def parse(data: bytes | None, most_bytes: int) -> BatchRequest:
    """The request of a line, whose body is left to its route."""
    if data is None:
        raise LineError("line_too_long", f"The line has more than {most_bytes} bytes: send less.")
    try:
        request = msgspec.json.decode(data, type=BatchRequest)
    except MALFORMED as error:
        form = '{"custom_id": "...", "method": "POST", "url": "/v1/chat/completions", "body": {...}}'
        raise LineError("invalid_line", f"The line is not a request ({error}): write {form}.") from None
    if request.method != "POST":
        raise LineError("invalid_method", f"A batch sends POST, not {request.method[:16]!r}.")
    if request.url not in ENDPOINTS:
        message = f"A batch has no endpoint {request.url[:256]!r}: there is {', '.join(ENDPOINTS)}."
        raise LineError("invalid_url", message)
    if is_streamed(request.body):
        raise LineError("stream_unsupported", "A batch has whole replies: leave out stream, or say false.")
    return request


def is_streamed(body: Raw) -> bool:
    try:
        return bool(msgspec.json.decode(body, type=Streamed).stream)
    except MALFORMED:  # its route says what is wrong
        return False


def custom_id_of(data: bytes | None) -> str | None:
    """The name of a request, if its line has got as far as that."""
    try:
        return msgspec.json.decode(data or b"", type=Named).custom_id
    except MALFORMED:
        return None
