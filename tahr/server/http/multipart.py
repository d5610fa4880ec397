"""Forms with files (multipart/form-data), read from a body that has arrived; no byte of a file is copied."""

import re
from dataclasses import dataclass

from tahr.server.http.errors import HttpError, bad_field

MOST_PARTS = 64
MOST_HEAD_BYTES = 8 * 1024  # limit on the headers of a part
MOST_VALUE_BYTES = 128 * 1024  # limit on a part that is no file
BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))', re.IGNORECASE)
# Names of fields and files in a part's headers; inside quotes, a backslash stands before a quote.
NAME = re.compile(rb';\s*name=(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.IGNORECASE)
FILE = re.compile(rb";\s*filename\*?=", re.IGNORECASE)
END = b"\r\n"
# What may stand between a boundary and the end of its line, and how much of it is taken.
PADDING = re.compile(rb"[ \t]*")
MOST_PADDING = 256


@dataclass(frozen=True, slots=True)
class FormPart:
    """A field of a form."""

    name: str
    is_file: bool
    data: memoryview

    @property
    def text(self) -> str:
        """The value of a field that is no file."""
        if self.is_file:
            raise bad_field(self.name, f"The field {self.name} is a file, but it must be a text.")
        if len(self.data) > MOST_VALUE_BYTES:
            what = f"has {len(self.data)} bytes, but a field that is no file has {MOST_VALUE_BYTES} at most"
            raise bad_field(self.name, f"{self.name} {what}: shorten it.")
        try:
            return str(self.data, "utf-8")
        except UnicodeDecodeError as error:
            raise bad_field(self.name, f"{self.name} is not UTF-8: send it so.") from error


def read_form(content_type: str, body: bytes) -> list[FormPart]:
    """The fields of a form, in order."""
    first = b"--" + boundary_of(content_type)
    mark = END + first
    begin = 0 if body.startswith(first) else body.find(mark) + len(END)
    if not body.startswith(first, begin):
        raise malformed("its boundary is not in the body")
    at = begin + len(first)
    view = memoryview(body)
    parts: list[FormPart] = []
    while body[at : at + 2] != b"--":
        if len(parts) == MOST_PARTS:
            raise malformed(f"it has more than {MOST_PARTS} fields")
        if padding := PADDING.match(body, at, at + MOST_PADDING):
            at = padding.end()
        begin = body.find(END + END, at, at + MOST_HEAD_BYTES)
        end = body.find(mark, begin + len(END)) if begin >= 0 else -1
        if body[at : at + 2] != END or begin < 0:
            raise malformed("the headers of a field are damaged, or longer than 8 KiB")
        if end < 0:
            raise malformed("it is cut off")
        parts.append(part_of(body[at:begin], view[begin + len(END + END) : end]))
        at = end + len(mark)
    return parts


def boundary_of(content_type: str) -> bytes:
    kind, _, _ = content_type.partition(";")
    found = BOUNDARY.search(content_type)
    if kind.strip().lower() != "multipart/form-data" or not found:
        raise malformed("its content-type names no boundary")
    return (found[1] or found[2]).encode("latin-1")


def part_of(head: bytes, data: memoryview) -> FormPart:
    lines = [line for line in head.split(END) if line]
    fields = {name.strip().lower(): value for name, _, value in (line.partition(b":") for line in lines)}
    disposition = fields.get(b"content-disposition", b"")
    found = NAME.search(disposition)
    if not found or not disposition.strip().lower().startswith(b"form-data"):
        raise malformed("a field has no name")
    name = re.sub(rb"\\(.)", rb"\1", found[1] if found[1] is not None else found[2]).decode("utf-8", "replace")
    coding = fields.get(b"content-transfer-encoding", b"binary").strip().lower()
    if coding not in (b"binary", b"8bit", b"7bit"):
        raise bad_field(name, f"{name} is encoded a second time: send its bytes as they are.")
    if fields.get(b"content-type", b"").strip().lower().startswith(b"multipart/"):
        raise bad_field(name, f"{name} holds a form of its own: send one file.")
    return FormPart(name, FILE.search(disposition) is not None, data)


def malformed(why: str) -> HttpError:
    return HttpError(400, f"The body is no form as this route takes it (multipart/form-data): {why}.", code="bad_form")
