"""Sampling by a backend, and what it needs of memory: rows of logits may be on the host already."""

from collections.abc import Sequence

from tahr.backends.api import Backend, Floats, Ints
from tahr.backends.sampling.sample_rows import Logprobs, SampledTokens, SampleRows, Words


class LocalSampling:
    """The sampler of an executor of this process."""

    fault = ""

    def __init__(self, backend: Backend):
        self.backend = backend

    @property
    def cpu_s(self) -> float:
        return 0.0

    def restart(self, reason: str) -> None:
        raise AssertionError(f"an executor of this process is never lost, but: {reason}")

    def close(self) -> None:
        return

    def mask_memory(self, n: int, n_words: int) -> Words:
        return self.backend.mask_memory(n, n_words)

    def host_samples(self, rows: SampleRows) -> Sequence[int]:
        return self.backend.host_samples(rows)

    def sample_host_rows(self, logits: Floats, rows: SampleRows) -> SampledTokens:
        return self.backend.sample(logits, rows).collect()

    def logprobs(self, logits: Floats, n_vocab: int, source: Ints, tokens: Ints, n_top: Ints) -> Logprobs:
        return self.backend.logprobs(logits, n_vocab, source, tokens, n_top)
