"""The incremental parser of a reply: text in, deltas of text, reasoning and tool calls out.

What has been pushed never changes what came before it, and where the text is cut makes no difference. Marks never
reach the deltas. A block that turns out to be no call is dropped if it was meant as one, and text otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tahr.text.replies.deltas import Deltas
from tahr.text.replies.thinking import ThinkingMarks
from tahr.text.tool_calls.call_formats import CallFormat, HarmonyForm
from tahr.text.tool_calls.cursor import MarkSet, Reader, TextCursor, drop, mark_set
from tahr.text.tool_calls.delta_buffer import DeltaBuffer, call_id
from tahr.text.tool_calls.harmony import HarmonyReader
from tahr.text.tool_calls.json_calls import JsonForm, JsonReader
from tahr.text.tool_calls.json_text import space
from tahr.text.tool_calls.literal_calls import GemmaForm, GemmaReader, PythonForm, PythonReader
from tahr.text.tool_calls.named_calls import NamedForm, NamedReader
from tahr.text.tool_calls.tagged_calls import TaggedForm, TaggedReader
from tahr.text.tool_calls.tools import Tool


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """What a reply may hold beside text, and how it is written."""

    call_format: CallFormat | None = None
    tools: Mapping[str, Tool] = field(default_factory=dict)  # those that may be called; none: calls are text
    thinking: ThinkingMarks | None = None
    in_thinking: bool = False  # the prompt has opened the block
    parallel: bool = True  # more than one call may be made

    @property
    def is_plain(self) -> bool:
        """Whether all of a reply is text."""
        return not (self.thinking or self.tools or self.is_harmony)

    @property
    def is_harmony(self) -> bool:
        return self.call_format is not None and isinstance(self.call_format.form, HarmonyForm)

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that steer the parser, also where they are special tokens."""
        thinking = (self.thinking.open, self.thinking.close, *self.thinking.answer) if self.thinking else ()
        return (*thinking, *(self.call_format.marks if self.call_format and (self.tools or self.is_harmony) else ()))


class ReplyParser:
    """Parses one reply, as it is generated."""

    def __init__(self, reply_format: ReplyFormat):
        self._format = reply_format
        self._call_format = reply_format.call_format if reply_format.tools else None
        self._cursor = TextCursor()
        self._buffer = DeltaBuffer(self._call_format.make_id if self._call_format else call_id, reply_format.parallel)
        self._in_thinking = reply_format.in_thinking
        self._harmony: HarmonyReader | None = None
        if reply_format.is_harmony:
            self._harmony = HarmonyReader(self._cursor, self._buffer, calls=bool(reply_format.tools))
        self._closes = mark_set(*(self._call_format.closes if self._call_format else ()))
        self._run = self._harmony.reply() if self._harmony else self._reply()

    @property
    def in_reasoning(self) -> bool:
        return self._harmony.in_reasoning if self._harmony else self._in_thinking

    @property
    def stopped(self) -> bool:
        """Whether all that may be said has been said."""
        return self._buffer.stopped

    def push(self, text: str) -> Deltas:
        """What this text completes."""
        self._cursor.feed(text)
        next(self._run, None)
        return self._buffer.take()

    def flush(self) -> Deltas:
        """What was held back, now that no more text comes."""
        self._cursor.end()
        next(self._run, None)
        self._buffer.end()
        return self._buffer.take()

    def _reply(self) -> Reader[None]:
        buffer = self._buffer
        cursor = self._cursor
        if self._in_thinking:
            buffer.begin_reasoning()
            yield from self._thought()
        if self._call_format and self._call_format.bare:
            yield from self._bare()
        openers = self._openers()
        while not buffer.stopped and (mark := (yield from cursor.until(openers, buffer.text))):
            if self._format.thinking and mark == self._format.thinking.open:
                buffer.begin_reasoning()
                yield from self._thought()
                if self._call_format and self._call_format.bare:
                    yield from self._bare()
            elif self._call_format and mark in self._call_format.opens:
                yield from self._section(self._call_format)
            elif self._format.thinking and mark == self._format.thinking.close:
                buffer.end_reasoning()

    def _openers(self) -> MarkSet:
        """Marks that begin something in text, and those that are dropped there."""
        thinking = self._format.thinking
        call_format = self._call_format
        marks = (thinking.open, thinking.close, *thinking.answer) if thinking else ()
        return mark_set(
            *marks, *((*call_format.opens, *call_format.around, *call_format.closes) if call_format else ())
        )

    def _thought(self) -> Reader[None]:
        """A block of thinking, up to its end. Calls inside it are calls."""
        thinking = self._format.thinking
        call_format = self._call_format
        buffer = self._buffer
        assert thinking
        self._in_thinking = True
        dropped = (thinking.open, *((*call_format.around, *call_format.closes) if call_format else ()))
        marks = mark_set(thinking.close, *dropped, *(call_format.opens if call_format else ()))
        while (mark := (yield from self._cursor.until(marks, buffer.reasoning))) and mark != thinking.close:
            if call_format and mark in call_format.opens and not buffer.stopped:
                yield from self._section(call_format)
        self._in_thinking = False
        buffer.end_reasoning()

    def _bare(self) -> Reader[None]:
        """Calls without marks, if the text that follows begins with one."""
        first = yield from space(self._cursor, self._buffer.text)
        if first and first in "{[":
            yield from JsonReader(self._cursor, self._buffer, JsonForm(), self._format.tools).bare()

    def _section(self, call_format: CallFormat) -> Reader[None]:
        """What follows an opening mark of the call format."""
        cursor = self._cursor
        buffer = self._buffer
        form = call_format.form
        tools = self._format.tools
        if isinstance(form, JsonForm):
            first = yield from space(cursor, drop)
            if call_format.bare and first and first not in "{[":
                return (yield from PythonReader(cursor, buffer, tools, takes_code=True).section(self._closes))
            return (yield from JsonReader(cursor, buffer, form, tools).section())
        if isinstance(form, NamedForm):
            return (yield from NamedReader(cursor, buffer, form).section())
        if isinstance(form, TaggedForm):
            return (yield from TaggedReader(cursor, buffer, form, tools).section())
        if isinstance(form, GemmaForm):
            return (yield from GemmaReader(cursor, buffer).section(self._closes))
        assert isinstance(form, PythonForm)
        return (yield from PythonReader(cursor, buffer, tools).section(self._closes))


def parsed(reply_format: ReplyFormat, text: str) -> Deltas:
    """A whole reply at once."""
    parser = ReplyParser(reply_format)
    return parser.push(text) + parser.flush()
