"""Frames: bytes of a client become messages within bounds, and messages become bytes."""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple


class Opcode(IntEnum):
    """The opcodes."""

    MORE = 0  # a further part of the message before
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class Close(IntEnum):
    """Why a connection is closed."""

    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED = 1003
    NOT_UTF8 = 1007
    POLICY = 1008
    TOO_LARGE = 1009
    TRY_LATER = 1013


NO_STATUS = 1005  # a client closes without a reason
LAST, MASKED = 0x80, 0x80
MAX_SHORT = 125  # longest content whose length stands in the second byte, and of frames that are no messages
LONG = {126: 2, 127: 8}  # bytes of the length that follows
MASK_BYTES = 4


class FrameError(Exception):
    """A client has broken the protocol or a bound."""

    def __init__(self, code: Close, message: str):
        super().__init__(message)
        self.code = code


class Incoming(NamedTuple):
    """A whole text, or a frame that is none: its kind says which."""

    kind: Opcode
    data: bytes


class Head(NamedTuple):
    """The beginning of a frame, up to its content."""

    kind: Opcode
    is_last: bool
    n_head: int
    n_content: int


def frame(kind: Opcode, data: bytes) -> bytes:
    """A frame of a server: whole, and without a mask."""
    n = len(data)
    if n <= MAX_SHORT:
        return bytes((LAST | kind, n)) + data
    code = 126 if n < 1 << 16 else 127
    return bytes((LAST | kind, code)) + n.to_bytes(LONG[code], "big") + data


def closing(code: int, reason: str = "") -> bytes:
    """The last frame; the reason is cut to what fits."""
    told = b"" if code == NO_STATUS else code.to_bytes(2, "big") + reason.encode()[: MAX_SHORT - 2]
    return frame(Opcode.CLOSE, told)


class FrameReader:
    """Messages of the bytes of one client, which may come in pieces of any size."""

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._text = bytearray()  # parts of the message so far
        self._is_inside = False  # more parts of a message are to come

    @property
    def n_bytes(self) -> int:
        """Memory of what is not whole yet."""
        return len(self._buffer) + len(self._text)

    @property
    def is_inside(self) -> bool:
        """Whether a part of a message is here."""
        return self._is_inside or bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[Incoming]:
        """All that is whole with these bytes."""
        self._buffer += data
        while (head := self._head()) and len(self._buffer) >= head.n_head + head.n_content:
            content = self._content(head)
            if head.kind >= Opcode.CLOSE:
                yield Incoming(head.kind, content)
            elif (text := self._joined(head, content)) is not None:
                yield Incoming(Opcode.TEXT, text)

    def _head(self) -> Head | None:
        """The head of the next frame, once it is here; a frame that is too long is refused before it comes."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        kind = kind_of(buffer[0], buffer[1])
        n_content = buffer[1] & ~MASKED
        n_head = 2 + LONG.get(n_content, 0)
        if len(buffer) < n_head:
            return None
        if n_content in LONG:
            n_content = long_length(n_content, bytes(buffer[2:n_head]))
        self._check(kind, bool(buffer[0] & LAST), n_content)
        return Head(kind, bool(buffer[0] & LAST), n_head + MASK_BYTES, n_content)

    def _check(self, kind: Opcode, is_last: bool, n_content: int) -> None:
        if kind >= Opcode.CLOSE:
            if n_content > MAX_SHORT or not is_last:
                raise FrameError(Close.PROTOCOL_ERROR, "A control frame is short and whole.")
            return
        if (kind is Opcode.MORE) != self._is_inside:
            raise FrameError(Close.PROTOCOL_ERROR, "Parts of a message follow each other.")
        if kind is Opcode.BINARY:
            raise FrameError(Close.UNSUPPORTED, "Messages are texts of JSON.")
        if len(self._text) + n_content > self._max_bytes:
            raise FrameError(Close.TOO_LARGE, f"A message has at most {self._max_bytes} bytes: send less.")

    def _content(self, head: Head) -> bytes:
        end = head.n_head + head.n_content
        mask = bytes(self._buffer[head.n_head - MASK_BYTES : head.n_head])
        content = unmasked(bytes(self._buffer[head.n_head : end]), mask)
        del self._buffer[:end]
        return content

    def _joined(self, head: Head, content: bytes) -> bytes | None:
        """The text, if this was its last part."""
        self._text += content
        self._is_inside = not head.is_last
        if self._is_inside:
            return None
        text = bytes(self._text)
        self._text.clear()
        if not is_utf8(text):
            raise FrameError(Close.NOT_UTF8, "A text is not UTF-8.")
        return text


def kind_of(first: int, second: int) -> Opcode:
    """The kind of a frame, which has no bits of extensions and is masked."""
    if not second & MASKED:
        raise FrameError(Close.PROTOCOL_ERROR, "A client masks its frames.")
    try:
        return Opcode(first & ~LAST)
    except ValueError:
        raise FrameError(Close.PROTOCOL_ERROR, "There is no such kind of frame.") from None


def long_length(code: int, sent: bytes) -> int:
    """A length that stands behind the second byte, which is refused where it would have been shorter."""
    length = int.from_bytes(sent, "big")
    shortest = MAX_SHORT + 1 if code == 126 else 1 << 16
    if not shortest <= length < 1 << 63:
        raise FrameError(Close.PROTOCOL_ERROR, "The length of a frame is written in as few bytes as it takes.")
    return length


def unmasked(content: bytes, mask: bytes) -> bytes:
    """The bytes that a client has masked, all at once: one number exclusive-or another."""
    n = len(content)
    repeated = (mask * (n // MASK_BYTES + 1))[:n]
    return (int.from_bytes(content, "little") ^ int.from_bytes(repeated, "little")).to_bytes(n, "little")


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
