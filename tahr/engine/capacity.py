"""What the machine allows: context and KV pages, worked out from the configuration and the memory that is free."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tahr.backends.api import KVShape, stored_head_bytes
from tahr.config import EngineConfig
from tahr.engine.scheduler import Limits
from tahr.errors import ConfigError

KV_SHARE = 4  # a pool takes at most one n-th of the free memory unless told otherwise


@dataclass(frozen=True, slots=True)
class Capacity:
    """Measured, not asked for."""

    context_size: int
    n_pages: int
    kv_bytes: int
    note: str = ""  # what the user should know about how it came out


def measure(
    config: EngineConfig, shapes: Iterable[KVShape], dtype: str, max_context: int, free_bytes: int | None = None
) -> Capacity:
    """Context and pool for this model: every batch place gets a full context if memory allows, at least one does."""
    page_bytes = config.page_size * sum(2 * s.n_heads * stored_head_bytes(dtype, s.head_dim) for s in shapes)
    context = asked_context(config, max_context)
    budget = config.kv_bytes or (free_memory_bytes() if free_bytes is None else free_bytes) // KV_SHARE
    n_affordable = budget // page_bytes
    n_full = pages_for(context, config.page_size)
    if n_affordable >= n_full:
        n_pages = min(n_affordable, n_full * config.max_batch_size)
        return Capacity(context, n_pages, n_pages * page_bytes)
    if config.context_size or n_affordable < 1:
        raise ConfigError(
            f"A context of {context} tokens needs {n_full * page_bytes / 1e6:.0f} MB of KV memory, but only "
            f"{budget / 1e6:.0f} MB may be used: ask for a smaller context (-c)."
        )
    fitting = n_affordable * config.page_size
    note = f"context cut from {context} to {fitting} tokens to fit the free memory"
    return Capacity(fitting, n_affordable, n_affordable * page_bytes, note)


def step_sizes(config: EngineConfig, room: Capacity) -> Limits:
    """What one step may hold, all defaults filled in."""
    n_seqs = config.max_batch_size
    chunk = min(config.prefill_chunk_size, room.context_size)
    return Limits(
        n_seqs=n_seqs,
        n_prefill_seqs=min(config.max_prefill_batch, n_seqs),
        n_decode_seqs=min(config.max_decode_batch or n_seqs, n_seqs),
        prefill_chunk=chunk,
        n_prefill_tokens=config.max_prefill_tokens or chunk,
        admit_below=config.admit_below,
    )


def cache_pages(config: EngineConfig, room: Capacity) -> int:
    """How many pages the prefix cache may keep: the tightest of its limits, at most all there are."""
    page_bytes = room.kv_bytes // room.n_pages
    limits = [
        (config.cache_max_entries, 1),
        (config.cache_max_tokens, config.page_size),
        (config.cache_max_bytes, page_bytes),
    ]
    return min([room.n_pages, *(limit // unit for limit, unit in limits if limit is not None)])


def asked_context(config: EngineConfig, max_context: int) -> int:
    """The context asked for, or the model's own; more than it was trained for is refused, not silently wrong."""
    context = config.context_size or max_context
    if context > max_context:
        raise ConfigError(f"A context of {context} tokens was asked for, but the model was trained for {max_context}.")
    return context


def pages_for(n_tokens: int, page_size: int) -> int:
    return -(-n_tokens // page_size)


def free_memory_bytes() -> int:
    """Memory a new process could use without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
