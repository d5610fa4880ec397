"""Faults of a file of requests, found before any of them is answered."""

import os
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from tahr.errors import ConfigError
from tahr.regular_file import open_regular
from tahr.server.batches.lines import InputLine, LineError, custom_id_of, parse, read_lines
from tahr.server.http.errors import HttpError, shortened
from tahr.server.kept.batch_store import BatchError

MOST_LINES = 50_000
MOST_ERRORS = 100  # errors that are shown; more are not looked for
MOST_MODELS = 64  # different names of models in a file
MESSAGE_CHARS = 400

CheckModel = Callable[[str | None], None]  # raises an HttpError where there is no such model


class NamesModel(Struct):
    """The model of a body."""

    model: str | None = None


class Validation:
    """Reads a file once. Errors end up in `errors`, the number of its requests in `n_lines`."""

    def __init__(self, endpoint: str, most_bytes: int, check_model: CheckModel):
        self.errors: list[BatchError] = []
        self.n_lines = 0
        self._endpoint = endpoint
        self._most_bytes = most_bytes
        self._check_model = check_model
        self._names: set[int] = set()  # digests of all names so far
        self._models: set[str | None] = set()  # names of models that are there

    def read(self, path: Path) -> None:
        """Look at all lines, or until there are errors enough."""
        with os.fdopen(open_regular(path), "rb") as file:
            self._read_lines(read_lines(file, self._most_bytes))

    def _read_lines(self, lines: Iterator[InputLine]) -> None:
        for line in lines:
            self.n_lines += 1
            if self.n_lines > MOST_LINES:
                message = f"The file has more than {MOST_LINES:,} requests: make several batches."
                self.errors.append(BatchError("too_many_requests", message))
            try:
                self._check(line)
            except (LineError, HttpError) as error:
                self._add(line, error)
            if self.n_lines > MOST_LINES or len(self.errors) >= MOST_ERRORS:
                return
        if not self.n_lines:
            self.errors.append(BatchError("empty_file", "The file has no request: write one a line."))

    def _add(self, line: InputLine, error: LineError | HttpError) -> None:
        param = error.param if isinstance(error, HttpError) else None
        name = custom_id_of(line.data)
        of = f" (custom_id {name[:80]!r})" if name else ""
        message = shortened(str(error), MESSAGE_CHARS) + of
        self.errors.append(BatchError(error.code or "invalid_line", message, line.number, param))

    def _check(self, line: InputLine) -> None:
        request = parse(line.data, self._most_bytes)
        if request.url != self._endpoint:
            message = f"The url is {request.url}, but the endpoint of the batch is {self._endpoint}: make two batches."
            raise LineError("mismatched_url", message)
        name = int.from_bytes(blake2b(request.custom_id.encode(), digest_size=8).digest())
        if name in self._names:
            raise LineError("duplicate_custom_id", "An earlier line has this custom_id, too: give each its own.")
        self._names.add(name)
        self._check_names(request.body)

    def _check_names(self, body: Raw) -> None:
        try:
            model = msgspec.json.decode(body, type=NamesModel).model
        except (msgspec.DecodeError, RecursionError):
            raise LineError("invalid_body", "The body is no object with a model's name: write one.") from None
        if model in self._models:
            return
        if len(self._models) == MOST_MODELS:
            raise LineError("too_many_models", f"The file names more than {MOST_MODELS} models: make several batches.")
        self._check_model(model)
        self._models.add(model)


def validated(path: Path, endpoint: str, most_bytes: int, check_model: CheckModel) -> Validation:
    """A file of requests, read and checked."""
    made = Validation(endpoint, most_bytes, check_model)
    try:
        made.read(path)
    except ConfigError as error:
        made.errors.append(BatchError("too_many_requests", str(error)))
    return made
