"""Runs a loaded model step by step, without an engine."""

from collections.abc import Sequence

import numpy as np

from backends_here import kv_store
from tahr.backends.api import Backend, KVStore, StepInputs, StepLimits
from tahr.loading.capacity import kv_groups
from tahr.models.loader import Loaded

PAGE_SIZE = 4
Part = tuple[int, Sequence[int]]  # of one sequence: position of its first token, its tokens


class Runs:
    """Sequences over one KV store; pages are handed out backwards, so that nothing works by being contiguous.

    Sequence i has state slot i + 1.
    """

    def __init__(self, loaded: Loaded, backend: Backend, n_tokens: int = 32, n_seqs: int = 1):
        self.decoder = loaded.decoder
        self.backend = backend
        self.n_pages_per_seq = -(-n_tokens // PAGE_SIZE)
        shapes, windows = self.decoder.memory, self.decoder.windows
        groups = [group.layers for group in kv_groups(shapes, windows, PAGE_SIZE, "f32")]
        # Of different sizes, so that no group can work by way of another's table.
        n_pages = [self.n_pages_per_seq * n_seqs + 3 * group for group in range(len(groups))]
        self.kv: KVStore = kv_store(backend, shapes, n_pages, PAGE_SIZE, "f32", groups, n_slots=n_seqs + 1)
        self.limits = StepLimits(
            n_tokens * n_seqs, n_seqs, n_tokens * n_seqs, self.n_pages_per_seq, n_groups=len(groups)
        )

    def pages(self, seq: int) -> np.ndarray:
        """The table of a sequence in every group: [n_groups, n_pages_per_seq]."""
        last = np.array(self.kv.layout.n_pages)[:, None] - 1
        return (last - np.arange(self.n_pages_per_seq) - seq * self.n_pages_per_seq).astype(np.int32)

    def fill(self, step: StepInputs, parts: Sequence[Part]) -> None:
        """One part per sequence; the logits of every token are wanted."""
        at = 0
        for seq, (begin, ids) in enumerate(parts):
            positions = np.arange(begin, begin + len(ids))
            here = slice(at, at + len(ids))
            step.ids[here], step.positions[here] = ids, positions
            step.slot_mapping[:, here] = self.pages(seq)[:, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
            step.page_table[:, seq] = self.pages(seq)
            step.query_start[seq], step.seq_lens[:, seq] = at, begin + len(ids)
            step.state_slots[seq] = seq + 1
            at += len(ids)
        step.query_start[len(parts)] = at
        step.logit_rows[:at] = np.arange(at)
        step.counts[:] = at, at, len(parts)

    def eager(self, parts: Sequence[Part]) -> np.ndarray:
        """Logits of every token of one step."""
        step = self.backend.step_inputs(self.limits)
        self.fill(step, parts)
        return self.backend.read(self.decoder.forward(self.backend, step, self.kv)).copy()


def greedy(loaded: Loaded, backend: Backend, ids: list[int], n_new: int) -> list[int]:
    """`ids` and the `n_new` likeliest tokens after them."""
    runs = Runs(loaded, backend, n_tokens=len(ids) + n_new)
    tokens, done = list(ids), 0
    while len(tokens) < len(ids) + n_new:
        logits = runs.eager([(done, tokens[done:])])
        done = len(tokens)
        tokens.append(int(logits[-1].argmax()))
    return tokens


def states(loaded: Loaded, backend: Backend, texts: list[list[int]]) -> np.ndarray:
    runs = Runs(loaded, backend, n_tokens=max(map(len, texts)), n_seqs=len(texts))
    step = backend.step_inputs(runs.limits)
    runs.fill(step, [(0, text) for text in texts])
    return backend.read(loaded.decoder.hidden(backend, step, runs.kv)).copy()
