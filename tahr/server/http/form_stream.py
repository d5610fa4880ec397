"""Forms with one file (multipart/form-data), read while they come: the file goes on as it comes, the rest is short."""

import re
from collections.abc import Callable

from tahr.server.http.errors import bad_field
from tahr.server.http.multipart import END, MOST_HEAD_BYTES, MOST_PADDING, PADDING, boundary_of, malformed, part_of

MOST_FIELDS = 16
MOST_VALUE_BYTES = 4096  # limit on a field that is no file
FILENAME = re.compile(rb';\s*filename="((?:[^"\\]|\\.)*)"', re.IGNORECASE)

Sink = Callable[[bytes], None]


class FormStream:
    """A form on its way. `fields` has what has come so far of all fields but the file, whose bytes go to `sink`."""

    def __init__(self, content_type: str, file_field: str, sink: Sink):
        self.fields: dict[str, str] = {}
        self.filename: str | None = None  # name of the file, once it comes
        self.is_whole = False
        self._file_field = file_field
        self._sink = sink
        self._mark = END + b"--" + boundary_of(content_type)
        self._held = bytearray(END)  # bytes that are not used yet; the first boundary may be what a body begins with
        self._step = self._skip
        self._name = ""
        self._value = bytearray()

    def feed(self, data: bytes) -> None:
        """The next bytes of the body."""
        self._held += data
        while not self.is_whole and self._step():
            pass
        if self.is_whole:
            self._held.clear()

    def finish(self) -> None:
        """The body has ended."""
        if not self.is_whole:
            raise malformed("it is cut off")

    # ---- steps: each uses held bytes, and returns whether another one may do so, too ----------------------------

    def _skip(self) -> bool:
        """Bytes before the first boundary mean nothing."""
        return self._up_to_mark(lambda _: None)

    def _begin(self) -> bool:
        """The headers of a field, or the end."""
        if len(self._held) >= 2 and self._held[:2] == b"--":
            self.is_whole = True
            return False
        end = self._held.find(END + END)
        if end < 0 or end > MOST_HEAD_BYTES:
            if len(self._held) > MOST_HEAD_BYTES:
                raise malformed("the headers of a field are damaged, or longer than 8 KiB")
            return False
        head = bytes(self._held[:end])
        padding = PADDING.match(head, 0, MOST_PADDING)
        head = head[padding.end() :] if padding else head
        if head[:2] != END:
            raise malformed("the headers of a field are damaged, or longer than 8 KiB")
        del self._held[: end + len(END)]  # an empty field ends with the line end that follows
        self._begin_field(head)
        return True

    def _begin_field(self, head: bytes) -> None:
        part = part_of(head, memoryview(b""))
        if part.name in self.fields or (part.name == self._file_field and self.filename is not None):
            raise bad_field(part.name[:60], f"{part.name[:60]} is there twice: send it once.")
        if len(self.fields) == MOST_FIELDS:
            raise malformed(f"it has more than {MOST_FIELDS} fields")
        if part.is_file != (part.name == self._file_field):
            what = "a text, but it must be a file" if not part.is_file else "a file, but it must be a text"
            raise bad_field(part.name[:60], f"The field {part.name[:60]} is {what}.")
        self._name = part.name
        self._step = self._skip_line_end
        if part.is_file:
            found = FILENAME.search(head)
            self.filename = re.sub(rb"\\(.)", rb"\1", found[1]).decode("utf-8", "replace") if found else ""

    def _skip_line_end(self) -> bool:
        """The line end after the headers, which an empty field's boundary begins with."""
        if len(self._held) < len(self._mark):
            return False
        if not self._held.startswith(self._mark):
            del self._held[: len(END)]
        self._step = self._read_file if self._name == self._file_field else self._read_value
        return True

    def _read_file(self) -> bool:
        return self._up_to_mark(self._sink)

    def _read_value(self) -> bool:
        if not self._up_to_mark(self._add):
            return False
        try:
            self.fields[self._name] = self._value.decode()
        except UnicodeDecodeError as error:
            raise bad_field(self._name, f"{self._name[:60]} is not UTF-8: send it so.") from error
        self._value.clear()
        return True

    def _add(self, data: bytes) -> None:
        self._value += data
        if len(self._value) > MOST_VALUE_BYTES:
            raise bad_field(self._name, f"{self._name[:60]} has more than {MOST_VALUE_BYTES} bytes: shorten it.")

    def _up_to_mark(self, use: Sink) -> bool:
        """Use all bytes before the next boundary that are there; whether it is there."""
        at = self._held.find(self._mark)
        end = at if at >= 0 else max(0, len(self._held) - len(self._mark) + 1)
        if end:
            use(bytes(self._held[:end]))
        del self._held[: end + len(self._mark) if at >= 0 else end]
        if at >= 0:
            self._step = self._begin
        return at >= 0
