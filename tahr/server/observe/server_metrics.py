"""What a server measures, and the names dashboards know it by."""

import itertools
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from tahr.server.observe.metrics import Histogram, Labels, Number, exposition

if TYPE_CHECKING:
    from tahr.engine.stats import RequestStats, StatsSnapshot
    from tahr.library.outputs import Chunk

log = logging.getLogger("tahr.server")

SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
LONG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

# Our name, the name other engines' dashboards ask for, what it says, and where it is found in a snapshot.
Gauged = tuple[str, str, str, "Callable[[StatsSnapshot], float]"]
GAUGES: tuple[Gauged, ...] = (
    ("requests_running", "num_requests_running", "Requests in the batch.", lambda s: s.requests_running),
    ("requests_waiting", "num_requests_waiting", "Requests in the queue.", lambda s: s.requests_waiting),
    ("admission_effective_max_concurrent", "", "Requests that may run at once.", lambda s: s.max_batch_size),
    ("admission_queue_depth", "", "Requests that wait to run.", lambda s: s.requests_waiting),
    ("admission_current_batch_size", "", "Requests that run.", lambda s: s.requests_running),
    ("admission_active_prefill", "", "Of them, those that read their prompt.", lambda s: s.requests_prefilling),
    ("admission_active_decode", "", "Of them, those that write.", lambda s: s.requests_running - s.requests_prefilling),
    ("kv_cache_usage_ratio", "kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.",
     lambda s: s.pages_used / s.pages_total if s.pages_total else 0.0),
    ("kv_pages", "", "KV pages there are.", lambda s: s.pages_total),
    ("prefix_cache_entries", "", "Pages that can be found again.",
     lambda s: s.prefix_tokens_cached // s.page_size if s.page_size else 0),
    ("prefix_cache_tokens", "", "Tokens that can be found again.", lambda s: s.prefix_tokens_cached),
    ("prefix_cache_bytes", "", "Bytes of their keys and values.", lambda s: s.prefix_bytes_cached),
)  # fmt: skip
COUNTERS: tuple[Gauged, ...] = (
    ("prefix_cache_hits_total", "", "Prompts of which a part was found.", lambda s: s.prefix_hits),
    ("prefix_cache_misses_total", "", "Prompts of which nothing was found.", lambda s: s.prefix_misses),
    ("prefix_cache_evictions_total", "", "Pages that were dropped for others.", lambda s: s.prefix_evictions),
    ("prefix_cache_saved_tokens_total", "prefix_cache_hits_total", "Prompt tokens that were not computed again.",
     lambda s: s.prefix_tokens_reused),
    ("prefix_cache_queried_tokens_total", "prefix_cache_queries_total", "Prompt tokens, found or computed.",
     lambda s: s.prefix_tokens_reused + s.tokens_prefilled),
    ("preemptions_total", "num_preemptions_total", "Sequences that lost their pages for a while.",
     lambda s: s.preemptions),
    ("admission_completed_requests_total", "", "Requests that came to their end.", lambda s: s.requests_completed),
    ("admission_failed_requests_total", "", "Requests that ended with an error.", lambda s: s.requests_failed),
    ("steps_total", "", "Steps of the engine.", lambda s: s.steps),
    ("prefill_tokens_total", "", "Prompt tokens that were computed.", lambda s: s.tokens_prefilled),
    ("decode_tokens_total", "", "Tokens that went through a step one at a time.", lambda s: s.tokens_decoded),
)  # fmt: skip


def both(ours: str, theirs: str) -> tuple[str, ...]:
    return (f"tahr_{ours}", f"vllm:{theirs}") if theirs else (f"tahr_{ours}",)


def counter(ours: str, theirs: str, help: str) -> Number:
    return Number("counter", both(ours, theirs), help)


def histogram(ours: str, theirs: str, help: str, bounds: tuple[float, ...]) -> Histogram:
    return Histogram(both(ours, theirs), help, bounds)


def plain(kind: str, name: str, help: str) -> Number:
    """One number without labels, which is there from the beginning."""
    return Number(kind, (f"tahr_{name}",), help, {(): 0})


class Measures:
    """All families of one server."""

    def __init__(self) -> None:
        self.http = counter("http_requests_total", "", "HTTP requests by route and status class.")
        self.finished = counter("requests_total", "request_success_total", "Requests by how they ended.")
        self.prompt_tokens = counter("prompt_tokens_total", "prompt_tokens_total", "Prompt tokens.")
        self.cached_tokens = counter("prompt_tokens_cached_total", "prompt_tokens_cached_total", "Of them, cached.")
        self.tokens = counter("generation_tokens_total", "generation_tokens_total", "Generated tokens.")
        self.active = Number("gauge", ("tahr_requests_active",), "Requests between their first byte and their last.")
        self.rejected = plain("counter", "admission_rejected_requests_total", "Requests beyond a rate or a limit.")
        self.sessions = plain("gauge", "session_cache_entries", "Conversations that are remembered.")
        self.session_tokens = plain("gauge", "session_cache_tokens", "Tokens of them, without what templates add.")
        self.session_hits = plain("counter", "session_cache_hits_total", "Requests that went on with one.")
        self.session_misses = plain("counter", "session_cache_misses_total", "Requests that began one.")
        self.session_evictions = plain("counter", "session_cache_evictions_total", "Conversations that were let go of.")
        self.session_cuts = plain("counter", "session_cache_dropped_messages_total", "Messages that were let go of.")
        self.first_token = histogram(
            "time_to_first_token_seconds", "time_to_first_token_seconds", "Arrival to first token.", LONG_S
        )
        self.between_tokens = histogram(
            "inter_token_latency_seconds", "inter_token_latency_seconds", "Token to token.", SHORT_S
        )
        self.per_token = histogram(
            "request_time_per_output_token_seconds", "request_time_per_output_token_seconds",
            "Mean time from token to token of one request.", SHORT_S,
        )  # fmt: skip
        self.whole = histogram("request_seconds", "e2e_request_latency_seconds", "Arrival to end.", LONG_S)
        self.queue = histogram("request_queue_seconds", "request_queue_time_seconds", "Arrival to first step.", LONG_S)
        self.prefill = histogram(
            "request_prefill_seconds", "request_prefill_time_seconds", "First step to first token.", LONG_S
        )
        self.decode = histogram(
            "request_decode_seconds", "request_decode_time_seconds", "First token to last token.", LONG_S
        )
        self.prompt_lengths = histogram("request_prompt_tokens", "request_prompt_tokens", "Tokens of prompts.", LENGTHS)
        self.reply_lengths = histogram(
            "request_generation_tokens", "request_generation_tokens", "Tokens of replies.", LENGTHS
        )
        self._families = [each for each in vars(self).values() if isinstance(each, Number | Histogram)]

    def text(self, engines: "Mapping[str, StatsSnapshot]") -> bytes:
        """Everything, with what the engines say at this moment."""
        return exposition([*self._families, *engine_families(engines)])


def engine_families(engines: "Mapping[str, StatsSnapshot]") -> list[Number]:
    made = []
    for kind, table in (("gauge", GAUGES), ("counter", COUNTERS)):
        for ours, theirs, help, read in table:
            values = {labels_of(model): float(read(snapshot)) for model, snapshot in engines.items()}
            made.append(Number(kind, both(ours, theirs), help, values))
    return made


def labels_of(model: str) -> Labels:
    return (("model_name", model),)


_ids = itertools.count(1)


@dataclass(slots=True)
class Meter:
    """Measures one request, and writes its two lines of log, which never hold a text."""

    measures: Measures
    model: str
    n_prompt_tokens: int
    n_choices: int
    id: int = field(default_factory=lambda: next(_ids))
    began: float = field(default_factory=perf_counter)
    n_tokens: int = 0
    n_cached: int = 0
    labels: Labels = ()
    token_at: dict[int, float] = field(default_factory=dict)  # when each choice got its last
    prefill_rate: float = 0.0  # tokens per second, of the answer that came last
    decode_rate: float = 0.0
    ended: str = ""  # finish reasons, or how else it ended
    texts: dict[int, list[str]] | None = None  # what each choice said, only where that is dumped
    stats: "list[RequestStats]" = field(default_factory=list)  # of the answers that came to their end

    def __post_init__(self) -> None:
        self.labels = labels_of(self.model)

    @property
    def last_token_at(self) -> float:
        return max(self.token_at.values(), default=0.0)

    def start(self, **facts: object) -> None:
        """The request has been taken."""
        self.measures.prompt_tokens.add(self.labels, self.n_prompt_tokens)
        self.measures.active.add(self.labels, 1)
        if log.isEnabledFor(logging.INFO):
            log.info("start %s", logfmt({"id": self.id, "model": self.model, **facts}))

    def hear(self, choice: int, chunk: "Chunk") -> None:
        """A piece has come."""
        n_tokens = len(chunk.token_ids)
        if self.texts is not None:
            self.texts.setdefault(choice, []).append(chunk.text)
        stats = chunk.completion.stats if chunk.completion else None
        if n_tokens and stats and stats.first_token_at and choice not in self.token_at:
            self._hear_whole(choice, n_tokens, stats)
        elif n_tokens:
            self._hear_tokens(choice, n_tokens, perf_counter())
        if chunk.finish_reason:
            self.ended = chunk.finish_reason if self.ended in ("", chunk.finish_reason) else "mixed"
            if stats:
                self._hear_stats(chunk.index, stats)

    def _hear_tokens(self, choice: int, n_tokens: int, now: float) -> None:
        before = self.token_at.get(choice)
        if before is not None:
            self.measures.between_tokens.observe(self.labels, (now - before) / n_tokens, n_tokens)
        elif not self.token_at:
            self.measures.first_token.observe(self.labels, now - self.began)
        self.token_at[choice] = now
        self.n_tokens += n_tokens

    def _hear_whole(self, choice: int, n_tokens: int, stats: "RequestStats") -> None:
        """An answer that came in one piece: the engine knows when its tokens were made."""
        if not self.token_at:
            self.measures.first_token.observe(self.labels, stats.first_token_at - self.began)
        if n_tokens > 1:
            self.measures.between_tokens.observe(self.labels, stats.decode_s / (n_tokens - 1), n_tokens - 1)
        self.token_at[choice] = stats.last_token_at
        self.n_tokens += n_tokens

    def _hear_stats(self, index: int, stats: "RequestStats") -> None:
        self.stats.append(stats)
        self.measures.queue.observe(self.labels, stats.queue_s)
        self.measures.prefill.observe(self.labels, stats.prefill_s)
        self.measures.decode.observe(self.labels, stats.decode_s)
        if stats.n_generated_tokens > 1:
            self.measures.per_token.observe(self.labels, stats.decode_s / (stats.n_generated_tokens - 1))
        self.prefill_rate, self.decode_rate = stats.prompt_tokens_per_s, stats.tokens_per_s
        self.measures.reply_lengths.observe(self.labels, stats.n_generated_tokens)
        if index == 0:
            self.measures.prompt_lengths.observe(self.labels, stats.n_prompt_tokens)
            self.n_cached += stats.n_cached_tokens

    def end(self) -> None:
        """It is over, one way or another."""
        now = perf_counter()
        how = self.ended or "error"
        measures, labels = self.measures, self.labels
        measures.active.add(labels, -1)
        measures.tokens.add(labels, self.n_tokens)
        measures.cached_tokens.add(labels, self.n_cached)
        measures.finished.add((*labels, ("finished_reason", how)), self.n_choices)
        measures.whole.observe(labels, now - self.began)
        if log.isEnabledFor(logging.INFO):
            log.info("done %s", logfmt(self._facts(how, now)))

    def _facts(self, how: str, now: float) -> dict[str, object]:
        return {
            "id": self.id,
            "prompt_tokens": self.n_prompt_tokens,
            "cached_tokens": self.n_cached,
            "tokens": self.n_tokens,
            "prefill_tokens_per_s": round(self.prefill_rate, 1),
            "decode_tokens_per_s": round(self.decode_rate, 1),
            "ms": round((now - self.began) * 1e3),
            "finish": how,
        }


PLAIN = re.compile(r'[^\s"=]+\Z')


def logfmt(facts: Mapping[str, object]) -> str:
    """`name=value` pairs; no value can hold a line break or pass for another pair."""
    return " ".join(f"{name}={quoted(str(value))}" for name, value in facts.items())


def quoted(value: str) -> str:
    if value.isprintable() and PLAIN.match(value):
        return value
    return '"' + value.encode("unicode_escape").decode().replace('"', '\\"') + '"'
