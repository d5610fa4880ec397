"""Counts of an `InferenceEngine`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from tahr.engine.sequences.stats import rate


@dataclass(slots=True)
class Metrics:
    """Live counters; a KV hit is a prompt whose beginning was restored instead of computed."""

    requests_started: int = 0
    requests_completed: int = 0
    tokens_prefilled: int = 0
    tokens_generated: int = 0
    kv_hits: int = 0
    kv_misses: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0

    @contextmanager
    def prefilling(self, n_tokens: int) -> Iterator[None]:
        """The clock of a prefill; one that fails counts nothing."""
        began = time.perf_counter_ns()
        yield
        self.prefill_ns += time.perf_counter_ns() - began
        self.tokens_prefilled += n_tokens

    def snapshot(self) -> "MetricsSnapshot":
        """The counters at this moment."""
        return MetricsSnapshot(**asdict(self))


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The counters at one moment, and the rates that follow from them: 0 where nothing was recorded."""

    requests_started: int
    requests_completed: int
    tokens_prefilled: int
    tokens_generated: int
    kv_hits: int
    kv_misses: int
    prefill_ns: int
    decode_ns: int

    @property
    def decode_tokens_per_s(self) -> float:
        return rate(self.tokens_generated, self.decode_ns / 1e9)

    @property
    def prefill_tokens_per_s(self) -> float:
        return rate(self.tokens_prefilled, self.prefill_ns / 1e9)

    @property
    def kv_hit_rate(self) -> float:
        return rate(self.kv_hits, self.kv_hits + self.kv_misses)
