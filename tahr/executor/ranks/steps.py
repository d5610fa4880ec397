"""Steps as messages, from the arrays of the driver into those of a rank."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tahr.backends.api import LoraRows, StepInputs
from tahr.executor.protocol import StepRequest
from tahr.executor.ranks.messages import RankMessage
from tahr.executor.ranks.step_checks import (
    StepArrays,
    StepFacts,
    StepNumbers,
    check_adapter_rows,
    check_arrays,
    check_numbers,
    require,
)
from tahr.kv.tables import PageCopy

STEP = 2  # the kind of message
LORA = ("n_tiles", "tiles", "rows", "scales")


def step_message(
    step: StepRequest, inputs: StepInputs, adapter_rows: Sequence[LoraRows], page_size: int
) -> RankMessage:
    """A step and what is filled in of its inputs; the adapter rows where these have changed."""
    assert not step.state_copies and not step.extras and step.model == 0
    n = inputs.n_tokens
    n_seqs = inputs.n_seqs
    lengths = inputs.seq_lens[:, :n_seqs]
    n_pages = -(-int(lengths.max(initial=0)) // page_size)
    arrays = StepArrays(
        counts=inputs.counts,
        ids=inputs.ids[:n],
        positions=inputs.positions[:n],
        slot_mapping=inputs.slot_mapping[:, :n],
        query_start=inputs.query_start[: n_seqs + 1],
        seq_lens=lengths,
        page_table=inputs.page_table[:, :n_seqs, :n_pages],
        logit_rows=inputs.logit_rows[: inputs.n_rows],
        page_copies=np.array(step.page_copies, np.int32).reshape(-1, 3),
    )
    numbers = StepNumbers(*(int(getattr(step, name)) for name in StepNumbers._fields))
    rows = [getattr(each, name) for each in adapter_rows for name in LORA] if step.sends_adapter_rows else []
    return RankMessage(STEP, numbers, [np.ascontiguousarray(array) for array in (*arrays, *rows)])


def read_step(
    message: RankMessage, inputs: StepInputs, facts: StepFacts, adapter_rows: Sequence[LoraRows]
) -> StepRequest:
    """Fill in the inputs of a step; the request for it. Nothing is filled in of a message that is refused."""
    require(len(message.numbers) == len(StepNumbers._fields), "the numbers of a step")
    numbers = StepNumbers(*message.numbers)
    check_numbers(numbers, facts)
    n_arrays = len(StepArrays._fields)
    n_rows = len(LORA) * len(adapter_rows) if numbers.sends_adapter_rows else 0
    require(len(message.arrays) == n_arrays + n_rows, "the arrays of a step")
    arrays = StepArrays(*message.arrays[:n_arrays])
    check_arrays(arrays, facts.buckets[numbers.output][numbers.bucket], facts)
    sent = [LoraRows(*message.arrays[at : at + len(LORA)]) for at in range(n_arrays, n_arrays + n_rows, len(LORA))]
    for rows, there in zip(sent, adapter_rows, strict=False):
        check_adapter_rows(rows, there)
    for rows, there in zip(sent, adapter_rows, strict=False):
        put(rows, there, LORA)
    put(arrays, inputs, StepArrays._fields[:-1])
    copies = [PageCopy(*map(int, row)) for row in arrays.page_copies]
    rounds = numbers.adapter_rounds
    sends = bool(numbers.sends_adapter_rows)
    wants = bool(numbers.wants_rows)
    return StepRequest(numbers.number, 0, numbers.output, numbers.bucket, rounds, sends, wants, copies)


def put(arrays: Any, there: Any, names: Sequence[str]) -> None:
    """Write arrays over the beginnings of others."""
    for name in names:
        values = getattr(arrays, name)
        getattr(there, name)[tuple(slice(0, n) for n in values.shape)] = values
