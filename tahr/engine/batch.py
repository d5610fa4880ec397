"""Turns the scheduler's choice into the arrays a plan reads."""

from collections.abc import Sequence as ListOf

import numpy as np

from tahr.backends.api import StepInputs
from tahr.engine.scheduler import Work


def fill(step: StepInputs, work: ListOf[Work], page_size: int) -> list[Work]:
    """Write the step inputs for `work`; returns the items that get logits, in row order."""
    picking: list[Work] = []
    at = 0
    for index, item in enumerate(work):
        seq, begin = item.sequence, item.sequence.computed
        end = begin + item.n_tokens
        step.ids[at : at + item.n_tokens] = seq.tokens[begin:end]
        step.positions[at : at + item.n_tokens] = np.arange(begin, end)
        step.page_table[index, : len(seq.pages)] = seq.pages
        step.starts[index], step.lengths[index] = at, end
        at += item.n_tokens
        if item.picks:
            step.rows[len(picking)] = at - 1
            picking.append(item)
    step.starts[len(work)] = at
    step.counts[:] = at, len(picking), len(work)
    fill_slots(step, page_size)
    return picking


def fill_slots(step: StepInputs, page_size: int) -> None:
    """Where each token's keys and values go: its page, and its place there."""
    n_seqs, positions = step.n_seqs, step.positions[: step.n_tokens]
    owner = np.repeat(np.arange(n_seqs), np.diff(step.starts[: n_seqs + 1]))
    pages = step.page_table[owner, positions // page_size]
    step.slots[: step.n_tokens] = pages * page_size + positions % page_size
