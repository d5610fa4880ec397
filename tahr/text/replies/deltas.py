"""Deltas of a stream: pieces of text, of reasoning and of tool calls, in the order the model wrote them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of what the model wrote before its answer, to find it."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of the call of a tool; the first piece of a call carries its id and the tool's name."""

    index: int  # number of the call in the reply
    arguments: str = ""  # a piece of their JSON
    id: str = ""
    name: str = ""
    is_cut: bool = False  # the last piece of a call that will never be whole


# Text is a plain string: nearly all of a reply is text, and a string is what every reader of text wants.
Delta = str | ReasoningDelta | ToolCallDelta
Deltas = tuple[Delta, ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call: the arguments are JSON as the model wrote it, which may be broken."""

    id: str
    name: str
    arguments: str


def text_of(deltas: Sequence[Delta]) -> str:
    """The text alone."""
    if len(deltas) == 1 and isinstance(deltas[0], str):  # nearly always
        return deltas[0]
    return "".join([delta for delta in deltas if isinstance(delta, str)])


def reasoning_of(deltas: Iterable[Delta]) -> str:
    return "".join([delta.text for delta in deltas if isinstance(delta, ReasoningDelta)])


def tool_calls_of(deltas: Iterable[Delta], cut: bool = False) -> tuple[ToolCall, ...]:
    """The calls, each put together from its pieces: those that are whole, or with `cut` those that are not."""
    calls: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            calls.setdefault(delta.index, []).append(delta)
    return tuple(
        ToolCall(pieces[0].id, pieces[0].name, "".join([piece.arguments for piece in pieces]))
        for pieces in calls.values()
        if pieces[-1].is_cut == cut
    )


def cut_call_of(deltas: Iterable[Delta]) -> ToolCall | None:
    """The call in whose middle the reply ended, if it did."""
    return next(iter(tool_calls_of(deltas, cut=True)), None)


def merge(deltas: Sequence[Delta]) -> Deltas:
    """Join neighbours of one kind, so that a reader who was away gets few pieces."""
    if len(deltas) <= 1:
        return tuple(deltas)
    try:
        return ("".join(deltas),)  # type: ignore[arg-type]
    except TypeError:  # not all are text
        return tuple(joined(list(group)) for _, group in groupby(deltas, kind_of))


def kind_of(delta: Delta) -> tuple[type, int]:
    return type(delta), delta.index if isinstance(delta, ToolCallDelta) else 0


def joined(group: Sequence[Delta]) -> Delta:
    """One delta from neighbours of one kind."""
    first = group[0]
    if isinstance(first, ToolCallDelta):
        pieces = [each for each in group if isinstance(each, ToolCallDelta)]
        return replace(first, arguments="".join([each.arguments for each in pieces]), is_cut=pieces[-1].is_cut)
    return ReasoningDelta(reasoning_of(group)) if isinstance(first, ReasoningDelta) else text_of(group)
