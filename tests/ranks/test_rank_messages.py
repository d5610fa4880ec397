"""Messages between a driver and its ranks: bytes that are no message are refused, and lead nowhere in memory."""

import random
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tahr.backends.api import KVShape, LoraRows, MemoryLayout, StepInputs, StepLimits
from tahr.errors import AdapterError, ConfigError, ContextExceeded, GenerateError, WeightsChanged
from tahr.executor.protocol import StepRequest
from tahr.executor.ranks.messages import HEAD, BadMessage, RankMessage, read_message, text_message, write_message
from tahr.executor.ranks.replies import RankReply, error_message, read_reply, reply_message
from tahr.executor.ranks.step_checks import StepFacts
from tahr.executor.ranks.steps import read_step, step_message
from tahr.kv.tables import PageCopy

LIMITS = StepLimits(n_tokens=8, n_seqs=3, n_rows=4, n_pages_per_seq=4, n_groups=2)
LAYOUT = MemoryLayout((KVShape(1, 8), KVShape(1, 8)), (6, 5), 4, "f32", ((0,), (1,)))
FACTS = StepFacts(LIMITS, ((LIMITS,), (replace(LIMITS, n_rows=8),)), LAYOUT, 50)
REQUEST = StepRequest(7, 0, 0, 0, 1, True, True, [PageCopy(1, 2, 4)])


def filled() -> StepInputs:
    """Two sequences of 3 and 2 tokens."""
    inputs = StepInputs.empty(LIMITS)
    inputs.counts[:] = 5, 2, 2
    inputs.ids[:5] = 4, 9, 49, 0, 1
    inputs.positions[:5] = 0, 1, 2, 3, 4
    inputs.query_start[:3] = 0, 3, 5
    inputs.seq_lens[:, :2] = 3, 5
    inputs.page_table[:, :2, :2] = 1, 2
    inputs.slot_mapping[:, :5] = 4, 5, 6, 7, 8
    inputs.logit_rows[:2] = 2, 4
    return inputs


def lora_rows() -> list[LoraRows]:
    found = [LoraRows.empty(n) for n in (LIMITS.n_tokens, LIMITS.n_rows)]
    for rows in found:
        rows.n_tiles[0] = 1
        rows.tiles[0, 0] = 3, 0, 2
        rows.rows[0, :2] = 0, 1
        rows.scales[0, :2] = 1, 0.5
    return found


def place(n_bytes: int = 1 << 16) -> np.ndarray:
    return np.zeros(n_bytes, np.uint8)


def sent() -> RankMessage:
    where = place()
    write_message(where, 1, step_message(REQUEST, filled(), lora_rows(), 4))
    return read_message(where, 1)


def taken(message: RankMessage) -> StepRequest:
    return read_step(message, StepInputs.empty(LIMITS), FACTS, [LoraRows.empty(8), LoraRows.empty(4)])


