"""Metrics of a server, under the names that dashboards know."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tahr.server.http.records import GenerationRecord, RecordingRecord, RequestRecord, SpeechRecord
from tahr.server.observe.metrics import Histogram, Labels, Metric, exposition
from tahr.server.observe.observer import Observer

if TYPE_CHECKING:
    from tahr.engine.sequences.stats import RequestStats, StatsSnapshot
    from tahr.server.conversations.sessions import SessionStats
    from tahr.server.models.pool import ModelPool

SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
LONG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
REJECTED = ("rate_limit_exceeded", "overloaded")  # codes of errors

# Our name, the name other engines' dashboards ask for, the help text, and where a snapshot has it.
EngineMetric = tuple[str, str, str, "Callable[[StatsSnapshot], float]"]
GAUGES: tuple[EngineMetric, ...] = (
    ("requests_running", "num_requests_running", "Sequences in the running batch.", lambda s: s.requests_running),
    ("requests_waiting", "num_requests_waiting", "Sequences in the waiting queue.", lambda s: s.requests_waiting),
    ("admission_effective_max_concurrent", "", "Sequences that may run at once.", lambda s: s.max_batch_size),
    ("admission_queue_depth", "", "Sequences in the waiting queue.", lambda s: s.requests_waiting),
    ("admission_current_batch_size", "", "Sequences in the running batch.", lambda s: s.requests_running),
    ("admission_active_prefill", "", "Running sequences in prefill.", lambda s: s.requests_prefilling),
    ("admission_active_decode", "", "Running sequences in decode.",
     lambda s: s.requests_running - s.requests_prefilling),
    ("kv_cache_usage_ratio", "kv_cache_usage_perc", "Share of KV cache pages in use, 0 to 1.",
     lambda s: s.pages_used / s.pages_total if s.pages_total else 0.0),
    ("kv_pages", "", "Pages of the KV cache.", lambda s: s.pages_total),
    ("prefix_cache_entries", "", "Pages in the prefix cache.",
     lambda s: s.prefix_tokens_cached // s.page_size if s.page_size else 0),
    ("prefix_cache_tokens", "", "Tokens in the prefix cache.", lambda s: s.prefix_tokens_cached),
    ("prefix_cache_bytes", "", "Bytes of keys and values in the prefix cache.", lambda s: s.prefix_bytes_cached),
)  # fmt: skip
COUNTERS: tuple[EngineMetric, ...] = (
    ("prefix_cache_hits_total", "", "Prompts with a prefix in the cache.", lambda s: s.prefix_hits),
    ("prefix_cache_misses_total", "", "Prompts without a prefix in the cache.", lambda s: s.prefix_misses),
    ("prefix_cache_evictions_total", "", "Pages evicted from the prefix cache.", lambda s: s.prefix_evictions),
    ("prefix_cache_saved_tokens_total", "prefix_cache_hits_total", "Prompt tokens taken from the prefix cache.",
     lambda s: s.prefix_tokens_reused),
    ("prefix_cache_queried_tokens_total", "prefix_cache_queries_total", "Prompt tokens, cached or computed.",
     lambda s: s.prefix_tokens_reused + s.tokens_prefilled),
    ("preemptions_total", "num_preemptions_total", "Preemptions of running sequences.", lambda s: s.preemptions),
    ("admission_completed_requests_total", "", "Sequences that finished.", lambda s: s.requests_completed),
    ("admission_failed_requests_total", "", "Sequences that ended with an error.", lambda s: s.requests_failed),
    ("steps_total", "", "Engine steps.", lambda s: s.steps),
    ("slow_steps_total", "", "Engine steps of a size that was new: something was compiled or captured.",
     lambda s: s.slow_steps),
    ("slow_steps_seconds_total", "", "Seconds of these steps.", lambda s: s.slow_steps_s),
    ("prefill_tokens_total", "", "Tokens computed in prefill.", lambda s: s.tokens_prefilled),
    ("decode_tokens_total", "", "Tokens computed in decode.", lambda s: s.tokens_decoded),
    ("spec_drafts_total", "spec_decode_num_drafts_total", "Drafts of speculative decoding.", lambda s: s.spec_drafts),
    ("spec_draft_tokens_total", "spec_decode_num_draft_tokens_total", "Tokens in these drafts.",
     lambda s: s.spec_draft_tokens),
    ("spec_accepted_tokens_total", "spec_decode_num_accepted_tokens_total", "Draft tokens that were accepted.",
     lambda s: s.spec_accepted_tokens),
)  # fmt: skip


# Name, kind, help text, field of `SessionStats`.
SESSION_METRICS = (
    ("session_cache_entries", "gauge", "Conversations in the session cache.", "entries"),
    ("session_cache_tokens", "gauge", "Tokens of the conversations in the session cache.", "tokens"),
    ("session_cache_hits_total", "counter", "Requests that continued a conversation.", "hits"),
    ("session_cache_misses_total", "counter", "Requests that began a conversation.", "misses"),
    ("session_cache_evictions_total", "counter", "Conversations evicted.", "evictions"),
    ("session_cache_dropped_messages_total", "counter", "Old messages dropped.", "dropped_messages"),
)

# Name, kind, help text, field of `ModelPool`.
POOL_METRICS = (
    ("models_loaded", "gauge", "Models in memory.", "n_loaded"),
    ("models_warming", "gauge", "Models some of whose steps are still to be prepared ahead.", "n_warming"),
    ("models_bytes", "gauge", "Memory of the models that are loaded or being loaded.", "n_bytes"),
    ("models_host_weight_bytes", "gauge", "Weights on the host of models that run on a GPU.", "n_host_weight_bytes"),
    ("model_loads_total", "counter", "Models loaded.", "n_loads"),
    ("model_unloads_total", "counter", "Models unloaded.", "n_unloads"),
    ("model_load_failures_total", "counter", "Models that could not be loaded.", "n_failures"),
)


def both(ours: str, theirs: str) -> tuple[str, ...]:
    return (f"tahr_{ours}", f"vllm:{theirs}") if theirs else (f"tahr_{ours}",)


def counter(ours: str, theirs: str, help: str) -> Metric:
    return Metric("counter", both(ours, theirs), help)


def histogram(ours: str, theirs: str, help: str, bounds: tuple[float, ...]) -> Histogram:
    return Histogram(both(ours, theirs), help, bounds)


class ServerMetrics(Observer):
    """All metric families of one server. Only the event loop's thread writes them."""

    def __init__(self) -> None:
        self.http = counter("http_requests_total", "", "HTTP requests by route and status class.")
        self.finished = counter("requests_total", "request_success_total", "Choices by finish reason.")
        self.prompt_tokens = counter("prompt_tokens_total", "prompt_tokens_total", "Prompt tokens.")
        self.cached_tokens = counter(
            "prompt_tokens_cached_total", "prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache."
        )
        self.tokens = counter("generation_tokens_total", "generation_tokens_total", "Generated tokens.")
        self.active = Metric("gauge", ("tahr_requests_active",), "Generation requests in flight.")
        self.websockets = Metric("gauge", ("tahr_websockets",), "WebSockets that are open.", {(): 0})
        self.rejected = Metric(
            "counter", ("tahr_admission_rejected_requests_total",), "Requests refused with 429 or 503.", {(): 0}
        )
        self.first_token_s = histogram(
            "time_to_first_token_seconds", "time_to_first_token_seconds", "Arrival to first token.", LONG_S
        )
        self.between_tokens_s = histogram(
            "inter_token_latency_seconds", "inter_token_latency_seconds", "Token to next token.", SHORT_S
        )
        self.per_token_s = histogram(
            "request_time_per_output_token_seconds",
            "request_time_per_output_token_seconds",
            "Mean time per output token of a choice, after its first.",
            SHORT_S,
        )
        self.request_s = histogram("request_seconds", "e2e_request_latency_seconds", "Arrival to end.", LONG_S)
        self.queue_s = histogram(
            "request_queue_seconds", "request_queue_time_seconds", "Arrival to first step.", LONG_S
        )
        self.prefill_s = histogram(
            "request_prefill_seconds", "request_prefill_time_seconds", "First step to first token.", LONG_S
        )
        self.decode_s = histogram(
            "request_decode_seconds", "request_decode_time_seconds", "First token to last token.", LONG_S
        )
        self.prompt_lengths = histogram("request_prompt_tokens", "request_prompt_tokens", "Tokens per prompt.", LENGTHS)
        self.output_lengths = histogram(
            "request_generation_tokens", "request_generation_tokens", "Generated tokens per choice.", LENGTHS
        )
        self.audio_s = counter("audio_seconds_total", "", "Seconds of recordings that were written down.")
        self.audio_windows = counter("audio_windows_total", "", "Windows of recordings that went through a model.")
        self.audio_fallbacks = counter(
            "audio_fallbacks_total", "", "Texts of windows that were written again at a higher temperature."
        )
        self.speech_frames = counter("speech_frames_total", "", "Frames of speech that were drawn.")
        self.speeches = counter("speeches_total", "", "Texts that were spoken, by why their last part ended.")
        self.audio_request_s = histogram("audio_request_seconds", "", "Arrival of a recording to its end.", LONG_S)
        self.audio_real_time = histogram(
            "audio_real_time_factor", "", "Seconds that a recording took, as a multiple of its own.", SHORT_S
        )
        self._families = [each for each in vars(self).values() if isinstance(each, Metric | Histogram)]
        self._labels: dict[str, Labels] = {}

    def text(self, engines: "Mapping[str, StatsSnapshot]", sessions: "SessionStats", pool: "ModelPool") -> bytes:
        """Everything in Prometheus' format, with the engines' counters at this moment."""
        families = [
            *session_families(sessions),
            *pool_families(pool),
            *engine_families(engines),
            *energy_families(engines),
            *tier_families(engines),
        ]
        return exposition([*self._families, *families])

    def labels(self, model: str) -> Labels:
        found = self._labels.get(model)
        if found is None:
            found = self._labels[model] = labels_of(model)
        return found

    # ---- hooks ------------------------------------------------------------------------------------------------

    def generation_started(self, record: GenerationRecord) -> None:
        self.prompt_tokens.add(self.labels(record.model), record.n_prompt_tokens)
        self.active.add(self.labels(record.model), 1)

    def first_token(self, record: GenerationRecord, seconds: float) -> None:
        self.first_token_s.observe(self.labels(record.model), seconds)

    def next_tokens(self, record: GenerationRecord, n_tokens: int, seconds_each: float) -> None:
        labels = self._labels.get(record.model) or self.labels(record.model)
        self.between_tokens_s.observe(labels, seconds_each, n_tokens)

    def choice_finished(self, record: GenerationRecord, index: int, stats: "RequestStats") -> None:
        labels = self.labels(record.model)
        self.queue_s.observe(labels, stats.queue_s)
        self.prefill_s.observe(labels, stats.prefill_s)
        self.decode_s.observe(labels, stats.decode_s)
        if stats.n_generated_tokens > 1:
            self.per_token_s.observe(labels, stats.decode_s / (stats.n_generated_tokens - 1))
        self.output_lengths.observe(labels, stats.n_generated_tokens)
        if index == 0:
            self.prompt_lengths.observe(labels, stats.n_prompt_tokens)

    def generation_finished(self, record: GenerationRecord, seconds: float) -> None:
        labels = self.labels(record.model)
        self.active.add(labels, -1)
        self.tokens.add(labels, record.n_tokens)
        self.cached_tokens.add(labels, record.n_cached)
        for reason in record.reasons:
            self.finished.add((*labels, ("finished_reason", reason)))
        self.request_s.observe(labels, seconds)

    def recording_finished(self, record: RecordingRecord) -> None:
        labels = self.labels(record.model)
        self.audio_s.add(labels, record.seconds)
        self.audio_windows.add(labels, record.n_windows)
        self.audio_fallbacks.add(labels, record.n_fallbacks)
        self.audio_request_s.observe(labels, record.took_s)
        if record.seconds:
            self.audio_real_time.observe(labels, record.took_s / record.seconds)

    def speech_finished(self, record: SpeechRecord) -> None:
        labels = self.labels(record.model)
        self.speech_frames.add(labels, record.n_frames)
        self.speeches.add((*labels, ("finished_reason", record.reason)))

    def request_finished(self, record: RequestRecord) -> None:
        self.http.add((("route", record.route), ("status", f"{record.status // 100}xx")))
        if record.error_code in REJECTED:
            self.rejected.add(())


