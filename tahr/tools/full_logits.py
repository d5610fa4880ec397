"""The logits of a whole text, some rows at a time."""

from collections.abc import Iterator

import numpy as np

from tahr.backends.api import Backend, Floats
from tahr.config import EngineConfig
from tahr.generation.driver import Driver
from tahr.loading.builder import build_engine
from tahr.models.decoder import Decoder


class FullLogits:
    """An engine with memory for one text of at most `n_tokens`, computed `chunk` tokens at a time."""

    def __init__(
        self, backend: Backend, decoder: Decoder, n_tokens: int, kv_dtype: str | None = None, chunk: int = 128
    ):
        config = EngineConfig(
            context_size=max(8, n_tokens),
            prefill_chunk_size=chunk,
            max_batch_size=1,
            prefix_cache=False,
            kv_dtype=kv_dtype,
        )
        self._engine, _ = build_engine(backend, decoder, config, n_row_tokens=chunk)

    def run(self, ids: list[int], first: int = 0) -> Iterator[Floats]:
        """Logits after the tokens from `first` on, the rows of one step at a time."""
        ready: list[Floats] = []
        seq = self._engine.submit_rows(ids, lambda rows: ready.append(np.array(rows)), first_row=first)
        driver = Driver(self._engine)
        try:
            while not seq.done:
                driver.step()
                yield from ready
                ready.clear()
            if seq.result.error:
                raise seq.result.error
        finally:
            self._engine.abort(seq)


def all_logits(
    backend: Backend, decoder: Decoder, ids: list[int], kv_dtype: str | None = None, chunk: int = 128
) -> Floats:
    """Logits after each of `ids`: [len(ids), n_vocab], `chunk` rows at a time."""
    return np.concatenate(list(FullLogits(backend, decoder, len(ids), kv_dtype, chunk).run(ids)))
