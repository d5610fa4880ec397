"""The health report: sums over all models, then each of them."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tahr import __version__
from tahr.server.models.pool import COUNTED
from tahr.server.models.registry import ServedModel
from tahr.server.state.state import ServerState
from tahr.server.status.replies import HealthReply

if TYPE_CHECKING:
    from tahr.engine.sequences.stats import StatsSnapshot

Numbers = dict[str, Any]


def report(state: ServerState) -> HealthReply:
    """The body of /health."""
    snapshots = [model.engine.snapshot() for model in state.models.loaded]
    return HealthReply(
        status=state.models.status,
        timestamp=time.time(),
        version=__version__,
        engine={
            "active_requests": sum(s.requests_running for s in snapshots),
            "queued_requests": sum(s.requests_waiting for s in snapshots),
        },
        scheduler=scheduler(state, snapshots),
        admission=admission(state, snapshots),
        cache={
            "prefix_cache": prefix_cache(snapshots),
            "session_cache": session_cache(state),
            "response_store": response_store(state),
        },
        lora=lora(state),
        config=config(state),
        auto_config={model.name: fitted(model) for model in state.models.loaded},
        models={model.name: described(model) for model in state.models.loaded},
    )


def scheduler(state: ServerState, snapshots: "list[StatsSnapshot]") -> Numbers:
    """Since the server began."""
    n = {name: state.pool.past[name] + sum(getattr(s, name) for s in snapshots) for name in COUNTED}
    waited = [counts for counts in state.metrics.queue_s.counts.values() if sum(counts.per_bucket)]
    n_waited = sum(sum(counts.per_bucket) for counts in waited)
    return {
        "total_requests": n["requests_started"],
        "successful_requests": n["requests_completed"],
        "failed_requests": n["requests_failed"],
        "cancelled_requests": n["requests_cancelled"],
        "preemptions": n["preemptions"],
        "throughput_rps": round(n["requests_completed"] / max(time.monotonic() - state.began, 1e-3), 3),
        "avg_wait_time_ms": round(1e3 * sum(counts.total for counts in waited) / n_waited, 3) if n_waited else 0.0,
    }


def admission(state: ServerState, snapshots: "list[StatsSnapshot]") -> Numbers:
    running = sum(s.requests_running for s in snapshots)
    prefilling = sum(s.requests_prefilling for s in snapshots)
    return {
        "active_requests": len(state.admission.active),
        "max_requests": state.settings.max_requests,
        "effective_max_concurrent": sum(s.max_batch_size for s in snapshots),
        "queue_depth": sum(s.requests_waiting for s in snapshots),
        "active_prefill": prefilling,
        "active_decode": running - prefilling,
        "current_batch_size": running,
        "rejected_requests": int(state.metrics.rejected.values[()]),
    }


def prefix_cache(snapshots: "list[StatsSnapshot]") -> Numbers:
    enabled = any(s.prefix_enabled for s in snapshots)
    return {
        "enabled": enabled,
        "position": "real-kv-reuse" if enabled else "off",
        "source": "pages" if enabled else "off",
        "entries": sum(s.prefix_tokens_cached // s.page_size for s in snapshots if s.page_size),
        "tokens": sum(s.prefix_tokens_cached for s in snapshots),
        "bytes": sum(s.prefix_bytes_cached for s in snapshots),
        "block_size": snapshots[0].page_size if snapshots else 0,
        "kv_dtype": snapshots[0].kv_dtype if snapshots else "",
        "hits": sum(s.prefix_hits for s in snapshots),
        "misses": sum(s.prefix_misses for s in snapshots),
        "evictions": sum(s.prefix_evictions for s in snapshots),
        "saved_prefill_tokens": sum(s.prefix_tokens_reused for s in snapshots),
    }


def session_cache(state: ServerState) -> Numbers:
    settings = state.settings
    stats = state.sessions.stats
    return {
        "mode": settings.session_cache,
        "entries": stats.entries,
        "hits": stats.hits,
        "misses": stats.misses,
        "evictions": stats.evictions,
        "tokens": stats.tokens,
        "max_entries": settings.session_max_entries,
        "max_tokens": settings.session_max_tokens,
    }


def response_store(state: ServerState) -> Numbers:
    settings = state.settings
    return {
        "entries": len(state.responses),
        "bytes": state.responses.n_bytes,
        "max_entries": settings.response_max_entries,
        "max_bytes": settings.response_max_bytes,
    }


def lora(state: ServerState) -> Numbers:
    """Loaded adapters; not their names, because this route needs no key."""
    loaded = [each for model in state.models.loaded for each in model.engine.adapters()]
    return {"adapters": len(loaded), "bytes": sum(each.n_bytes for each in loaded)}


def config(state: ServerState) -> Numbers:
    """Limits a client may run into, and nothing else, because this route needs no key."""
    names = ("max_requests", "max_body_bytes", "max_tokens_cap", "request_timeout_s", "rate_limit")
    return {name: getattr(state.settings, name) for name in names}


def fitted(model: ServedModel) -> Numbers:
    """Settings that follow from the machine where nobody chose them."""
    snapshot = model.engine.snapshot()
    return {
        "context_size": model.engine.context_size,
        "max_batch_size": snapshot.max_batch_size,
        "kv_dtype": snapshot.kv_dtype,
        "kv_blocks": snapshot.pages_total,
        "block_size": snapshot.page_size,
    }


def described(model: ServedModel) -> Numbers:
    snapshot = model.engine.snapshot()
    counters = asdict(snapshot)
    return {
        "error": model.fault or None,
        "backend": model.engine.backend_summary,
        "context_size": model.engine.context_size,
        "weights": {"bytes": model.engine.n_weight_bytes, "host_bytes": model.engine.n_host_weight_bytes},
        "active_requests": snapshot.requests_running,
        "queued_requests": snapshot.requests_waiting,
        "kv_tiers": counters.pop("tiers"),
        "scheduler": {name: value for name, value in counters.items() if not name.startswith(("prefix_", "spec_"))},
        "speculation": {name.removeprefix("spec_"): n for name, n in counters.items() if name.startswith("spec_")},
        "prefix_cache": {name.removeprefix("prefix_"): n for name, n in counters.items() if name.startswith("prefix_")},
    }
