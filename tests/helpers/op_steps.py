"""Steps and full stores of keys and values, for tests of single ops."""

import numpy as np

from backends_here import kv_store
from tahr.backends.api import (
    Backend,
    KVShape,
    KVStore,
    LayerMemory,
    Rope,
    Rotation,
    StepInputs,
    StepLimits,
)


def rows(rng: np.random.Generator, n: int, width: int) -> np.ndarray:
    return rng.standard_normal((n, width)).astype(np.float32)


PAGE = 8


def step_of(be: Backend, spans: list[tuple[int, int]], picked: list[int], n_vocab: int, seed: int = 0) -> StepInputs:
    """A step in which sequence s computes positions spans[s], its pages scattered over the pool."""
    rng = np.random.default_rng(seed)
    n = sum(end - begin for begin, end in spans)
    step = be.step_inputs(StepLimits(n + 3, len(spans) + 1, len(picked) + 1, 16))
    pages = rng.permutation(16 * len(spans)).reshape(len(spans), 16)
    at = 0
    for s, (begin, end) in enumerate(spans):
        step.page_table[0, s] = pages[s]
        step.query_start[s], step.seq_lens[:, s] = at, end
        where = np.arange(begin, end)
        step.positions[at : at + end - begin] = where
        step.slot_mapping[0, at : at + end - begin] = pages[s][where // PAGE] * PAGE + where % PAGE
        at += end - begin
    step.query_start[len(spans)] = at
    step.ids[:at] = rng.integers(0, n_vocab, at)
    step.logit_rows[: len(picked)] = picked
    step.counts[:] = n, len(picked), len(spans)
    return step


def full_store(be: Backend, rng: np.random.Generator, shape: KVShape, n_seqs: int, dtype: str) -> KVStore:
    """A store in which every slot holds something, written through rope_and_cache itself."""
    kv = kv_store(be, [shape], [16 * n_seqs], PAGE, dtype)
    step = step_of(be, [(0, 16 * PAGE)] * n_seqs, [0], 10)
    n, width = 16 * PAGE * n_seqs, shape.n_heads * shape.head_dim
    angles = be.cos_sin(step, Rope(np.zeros(shape.head_dim // 2, np.float32)))
    q, k, v = (be.tensor(rows(rng, n, width)) for _ in range(3))
    stored = [q, k] if shape.latent else [q, k, v]
    be.rope_and_cache(stored, Rotation(angles, "halves"), LayerMemory(step, kv, 0))
    be.flush()
    return kv
