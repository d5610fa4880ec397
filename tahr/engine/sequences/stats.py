"""Costs of requests and of the whole engine: cheap enough to be always on."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

# The parts of a request's life, and the moments they lie between.
PARTS = {
    "queue": ("arrived_at", "started_at"),
    "prefill": ("started_at", "first_token_at"),
    "decode": ("first_token_at", "last_token_at"),
}


@dataclass(slots=True)
class RequestStats:
    """Counts and moments of one request; what a reader wants to know is worked out from them."""

    n_prompt_tokens: int = 0
    n_generated_tokens: int = 0
    n_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    n_preempted: int = 0
    n_draft_tokens: int = 0
    n_accepted_tokens: int = 0  # accepted draft tokens
    arrived_at: float = field(default_factory=perf_counter)
    started_at: float = 0.0  # time of the step with its first tokens
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    chunk_ends: list[tuple[int, float]] = field(default_factory=list)  # tokens after each step of its prefill, and when

    @property
    def queue_s(self) -> float:
        """Arrival to the first step."""
        return between(self.arrived_at, self.started_at)

    @property
    def prefill_s(self) -> float:
        """First step to first token."""
        return between(self.started_at, self.first_token_at)

    @property
    def first_token_s(self) -> float:
        """Arrival to first token."""
        return between(self.arrived_at, self.first_token_at)

    @property
    def decode_s(self) -> float:
        """First token to last token."""
        return between(self.first_token_at, self.last_token_at)

    @property
    def cache_hit(self) -> bool:
        return self.n_cached_tokens > 0

    @property
    def prompt_tokens_per_s(self) -> float:
        return rate(self.n_prompt_tokens - self.n_cached_tokens, self.prefill_s)

    @property
    def tokens_per_s(self) -> float:
        """Decode speed: the first token belongs to the prompt's time."""
        return rate(self.n_generated_tokens - 1, self.decode_s)

    @property
    def ms_per_token(self) -> float:
        speed = self.tokens_per_s
        return 1e3 / speed if speed else 0.0

    def parts(self) -> Iterator[tuple[str, float, float]]:
        """Phases of a request, with begin and end; only those that came about."""
        for name, (begin, end) in PARTS.items():
            begun = getattr(self, begin)
            ended = getattr(self, end)
            if begun and ended:
                yield name, begun, ended

    def report(self) -> str:
        """The request in a few lines of text."""
        return "\n".join(
            [
                f"prompt     {self.n_prompt_tokens} tokens, {self.n_cached_tokens} of them cached",
                f"queue      {self.queue_s * 1e3:.1f} ms",
                f"prefill    {self.prefill_s * 1e3:.1f} ms, {self.prompt_tokens_per_s:.1f} tokens/s",
                f"generated  {self.n_generated_tokens} tokens in {self.decode_s * 1e3:.1f} ms, "
                f"{self.tokens_per_s:.1f} tokens/s, {self.ms_per_token:.2f} ms/token",
            ]
        )


@dataclass(slots=True)
class EngineStats:
    """Live counters of an engine. The seconds of a step are shared out by the tokens in it."""

    requests_started: int = 0
    requests_completed: int = 0
    requests_failed: int = 0
    requests_cancelled: int = 0
    steps: int = 0
    slow_steps: int = 0  # steps in which something was compiled or captured
    slow_steps_s: float = 0.0
    tokens_prefilled: int = 0
    tokens_decoded: int = 0  # tokens of decoding sequences
    tokens_generated: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def count_step(self, n_tokens: int, n_decoding: int, seconds: float, is_slow: bool) -> None:
        """Count a step with so many tokens, `n_decoding` of them of sequences that decode."""
        self.slow_steps += is_slow
        self.slow_steps_s += seconds * is_slow
        decoding_s = seconds * n_decoding / n_tokens
        self.steps += 1
        self.tokens_prefilled += n_tokens - n_decoding
        self.tokens_decoded += n_decoding
        self.decode_s += decoding_s
        self.prefill_s += seconds - decoding_s

    def count_end(self, how: str) -> None:
        """A request is over: completed, failed or cancelled."""
        name = f"requests_{how}"
        setattr(self, name, getattr(self, name) + 1)


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """Joules of a device in `measured_s` seconds, in which an engine worked."""

    source: str
    measured_s: float = 0.0
    prefill_j: float = 0.0
    decode_j: float = 0.0
    idle_j: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUse:
    """Pages in the places behind the pools, and what became of pages and files since the start."""

    host_bytes: int
    disk_bytes: int  # bytes of the directory, as far as this process knows
    disk_fault: str  # reason why the disk is used no more; empty: it is used
    pages_stored: int
    pages_dropped: int  # pages not stored for want of memory to copy them to
    pages_loaded: int
    files_written: int
    files_dropped: int  # files not written, because too much waited
    files_read: int
    files_missed: int
    files_damaged: int
    reads_late: int


@dataclass(slots=True, kw_only=True)
class StatsSnapshot(EngineStats):
    """An engine's counters at one moment, and what follows from them."""

    requests_running: int = 0
    requests_waiting: int = 0
    requests_prefilling: int = 0  # running requests in prefill
    max_batch_size: int = 0
    page_size: int = 0
    kv_dtype: str = ""
    preemptions: int = 0
    pages_total: int = 0
    pages_used: int = 0
    prefix_hits: int = 0
    prefix_misses: int = 0
    prefix_evictions: int = 0
    prefix_tokens_cached: int = 0
    prefix_bytes_cached: int = 0  # bytes of cached keys and values
    prefix_tokens_reused: int = 0
    prefix_enabled: bool = False
    spec_drafts: int = 0  # drafts of one or more tokens each
    spec_draft_tokens: int = 0
    spec_accepted_tokens: int = 0
    energy: EnergyUse | None = None  # None: not measured
    tiers: TierUse | None = None  # None: pages are in the pools alone

    @property
    def spec_acceptance(self) -> float:
        return rate(self.spec_accepted_tokens, self.spec_draft_tokens)

    @property
    def spec_draft_length(self) -> float:
        return rate(self.spec_draft_tokens, self.spec_drafts)

    @property
    def decode_tokens_per_s(self) -> float:
        return rate(self.tokens_decoded, self.decode_s)

    @property
    def prefill_tokens_per_s(self) -> float:
        return rate(self.tokens_prefilled, self.prefill_s)

    @property
    def prefix_hit_rate(self) -> float:
        return rate(self.prefix_hits, self.prefix_hits + self.prefix_misses)


def between(begin: float, end: float) -> float:
    """Seconds from one moment to another, 0 while either has not come."""
    return end - begin if begin and end else 0.0


def rate(n: int, whole: float) -> float:
    """n per unit of whole, 0 when nothing was measured."""
    return n / whole if n > 0 and whole > 0 else 0.0
