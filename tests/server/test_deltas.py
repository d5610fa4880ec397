"""Typed deltas: what a stream carries can be joined and taken apart without loss."""

import itertools
import time

import pytest

from tahr.config import SamplingParams
from tahr.engine.sequences.parts import ReplyState
from tahr.engine.sequences.sequence import Sequence
from tahr.generation.outputs import Request
from tahr.text.replies.deltas import (
    Delta,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
    merge,
    reasoning_of,
    text_of,
    tool_calls_of,
)

REPLY: tuple[Delta, ...] = (
    ReasoningDelta("Let me "),
    ReasoningDelta("see."),
    "I ",
    "look ",
    "it up.",
    ToolCallDelta(0, id="call_1", name="find"),
    ToolCallDelta(0, '{"q": '),
    ToolCallDelta(0, '"goat"}'),
    ToolCallDelta(1, id="call_2", name="now"),
    ToolCallDelta(1, "{}"),
)
CALLS = (ToolCall("call_1", "find", '{"q": "goat"}'), ToolCall("call_2", "now", "{}"))


def test_neighbours_of_a_kind_become_one() -> None:
    assert merge(REPLY) == (
        ReasoningDelta("Let me see."),
        "I look it up.",
        ToolCallDelta(0, '{"q": "goat"}', "call_1", "find"),
        ToolCallDelta(1, "{}", "call_2", "now"),
    )
    assert merge(()) == () and merge(("a",)) == ("a",) and merge(("a", "b")) == ("ab",)


@pytest.mark.parametrize("cut", range(len(REPLY) + 1))
def test_a_reader_gets_the_same_wherever_the_chunks_are_cut(cut: int) -> None:
    for whole in (REPLY, merge(REPLY[:cut]) + merge(REPLY[cut:]), merge(merge(REPLY[:cut]) + REPLY[cut:])):
        assert text_of(whole) == "I look it up." and reasoning_of(whole) == "Let me see."
        assert tool_calls_of(whole) == CALLS


def test_chunks_and_the_completion_carry_what_the_events_brought() -> None:
    sequence = Sequence([1, 2], SamplingParams(), ReplyState(100))
    request = Request(sequence)
    taken = []
    for delta, pause in zip(REPLY, itertools.cycle((True, False, False))):
        sequence.append(7, 1.0)
        request.add((sequence, (delta,), (7,)))
        if pause and (chunk := request.next_chunk()):
            taken.append(chunk)
    sequence.end("stop")
    request.update_finished()
    taken.append(request.next_chunk())  # type: ignore[arg-type]
    assert sum(len(chunk.token_ids) for chunk in taken) == len(REPLY)
    deltas = tuple(delta for chunk in taken for delta in chunk.deltas)
    made = request.completion()
    assert made.text == text_of(deltas) == "".join(chunk.text for chunk in taken) == "I look it up."
    assert made.reasoning == reasoning_of(deltas) == "Let me see."
    assert made.tool_calls == tool_calls_of(deltas) == CALLS


def test_a_call_of_many_pieces_is_put_together_in_linear_time() -> None:
    pieces = [ToolCallDelta(0, id="call_1", name="find"), *[ToolCallDelta(0, "abcd")] * 300_000]
    start = time.process_time()
    assert tool_calls_of(pieces) == (ToolCall("call_1", "find", "abcd" * 300_000),)
    assert time.process_time() - start < 2