def test_a_step_arrives_as_it_was() -> None:
    there, rows = StepInputs.empty(LIMITS), [LoraRows.empty(8), LoraRows.empty(4)]
    assert read_step(sent(), there, FACTS, rows) == REQUEST
    here = filled()
    for name in ("counts", "ids", "positions", "slot_mapping", "query_start", "seq_lens", "page_table", "logit_rows"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
    np.testing.assert_array_equal(rows[1].tiles, lora_rows()[1].tiles)


NUMBERS = [(1, 2), (1, -1), (2, 1), (2, -1), (3, 2), (3, 7), (4, 2), (5, -1)]  # places of a step's numbers, and values
ARRAYS = [
    (0, 0, 9), (0, 1, 9), (0, 2, -1), (1, 0, 50), (1, 0, -1), (2, 0, 16), (2, 0, -1), (3, 0, 24), (3, 0, -1),
    (3, -1, 20), (4, 0, 1), (4, 1, 6), (4, 2, 4), (5, 0, -1), (5, 0, 17), (5, 0, 16), (6, 0, 6), (6, -1, 5), (6, 0, -1),
    (7, 0, 5), (7, 0, -1), (8, 0, 2), (8, 1, 5), (8, 2, -1),
    (9, 0, 9), (9, 0, -1), (10, 0, 513), (10, 1, 7), (10, 2, 9), (10, 0, -1),
    (10, 1, 2**31 - 1), (11, 0, 8), (11, 0, -1),
]  # fmt: skip


@pytest.mark.parametrize(("index", "value"), NUMBERS)
def test_numbers_of_no_step_are_refused(index: int, value: int) -> None:
    message = sent()
    numbers = list(message.numbers)
    numbers[index] = value
    with pytest.raises(BadMessage):
        taken(message._replace(numbers=numbers))


@pytest.mark.parametrize(("index", "at", "value"), ARRAYS)
def test_arrays_that_lead_out_of_memory_are_refused(index: int, at: int, value: int) -> None:
    message = sent()
    arrays = [array.copy() for array in message.arrays]
    arrays[index].reshape(-1)[at] = value
    with pytest.raises(BadMessage):
        taken(message._replace(arrays=arrays))


@pytest.mark.parametrize("index", range(17))
def test_arrays_of_other_shapes_and_types_are_refused(index: int) -> None:
    message = sent()
    for change in (lambda a: a.reshape(-1)[:-1], lambda a: a.astype(np.uint8), lambda a: a[None][None][None]):
        arrays: list[Any] = list(message.arrays)
        arrays[index] = change(arrays[index])
        with pytest.raises(BadMessage):
            taken(message._replace(arrays=arrays))
    with pytest.raises(BadMessage):
        taken(message._replace(arrays=message.arrays[:index]))


def test_scales_that_are_no_numbers_are_refused() -> None:
    message = sent()
    arrays = [array.copy() for array in message.arrays]
    arrays[12][0, 0] = np.nan
    with pytest.raises(BadMessage, match="the rows of an adapter"):
        taken(message._replace(arrays=arrays))


def test_a_message_that_is_too_large_is_not_written() -> None:
    where = place(200)
    with pytest.raises(BadMessage, match="does not fit"):
        write_message(where, 1, text_message(0, "x" * 200))
    assert not where.any()


def test_changed_and_cut_bytes_are_refused() -> None:
    """Every byte of a message counts."""
    whole = place(2048)
    write_message(whole, 3, text_message(1, "some text", 4, 5))
    (n_bytes,) = struct.unpack("<Q", bytes(whole[HEAD.size - 8 : HEAD.size]))
    assert read_message(whole, 3).text == "some text"
    for at in range(HEAD.size + n_bytes):
        if 8 <= at < 12:
            continue  # the kind, which the receiver looks up
        where = whole.copy()
        where[at] ^= 0x41
        with pytest.raises(BadMessage):
            read_message(where, 3)
    for number in (2, 4, 3 + 2**31):
        with pytest.raises(BadMessage, match="not the one that is due"):
            read_message(whole, number)
    with pytest.raises(BadMessage, match="more than there are"):
        read_message(whole[: HEAD.size + n_bytes - 1], 3)


def test_garbage_with_a_right_sum_is_refused() -> None:
    from tahr.executor.ranks.messages import MAGIC, checksum

    rng = random.Random(0)
    for _ in range(300):
        content = bytes(rng.choice([rng.randrange(256), 0, 1, 255]) for _ in range(rng.randrange(1, 120)))
        where = place(256)
        head = HEAD.pack(MAGIC, 1, 2, checksum(content), len(content))
        where[: len(head) + len(content)] = np.frombuffer(head + content, np.uint8)
        try:
            message = read_message(where, 1)
        except BadMessage:
            continue
        with pytest.raises(BadMessage):
            taken(message)


@pytest.mark.parametrize("kind", [GenerateError, WeightsChanged, AdapterError, ConfigError])
def test_errors_of_ranks_keep_their_class(kind: type[Exception]) -> None:
    found = read_reply(error_message(kind("What is wrong, and what to do.")))
    assert type(found) is kind
    assert str(found) == "What is wrong, and what to do."


def test_other_errors_become_one_of_ours() -> None:
    found = read_reply(error_message(ValueError("oh")))
    assert type(found) is GenerateError
    assert "A rank failed: ValueError('oh')." in str(found)
    assert type(read_reply(error_message(ContextExceeded(5, 3)))) is GenerateError
    for name in ("__builtins__", "Path", "printable", "NoSuch"):
        assert type(read_reply(text_message(1, f"{name}\nx"))) is GenerateError


def test_answers() -> None:
    reply = RankReply("loaded", 3, 40)
    assert read_reply(reply_message(reply)) == reply
