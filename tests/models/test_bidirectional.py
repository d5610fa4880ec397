"""Attention in both directions: a row depends on its own sequence alone, and long sequences are whole."""

import numpy as np
import pytest

from backends_here import NAMES, backend, kv_store
from tahr.backends.api import AttentionSpec, Backend, KVShape, KVStore, LayerMemory, StepInputs, StepLimits
from tahr.backends.reference.backend import ReferenceBackend

PAGE_SIZE, SHAPE = 16, KVShape(2, 32)
LENGTHS = (3, 700, 1, 65, 513)


def step_of(be: Backend, lengths: tuple[int, ...], first_page: int) -> StepInputs:
    """Whole sequences, one after the other, on consecutive pages."""
    n = sum(lengths)
    step = be.step_inputs(StepLimits(n, len(lengths), n, 64))
    at = 0
    for i, length in enumerate(lengths):
        n_pages = -(-length // PAGE_SIZE)
        step.page_table[0, i, :n_pages] = np.arange(first_page, first_page + n_pages)
        step.positions[at : at + length] = np.arange(length)
        step.query_start[i], step.seq_lens[:, i] = at, length
        first_page, at = first_page + n_pages, at + length
    step.query_start[len(lengths)] = n
    step.counts[:] = n, 1, len(lengths)
    return step


def pages_before(i: int) -> int:
    return sum(-(-length // PAGE_SIZE) for length in LENGTHS[:i])


def store(be: Backend) -> KVStore:
    kv = kv_store(be, [SHAPE], [pages_before(len(LENGTHS))], PAGE_SIZE, "f32")
    content = np.random.default_rng(0).standard_normal((pages_before(len(LENGTHS)) * PAGE_SIZE, 2, 64))
    be.write_pages(kv, range(pages_before(len(LENGTHS))), [content.astype(np.float32).view(np.uint8)])
    return kv


@pytest.mark.parametrize("name", [name for name in NAMES if name != "reference"])
@pytest.mark.parametrize("window", [0, 40, 600])
def test_whole_sequences(name: str, window: int) -> None:
    q = np.random.default_rng(1).standard_normal((sum(LENGTHS), 4 * 32)).astype(np.float32)
    spec = AttentionSpec(0.2, window, causal=False)

    def attend(be: Backend, lengths: tuple[int, ...], first_page: int, rows: np.ndarray) -> np.ndarray:
        memory = LayerMemory(step_of(be, lengths, first_page), store(be), 0)
        return np.array(be.read(be.attention(be.tensor(rows), spec, memory)))

    be = backend(name, deterministic=True)
    together = attend(be, LENGTHS, 0, q)
    np.testing.assert_allclose(together, attend(ReferenceBackend(), LENGTHS, 0, q), atol=2e-5)
    at = 0
    for i, length in enumerate(LENGTHS):
        alone = attend(be, (length,), pages_before(i), q[at : at + length])
        np.testing.assert_array_equal(together[at : at + length], alone)
        at += length
