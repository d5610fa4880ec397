"""Calls written as a name, a mark, and the arguments as JSON: `[TOOL_CALLS]name[ARGS]{...}` and its like."""

import re
from dataclasses import dataclass

from tahr.text.tool_calls.cursor import MarkSet, Reader, TextCursor, drop, head_of
from tahr.text.tool_calls.delta_buffer import DeltaBuffer
from tahr.text.tool_calls.json_text import container, space
from tahr.text.tool_calls.tools import NAME

AFTER = re.compile(r"[^\s`]")  # end of the fence some models put around the arguments


@dataclass(frozen=True, slots=True)
class NamedForm:
    """End of a call's head, and the places of its name and id."""

    head_ends: tuple[str, ...]
    head: re.Pattern[str]  # its groups are `name` and, where calls carry one, `id`


@dataclass(frozen=True, slots=True)
class NamedReader:
    """Reads one call after its opening mark."""

    cursor: TextCursor
    buffer: DeltaBuffer
    form: NamedForm
    ends: MarkSet  # marks that also end a call that is broken

    def section(self) -> Reader[None]:
        """A head and an object. A head that names nothing is put back."""
        if not (yield from self._head()):
            return
        if (yield from space(self.cursor, drop)) == "{":
            yield from container(self.cursor, self.buffer.arguments, self.ends)
        elif (yield from self.cursor.peek()):
            self.buffer.arguments("{}")
        yield from self.cursor.before(AFTER, drop)
        self.buffer.end_call()

    def _head(self) -> Reader[bool]:
        mark, head = yield from head_of(self.cursor, *self.form.head_ends)
        found = self.form.head.fullmatch(head.strip()) if mark else None
        if not found or not NAME.fullmatch(found["name"]):
            if mark or (yield from self.cursor.peek()):
                self.cursor.unread(head + mark)
            return False
        self.buffer.begin_call(found["name"], found.groupdict().get("id") or "")
        return True
