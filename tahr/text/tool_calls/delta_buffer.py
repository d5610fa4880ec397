"""Collects what readers find in a reply, as deltas: text, reasoning, and calls with their ids."""

import random
import string
from collections.abc import Callable

from tahr.text.replies.deltas import Delta, Deltas, ReasoningDelta, ToolCallDelta
from tahr.text.tool_calls.json_text import loaded

BETWEEN_BLOCKS = "\n\n"  # stands where a call or a thought interrupts a text
MAX_HELD_SPACE = 64  # characters of white space that wait for what follows

MakeId = Callable[[str, int], str]  # arguments are a tool's name and the index of the call


class Trimmed:
    """Text without the white space at its ends, which is held back until something follows it."""

    def __init__(self) -> None:
        self._begins = False  # output begins with the next character that is not white space
        self._held = ""
        self._released = False  # the white space at the end is too long to be held
        self._gap = ""  # white space before the next text
        self._has_shown = False

    def push(self, text: str) -> str:
        if self._begins:
            text = text.lstrip()
            self._begins = not text
        shown = text.rstrip()
        if shown:
            rest = text[len(shown) :]
            shown = self._gap + self._held + shown
            self._held = rest
            self._gap = ""
            self._has_shown = True
            self._released = False
        else:
            self._held += text
        if self._released or len(self._held) > MAX_HELD_SPACE:
            shown = shown + self._held
            self._held = ""
            self._released = True
        return shown

    def cut(self) -> None:
        """A block begins or ends here: white space around that place is dropped, and texts around it are kept apart."""
        self._begins = True
        self._gap = BETWEEN_BLOCKS if self._has_shown else ""
        self._held = ""
        self._released = False

    def flush(self) -> str:
        held = self._held
        self._held = ""
        return held


class DeltaBuffer:
    """Deltas in the order of the reply; neighbours of one kind are one delta."""

    def __init__(self, make_id: MakeId, parallel: bool = True, has_text: bool = True):
        self.n_calls = 0
        self.stopped = False  # nothing more is wanted
        self.is_ending = False  # no more text comes, so that a call may have ended for that alone
        self._make_id = make_id
        self._parallel = parallel
        self._has_text = has_text  # otherwise a text is what is left of a call
        self._arguments: list[str] | None = None  # arguments of the open call
        self._deltas: list[Delta] = []
        self._kind = ""
        self._pieces: list[str] = []
        self._text = Trimmed()
        self._reasoning = Trimmed()

    def begin_text(self) -> None:
        """Keep the next text apart from the text before."""
        self._text.cut()

    def text(self, piece: str) -> None:
        if self._has_text:
            self._add("text", self._text.push(piece))

    def reasoning(self, piece: str) -> None:
        self._add("reasoning", self._reasoning.push(piece))

    def begin_reasoning(self) -> None:
        self._text.cut()
        self._reasoning.cut()

    def end_reasoning(self) -> None:
        self._reasoning.cut()
        self._text.cut()

    def begin_call(self, name: str, call_id: str = "") -> None:
        """The first delta of a call: its name and id."""
        self._text.cut()
        self._close()
        self._deltas.append(ToolCallDelta(self.n_calls, "", call_id or self._make_id(name, self.n_calls), name))
        self.n_calls += 1
        self._arguments = []

    def arguments(self, piece: str) -> None:
        """More of the arguments of the call that was begun last."""
        if self._arguments is not None:
            self._arguments.append(piece)
        self._add("arguments", piece)

    def end_call(self) -> None:
        """The call is complete; where calls must come one by one, so is the reply."""
        self._text.cut()
        self._arguments = self._arguments if self.is_ending else None
        self.stopped = self.stopped or not self._parallel

    def take(self) -> Deltas:
        """Everything new."""
        if not self._pieces and not self._deltas:
            return ()
        self._close()
        deltas = tuple(self._deltas)
        self._deltas = []
        return deltas

    def end(self) -> None:
        """The reply is over: white space at the end of its text belongs to it, unless it follows a block.

        A call that it ends in is cut, unless only what stands around it is missing.
        """
        self._add("text", self._text.flush())
        if self._arguments is not None and not isinstance(loaded("".join(self._arguments)), dict):
            self._close()
            self._deltas.append(ToolCallDelta(self.n_calls - 1, is_cut=True))

    def _add(self, kind: str, piece: str) -> None:
        if not piece:
            return
        if kind != self._kind:
            self._close()
            self._kind = kind
        self._pieces.append(piece)

    def _close(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        if text:
            self._deltas.append(self._delta(text))

    def _delta(self, text: str) -> Delta:
        if self._kind == "arguments":
            return ToolCallDelta(self.n_calls - 1, text)
        return text if self._kind == "text" else ReasoningDelta(text)


def call_id(name: str, index: int) -> str:
    """An id as OpenAI's clients know them."""
    return f"call_{random.getrandbits(96):024x}"  # no secret


def nine_characters(name: str, index: int) -> str:
    """An id as Mistral's templates demand it."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=9))


def numbered_function(name: str, index: int) -> str:
    """An id as Kimi's templates repeat it."""
    return f"functions.{name}:{index}"
