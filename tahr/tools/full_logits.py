"""Looking at a model without an engine: the logits of a whole text in one pass."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tahr.backends.api import Backend, MemoryLayout, StepLimits
from tahr.models.decoder import Decoder

PAGE_SIZE = 32


class Probe:
    """A model with memory for one text of at most `n_tokens`, read `chunk` tokens at a time."""

    def __init__(
        self, backend: Backend, decoder: Decoder, n_tokens: int, kv_dtype: str | None = None, chunk: int = 128
    ):
        n_pages = -(-n_tokens // PAGE_SIZE)
        kv = backend.kv_store(MemoryLayout(decoder.memory, (n_pages,), PAGE_SIZE, kv_dtype or backend.kv_dtypes[0]))
        self.backend, self.chunk = backend, chunk
        self.step = backend.step_inputs(StepLimits(chunk, 1, chunk, n_pages))
        self.step.page_table[0, 0] = np.arange(n_pages)
        self._plan = backend.record(lambda: decoder.forward(backend, self.step, kv), self.step)

    def run(self, ids: list[int], first: int = 0) -> Iterator[NDArray[np.float32]]:
        """Logits after the tokens from `first` on, some rows at a time; they stay until the next are asked for."""
        for begin in range(0, len(ids), self.chunk):
            n = min(self.chunk, len(ids) - begin)
            n_skipped = min(max(0, first - begin), n)
            self._fill(ids[begin : begin + n], begin, n_skipped)
            self._plan.run()
            if n_skipped < n:
                yield self.backend.read(self._plan.result)

    def _fill(self, ids: list[int], begin: int, n_skipped: int) -> None:
        step, n = self.step, len(ids)
        step.ids[:n] = ids
        step.positions[:n] = step.slot_mapping[0, :n] = np.arange(begin, begin + n)
        step.query_start[:2] = 0, n
        step.seq_lens[0] = begin + n
        step.logit_rows[: n - n_skipped] = np.arange(n_skipped, n)
        step.counts[:] = n, n - n_skipped, 1


def all_logits(
    backend: Backend, decoder: Decoder, ids: list[int], kv_dtype: str | None = None, chunk: int = 128
) -> NDArray[np.float32]:
    """Logits after each of `ids`: [len(ids), n_vocab], `chunk` rows at a time."""
    probe = Probe(backend, decoder, len(ids), kv_dtype, chunk)
    return np.concatenate([np.array(rows) for rows in probe.run(ids)])
