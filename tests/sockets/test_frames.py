"""Frames of RFC 6455, in pieces of any size."""

import json
import random

import pytest

from socket_client import masked
from tahr.server.websocket.frames import Close, FrameError, FrameReader, Incoming, Opcode, closing, frame

LIMIT = 1 << 17


def read(data: bytes, sizes: int = 1 << 20) -> list[Incoming]:
    reader = FrameReader(LIMIT)
    made = [each for at in range(0, len(data), sizes) for each in reader.feed(data[at : at + sizes])]
    assert not reader.is_inside and not reader.n_bytes
    return made


@pytest.mark.parametrize("n", [0, 1, 125, 126, 127, 65535, 65536, LIMIT])
def test_lengths_of_all_forms(n: int) -> None:
    text = ("naïve " * (n // 6 + 1)).encode()[:n].decode(errors="ignore").ljust(0).encode()
    assert read(masked(Opcode.TEXT, text)) == [(Opcode.TEXT, text)]
    head = frame(Opcode.TEXT, b"x" * n)
    assert head.endswith(b"x" * n) and len(head) - n == (2 if n < 126 else 4 if n < 65536 else 10)


@pytest.mark.parametrize("sizes", [1, 2, 3, 7, 1000])
def test_parts_of_messages_with_others_between_them(sizes: int) -> None:
    text = json.dumps({"a": "naïve “quotes” 🐐" * 20}, ensure_ascii=False).encode()
    random.seed(sizes)
    cuts = sorted(random.sample(range(len(text)), 5))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    sent = b""
    for i, part in enumerate(parts):
        sent += masked(Opcode.MORE if i else Opcode.TEXT, part, is_last=i == len(parts) - 1) + masked(
            Opcode.PING, b"%d" % i
        )
    made = read(sent, sizes)
    assert [each.data for each in made if each.kind is Opcode.TEXT] == [text]
    assert [each.data for each in made if each.kind is Opcode.PING] == [b"%d" % i for i in range(len(parts))]


WRONG = {
    "no mask": (frame(Opcode.TEXT, b"{}"), Close.PROTOCOL_ERROR),
    "a bit of an extension": (b"\xc1" + masked(Opcode.TEXT, b"{}")[1:], Close.PROTOCOL_ERROR),
    "no such kind": (masked(3, b"{}"), Close.PROTOCOL_ERROR),
    "a long ping": (masked(Opcode.PING, b"x" * 126), Close.PROTOCOL_ERROR),
    "a ping in parts": (masked(Opcode.PING, b"x", is_last=False), Close.PROTOCOL_ERROR),
    "a part of nothing": (masked(Opcode.MORE, b"x"), Close.PROTOCOL_ERROR),
    "a message inside another": (
        masked(Opcode.TEXT, b"x", is_last=False) + masked(Opcode.TEXT, b"x"),
        Close.PROTOCOL_ERROR,
    ),
    "a length in too many bytes": (b"\x81\xfe\x00\x05" + bytes(9), Close.PROTOCOL_ERROR),
    "a negative length": (b"\x81\xff\xff" + bytes(7), Close.PROTOCOL_ERROR),
    "binary": (masked(Opcode.BINARY, b"x"), Close.UNSUPPORTED),
    "half a character": (masked(Opcode.TEXT, b"\xe2\x80"), Close.NOT_UTF8),
    "a character cut by a part": (
        masked(Opcode.TEXT, b"\xe2", is_last=False) + masked(Opcode.MORE, b"x"),
        Close.NOT_UTF8,
    ),
    "too large": (b"\x81\xff" + (LIMIT + 1).to_bytes(8, "big"), Close.TOO_LARGE),  # before any of it has come
    "too large in parts": (
        masked(Opcode.TEXT, bytes(LIMIT), is_last=False) + b"\x00\x81" + bytes(5),
        Close.TOO_LARGE,
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("sizes", [1 << 20, 1])
def test_what_breaks_the_protocol_is_refused(name: str, sizes: int) -> None:
    data, code = WRONG[name]
    if sizes == 1 and len(data) > 1000:
        sizes = 500
    reader = FrameReader(LIMIT)
    with pytest.raises(FrameError) as refused:
        for at in range(0, len(data), sizes):
            list(reader.feed(data[at : at + sizes]))
    assert refused.value.code is code


def test_garbage_never_does_more_than_be_refused() -> None:
    source = random.Random(5)
    for _ in range(2000):
        reader = FrameReader(1000)
        try:
            for _ in range(4):
                list(reader.feed(source.randbytes(source.randrange(60))))
                assert reader.n_bytes <= 2000
        except FrameError as error:
            assert str(error).endswith((".", "less.")) and error.code in Close


def test_the_reason_of_a_close_fits() -> None:
    assert len(closing(Close.POLICY, "x" * 500)) == 2 + 125
    assert closing(1005) == b"\x88\x00"