def engine_families(engines: "Mapping[str, StatsSnapshot]") -> list[Metric]:
    made = []
    for kind, table in (("gauge", GAUGES), ("counter", COUNTERS)):
        for ours, theirs, help, read in table:
            values = {labels_of(model): float(read(snapshot)) for model, snapshot in engines.items()}
            made.append(Metric(kind, both(ours, theirs), help, values))
    return made


def energy_families(engines: "Mapping[str, StatsSnapshot]") -> list[Metric]:
    """None of an engine whose device has no counter that may be read."""
    joules = counter("energy_joules_total", "", "Energy of the device while a model worked, by what it did.")
    seconds = counter("energy_measured_seconds_total", "", "Seconds in which that energy was measured.")
    for model, snapshot in engines.items():
        if use := snapshot.energy:
            labels = labels_of(model)
            seconds.set(labels, use.measured_s)
            for phase, value in (("prefill", use.prefill_j), ("decode", use.decode_j), ("idle", use.idle_j)):
                joules.set((*labels, ("phase", phase)), value)
    return [each for each in (joules, seconds) if each.values]


def tier_families(engines: "Mapping[str, StatsSnapshot]") -> list[Metric]:
    """None of an engine whose pages are in its pools alone."""
    n_bytes = Metric("gauge", ("tahr_kv_tier_bytes",), "Bytes of keys and values outside the pools, by tier.")
    failed = Metric("gauge", ("tahr_kv_disk_failed",), "1: a disk failed, and is used no more.")
    pages = counter("kv_tier_pages_total", "", "Pages outside the pools, by what became of them.")
    files = counter("kv_tier_files_total", "", "Files of keys and values, by what became of them.")
    for model, snapshot in engines.items():
        if use := snapshot.tiers:
            labels = labels_of(model)
            failed.set(labels, bool(use.disk_fault))
            for tier in ("host", "disk"):
                n_bytes.set((*labels, ("tier", tier)), getattr(use, f"{tier}_bytes"))
            for event in ("stored", "dropped", "loaded"):
                pages.set((*labels, ("event", event)), getattr(use, f"pages_{event}"))
            for event in ("written", "dropped", "read", "missed", "damaged"):
                files.set((*labels, ("event", event)), getattr(use, f"files_{event}"))
            files.set((*labels, ("event", "late")), use.reads_late)
    return [each for each in (n_bytes, failed, pages, files) if each.values]


def pool_families(pool: "ModelPool") -> list[Metric]:
    made = [Metric(kind, both(name, ""), help, {(): getattr(pool, field)}) for name, kind, help, field in POOL_METRICS]
    asleep = Metric("gauge", ("tahr_models_asleep",), "Loaded models that sleep.", {(): pool.sleep.n_asleep})
    return [*made, asleep]


def session_families(stats: "SessionStats") -> list[Metric]:
    return [
        Metric(kind, both(name, ""), help, {(): getattr(stats, field)}) for name, kind, help, field in SESSION_METRICS
    ]


def labels_of(model: str) -> Labels:
    return (("model_name", model),)
