"""The incremental parser of a reply: text in, deltas of text, reasoning and tool calls out.

What has been pushed never changes what came before it, and where the text is cut makes no difference. Marks never
reach the deltas. A block that turns out to be no call is dropped if it was meant as one, and text otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tahr.text.replies.deltas import Deltas
from tahr.text.replies.thinking import ThinkingMarks
from tahr.text.tool_calls.call_formats import CallFormat, HarmonyForm
from tahr.text.tool_calls.cursor import MarkSet, Reader, TextCursor, drop, head_of, mark_set
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
    """Parts of a reply beside text, and the way they are written."""

    call_format: CallFormat | None = None
    tools: Mapping[str, Tool] = field(default_factory=dict)  # callable tools; none: calls are text
    thinking: ThinkingMarks | None = None
    in_thinking: bool = False  # the prompt has opened the block
    parallel: bool = True  # several calls are allowed
    calls_only: bool = False  # a grammar allows nothing but calls and thoughts

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
        thinking = self.thinking.all if self.thinking else ()
        return (*thinking, *(self.call_format.marks if self.call_format and (self.tools or self.is_harmony) else ()))


class ReplyParser:
    """Parses one reply, as it is generated."""

    def __init__(self, reply_format: ReplyFormat):
        self._format = reply_format
        self._call_format = reply_format.call_format if reply_format.tools else None
        self._cursor = TextCursor()
        make_id = self._call_format.make_id if self._call_format else call_id
        self._buffer = DeltaBuffer(make_id, reply_format.parallel, not reply_format.calls_only)
        self._in_thinking = reply_format.in_thinking
        self._harmony: HarmonyReader | None = None
        if reply_format.is_harmony:
            self._harmony = HarmonyReader(self._cursor, self._buffer, calls=bool(reply_format.tools))
        self._closes = mark_set(*(self._call_format.closes if self._call_format else ()))
        self._ends = mark_set(*(self._call_format.edges if self._call_format else ()))
        self._run = self._harmony.reply() if self._harmony else self._reply()

    @property
    def in_reasoning(self) -> bool:
        return self._harmony.in_reasoning if self._harmony else self._in_thinking

    @property
    def stopped(self) -> bool:
        """Whether all that may be said has been said."""
        return self._buffer.stopped

    def push(self, text: str) -> Deltas:
        """The deltas that this text completes."""
        self._cursor.feed(text)
        next(self._run, None)
        return self._buffer.take()

    def flush(self) -> Deltas:
        """Release text that was held back, now that no more text comes."""
        self._cursor.end()
        self._buffer.is_ending = True
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
            if self._format.thinking and mark in self._format.thinking.opens:
                buffer.begin_reasoning()
                yield from self._thought()
                if self._call_format and self._call_format.bare:
                    yield from self._bare()
            elif self._call_format and mark in self._call_format.opens:
                yield from self._section(self._call_format)
            elif self._format.thinking and mark == self._format.thinking.close:
                buffer.end_reasoning()
            elif self._format.thinking and mark in self._format.thinking.answer:
                buffer.begin_text()
            elif self._format.thinking and mark in self._format.thinking.cites[-1:]:
                yield from self._sources()

    def _openers(self) -> MarkSet:
        """Marks that begin something in text, and those that are dropped there."""
        thinking = self._format.thinking
        return mark_set(*(thinking.all if thinking else ()), *self._ends.marks)

    def _thought(self) -> Reader[None]:
        """A block of thinking, up to its end. Calls in it are calls only if it never ends: else they are thoughts."""
        thinking = self._format.thinking
        call_format = self._call_format
        buffer = self._buffer
        assert thinking
        self._in_thinking = True
        is_open = False  # until the end of the reply
        marks = mark_set(thinking.close, *thinking.opens, *thinking.cites, *self._ends.marks)
        while (mark := (yield from self._cursor.until(marks, buffer.reasoning))) and mark != thinking.close:
            if mark in thinking.cites[-1:]:
                yield from self._sources()
            if not call_format or mark not in call_format.opens or buffer.stopped:
                continue
            is_open = is_open or (yield from self._is_open())
            if not is_open:
                break
            yield from self._section(call_format)
        self._in_thinking = False
        buffer.end_reasoning()

    def _sources(self) -> Reader[None]:
        """The sources of a citation."""
        mark, head = yield from head_of(self._cursor, ">")
        if not mark and (yield from self._cursor.peek()):
            self._cursor.unread(head)

    def _is_open(self) -> Reader[bool]:
        """Whether a block of thinking never ends. If it does, its rest is read, and the marks in it are dropped."""
        thinking = self._format.thinking
        assert thinking
        rest: list[str] = []
        mark = yield from self._cursor.until(mark_set(thinking.close), rest.append)
        text = "".join(rest)
        if mark:
            self._buffer.reasoning(mark_set(*thinking.opens, *self._ends.marks).pattern.sub("", text))
        else:
            self._cursor.unread(text)
        return not mark

    def _bare(self) -> Reader[None]:
        """Calls without marks, if the text that follows begins with one."""
        first = yield from space(self._cursor, self._buffer.text)
        if self._call_format and isinstance(self._call_format.form, PythonForm):
            if first == "[":
                yield from PythonReader(self._cursor, self._buffer, self._format.tools, self._ends).bare()
        elif first and first in "{[":
            yield from JsonReader(self._cursor, self._buffer, JsonForm(), self._format.tools, self._ends).bare()

    def _section(self, call_format: CallFormat) -> Reader[None]:
        """Read the section behind an opening mark of the call format."""
        cursor = self._cursor
        buffer = self._buffer
        form = call_format.form
        tools = self._format.tools
        if isinstance(form, JsonForm):
            first = yield from space(cursor, drop)
            if form.takes_code and first and first not in "{[":
                return (
                    yield from PythonReader(cursor, buffer, tools, self._ends, takes_code=True).section(self._closes)
                )
            return (yield from JsonReader(cursor, buffer, form, tools, self._ends).section())
        if isinstance(form, NamedForm):
            return (yield from NamedReader(cursor, buffer, form, self._ends).section())
        if isinstance(form, TaggedForm):
            return (yield from TaggedReader(cursor, buffer, form, tools, self._ends).section())
        if isinstance(form, GemmaForm):
            return (yield from GemmaReader(cursor, buffer, form).section(self._ends))
        assert isinstance(form, PythonForm)
        return (yield from PythonReader(cursor, buffer, tools, self._ends).section(self._closes))


def parsed(reply_format: ReplyFormat, text: str) -> Deltas:
    """A whole reply at once."""
    parser = ReplyParser(reply_format)
    return parser.push(text) + parser.flush()
