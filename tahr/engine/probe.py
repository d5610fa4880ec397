"""Looking at a model without an engine: the logits of a whole text in one pass."""

import numpy as np
from numpy.typing import NDArray

from tahr.backends.api import Backend, StepLimits
from tahr.models.decoder import Decoder

PAGE_SIZE = 32


def all_logits(
    backend: Backend, decoder: Decoder, ids: list[int], kv_dtype: str | None = None, chunk: int = 128
) -> NDArray[np.float32]:
    """Logits after each of `ids`: [len(ids), n_vocab], `chunk` rows at a time."""
    n_pages = -(-len(ids) // PAGE_SIZE)
    kv = backend.kv_store(decoder.kv_shapes, [n_pages], PAGE_SIZE, kv_dtype or backend.kv_dtypes[0])
    step = backend.step_inputs(StepLimits(chunk, 1, chunk, n_pages))
    plan = backend.record(lambda: decoder.forward(backend, step, kv))
    step.page_table[0, 0] = np.arange(n_pages)
    rows = []
    for begin in range(0, len(ids), chunk):
        end = min(begin + chunk, len(ids))
        n = end - begin
        step.ids[:n] = ids[begin:end]
        step.positions[:n] = step.slots[0, :n] = np.arange(begin, end)
        step.starts[:2] = 0, n
        step.lengths[0] = end
        step.rows[:n] = np.arange(n)
        step.counts[:] = n, n, 1
        plan.run()
        rows.append(np.array(backend.read(plan.result)))
    return np.concatenate(rows)
