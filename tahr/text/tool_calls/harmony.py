"""GPT-OSS's replies: messages with a channel each. Analysis is reasoning, a recipient is a call, the rest is text."""

import re
from dataclasses import dataclass

from tahr.text.tool_calls.cursor import Reader, Sink, TextCursor, head_of, mark_set
from tahr.text.tool_calls.delta_buffer import DeltaBuffer
from tahr.text.tool_calls.tools import NAME

BODY = "<|message|>"
CHANNEL = "<|channel|>"
START = "<|start|>"
ENDS = mark_set("<|end|>", "<|return|>", "<|call|>", START)
TO_FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"  # ends the thinking and begins the text
RECIPIENT = re.compile(r"to=(?:functions\.)?([A-Za-z0-9_.:/-]+)")
MARKS = (BODY, CHANNEL, START, "<|constrain|>", "<|end|>", "<|return|>", "<|call|>")


@dataclass(slots=True)
class HarmonyReader:
    """Reads a whole reply."""

    cursor: TextCursor
    buffer: DeltaBuffer
    calls: bool  # whether calls are wanted; else they are text
    in_reasoning: bool = False

    def reply(self) -> Reader[None]:
        """Messages up to the end. A reply without any mark is text."""
        while not self.buffer.stopped and (yield from self.cursor.peek()):
            mark, head = yield from head_of(self.cursor, BODY)
            if mark:
                yield from self._body(head)
            elif not is_cut(head):
                self.buffer.text(head)
                yield from self.cursor.until(ENDS, self.buffer.text)

    def _body(self, head: str) -> Reader[None]:
        recipient = RECIPIENT.search(head)
        name = recipient[1].strip(".") if recipient and self.calls else ""
        if name and NAME.fullmatch(name):
            yield from self._call(name)
        elif recipient or "analysis" in head:  # the call of a tool that nobody has offered is a thought
            self.in_reasoning = True
            self.buffer.begin_reasoning()
            yield from self._until_end(self.buffer.reasoning)
            self.buffer.end_reasoning()
            self.in_reasoning = False
        else:
            self.buffer.begin_text()
            yield from self._until_end(self.buffer.text)

    def _call(self, name: str) -> Reader[None]:
        self.buffer.begin_call(name)
        seen: list[str] = []

        def arguments(piece: str) -> None:
            seen.append(piece)
            self.buffer.arguments(piece)

        if (yield from self._until_end(arguments)) and not seen:
            self.buffer.arguments("{}")
        self.buffer.end_call()

    def _until_end(self, sink: Sink) -> Reader[str]:
        return (yield from self.cursor.until(ENDS, sink))


def is_cut(head: str) -> bool:
    """Whether a text without a body is the beginning of a message that was cut off."""
    return any(mark in head for mark in MARKS) or "to=".startswith(head.strip()[:3])
