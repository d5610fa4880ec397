"""Capacity of the machine: context and KV pages, from the configuration and the free memory."""

from bisect import bisect_right
from collections.abc import Sequence as ListOf
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from tahr.backends.api import Backend, CrossShape, KVShape, LayerShape, StateShape, StepDefaults
from tahr.config import EngineConfig
from tahr.engine.scheduling.work import SchedulerLimits
from tahr.errors import ConfigError
from tahr.kv.pages import most_held, pages_for

STATE_SHARE = 4
INPUT_SHARE = 2
CHECKPOINT_SHARE = 8  # checkpoints of states take at most this part of the memory
MOST_CHECKPOINTS = 64
USUAL = StepDefaults()


@dataclass(frozen=True, slots=True)
class KVGroup:
    """The layers that share a window (0: they see everything), and what a page takes in all of them."""

    window: int
    layers: tuple[int, ...]
    page_bytes: int
    n_rows: int = 0  # rows of an input that its layers look at, in place of the text; 0: they look at the text

    def input_bytes(self, page_size: int) -> int:
        """Bytes of an input in all layers."""
        return pages_for(self.n_rows, page_size) * self.page_bytes


@dataclass(frozen=True, slots=True)
class Capacity:
    """Measured, not asked for."""

    context_size: int
    n_pages: tuple[int, ...]  # one count for each group
    page_bytes: tuple[int, ...]  # likewise
    # state slots, if any layer has a state: the null slot, one for every batch place, and the checkpoints
    n_slots: int = 1
    n_checkpoints: int = 0  # states that the prefix cache may keep
    n_inputs: int = 0  # inputs, such as recordings, that sequences may look at
    slot_bytes: int = 0  # all layers together
    note: str = ""  # remark for the user about the result

    @property
    def kv_bytes(self) -> int:
        paged = sum(n * size for n, size in zip(self.n_pages, self.page_bytes, strict=True))
        return paged + self.n_slots * self.slot_bytes


def kv_groups(shapes: ListOf[LayerShape], windows: ListOf[int], page_size: int, dtype: str) -> list[KVGroup]:
    """Layers with pages by their windows, the widest first: those that see everything lead, if there are any. Those
    that look at inputs are the last group."""
    crossed = {i: shape for i, shape in enumerate(shapes) if isinstance(shape, CrossShape)}
    paged = {i: shape for i, shape in enumerate(shapes) if isinstance(shape, KVShape) and i not in crossed}
    members = {
        window: tuple(i for i in paged if windows[i] == window)
        for window in sorted({windows[i] for i in paged}, key=lambda window: window or inf, reverse=True)
    }
    groups = [
        KVGroup(window, layers, sum(page_size * paged[i].token_bytes(dtype) for i in layers))
        for window, layers in members.items()
    ]
    if crossed:
        page_bytes = sum(page_size * shape.token_bytes(dtype) for shape in crossed.values())
        groups.append(KVGroup(0, tuple(crossed), page_bytes, max(shape.n_rows for shape in crossed.values())))
    return groups


def state_bytes(shapes: ListOf[LayerShape]) -> int:
    """Bytes of one sequence in all layers that have a state."""
    return sum(shape.n_bytes for shape in shapes if isinstance(shape, StateShape))


def kv_budget(config: EngineConfig, backend: Backend) -> int:
    """The bytes that pages and states may take: as many as asked for, else what the backend allows."""
    allowed = backend.kv_budget(config.gpu_memory_utilization)
    return config.kv_bytes or allowed


def with_step_defaults(config: EngineConfig, backend: Backend, slot_bytes: int = 0) -> EngineConfig:
    """The configuration with the sizes of steps that suit the backend, where it has none; `slot_bytes` is what the
    state of a sequence takes: the states of a batch nobody asked for may take a quarter of the memory."""
    usual = backend.step_defaults
    n_seqs = usual.n_seqs
    if slot_bytes and config.max_batch_size is None:
        n_seqs = max(1, min(n_seqs, kv_budget(config, backend) // STATE_SHARE // slot_bytes - 1))
    chunk = config.prefill_chunk_size or usual.prefill_chunk
    n_prefill_tokens = chunk if config.prefill_chunk_size else usual.n_prefill_tokens
    return replace(
        config,
        max_batch_size=config.max_batch_size or n_seqs,
        max_prefill_batch=config.max_prefill_batch or usual.n_prefill_seqs,
        prefill_chunk_size=chunk,
        max_prefill_tokens=config.max_prefill_tokens or n_prefill_tokens,
    )


def fit_memory(
    config: EngineConfig,
    backend: Backend,
    shapes: ListOf[LayerShape],
    windows: ListOf[int],
    max_context: int,
    dtype: str,
) -> tuple[str, list[KVGroup], Capacity]:
    """The KV type, the groups of layers, and the memory for them.

    Where no type was asked for and the context that was does not fit in `dtype`, q8_0 is taken if it fits.
    """

    def fit(dtype: str) -> tuple[str, list[KVGroup], Capacity]:
        groups = kv_groups(shapes, windows, config.page_size, dtype)
        return dtype, groups, measure(config, groups, max_context, kv_budget(config, backend), state_bytes(shapes))

    try:
        return fit(dtype)
    except ConfigError:
        if config.kv_dtype is not None or "q8_0" not in backend.kv_dtypes:
            raise
        with suppress(ConfigError):
            _, groups, capacity = fit("q8_0")
            note = (
                f"keys and values in q8_0, because a context of {capacity.context_size} tokens does not fit in {dtype}"
            )
            return "q8_0", groups, replace(capacity, note=note)
        raise


def measure(
    config: EngineConfig, groups: ListOf[KVGroup], max_context: int, budget: int, slot_bytes: int = 0
) -> Capacity:
    """Context and pools for this model: every batch place gets a full context if memory allows, at least one does."""
    context = requested_context(config, max_context)
    n_slots = 1 + n_places(config) if slot_bytes else 1
    if n_slots * slot_bytes > budget:
        raise ConfigError(
            f"The states of {n_places(config)} sequences need {n_slots * slot_bytes / 1e6:.0f} MB, but only "
            f"{budget / 1e6:.0f} MB may be used: lower max_batch_size."
        )
    inputs = [group for group in groups if group.n_rows]
    groups = [group for group in groups if not group.n_rows]
    n_inputs = most_inputs(config, inputs, budget)
    budget -= sum(n_inputs * group.input_bytes(config.page_size) for group in inputs)
    n_checkpoints = checkpoints(config, groups, budget - n_slots * slot_bytes, slot_bytes) if slot_bytes else 0
    n_slots += n_checkpoints
    budget -= n_slots * slot_bytes
    n_full = pages_for(context, config.page_size)
    n_fitting = bisect_right(range(1, n_full + 1), budget, key=lambda n: text_bytes(config, groups, n))
    if n_fitting < n_full and (config.context_size or n_fitting < 1):
        raise ConfigError(
            f"A context of {context} tokens needs {text_bytes(config, groups, n_full) / 1e6:.0f} MB of KV memory, but "
            f"only {budget / 1e6:.0f} MB may be used: ask for a smaller context (-c)."
        )
    fitting = context if n_fitting == n_full else n_fitting * config.page_size
    note = "" if fitting == context else f"context cut from {context} to {fitting} tokens to fit the free memory"
    n_pages = share_out(config, groups, n_fitting, budget)
    n_pages += tuple(n_inputs * pages_for(group.n_rows, config.page_size) for group in inputs)
    page_bytes = tuple(group.page_bytes for group in [*groups, *inputs])
    return Capacity(
        fitting, n_pages, page_bytes, n_slots, n_checkpoints, n_inputs=n_inputs, slot_bytes=slot_bytes, note=note
    )


def most_inputs(config: EngineConfig, inputs: ListOf[KVGroup], budget: int) -> int:
    """How many inputs there is memory for: one for each place of a batch, in at most a part of the memory."""
    if not inputs:
        return 0
    n_bytes = sum(group.input_bytes(config.page_size) for group in inputs)
    if n_bytes > budget:
        raise ConfigError(
            f"A recording needs {n_bytes / 1e6:.0f} MB of KV memory, but only {budget / 1e6:.0f} MB may be used."
        )
    return min(n_places(config), max(1, budget // INPUT_SHARE // n_bytes))


def checkpoints(config: EngineConfig, groups: ListOf[KVGroup], budget: int, slot_bytes: int) -> int:
    """How many states the prefix cache may keep."""
    if not (config.prefix_cache and groups):
        return 0
    most = budget // CHECKPOINT_SHARE if config.cache_max_bytes is None else config.cache_max_bytes
    return min(MOST_CHECKPOINTS, min(most, budget // CHECKPOINT_SHARE) // slot_bytes)


def n_places(config: EngineConfig) -> int:
    """Sequences that run at once."""
    return config.max_batch_size or USUAL.n_seqs


def text_pages(config: EngineConfig, group: KVGroup, n_pages: int) -> int:
    """How many pages a text of `n_pages` pages holds at once in the layers of a group."""
    return min(n_pages, most_held(config.page_size, group.window, config.prefill_chunk_size or USUAL.prefill_chunk))


def text_bytes(config: EngineConfig, groups: ListOf[KVGroup], n_pages: int) -> int:
    """Bytes of texts that long in all layers."""
    return sum(text_pages(config, group, n_pages) * group.page_bytes for group in groups)


def share_out(config: EngineConfig, groups: ListOf[KVGroup], n_full: int, budget: int) -> tuple[int, ...]:
    """Pages of every group: a full text's, and what else the budget gives, up to a full text for every batch place.

    Few texts become as long as the context, but all fill their windows: so windows get more places than there are
    full texts, if half of what is left beyond the first text pays for them.
    """
    one_bytes = text_bytes(config, groups, n_full)
    most = n_places(config)
    window_bytes = text_bytes(config, [group for group in groups if group.window], n_full)
    left = budget - one_bytes
    n_windows = min(most, 1 + max(left // one_bytes, left // 2 // window_bytes)) if window_bytes else 1
    left -= (n_windows - 1) * window_bytes
    return tuple(
        n_windows * text_pages(config, g, n_full) if g.window else min(n_full + left // g.page_bytes, n_full * most)
        for g in groups
    )


def step_sizes(config: EngineConfig, capacity: Capacity) -> SchedulerLimits:
    """Limits on one step, all defaults filled in."""
    n_seqs = n_places(config)
    chunk = min(config.prefill_chunk_size or USUAL.prefill_chunk, capacity.context_size)
    return SchedulerLimits(
        n_seqs=n_seqs,
        n_prefill_seqs=min(config.max_prefill_batch or USUAL.n_prefill_seqs, n_seqs),
        n_decode_seqs=min(config.max_decode_batch or n_seqs, config.max_decode_tokens, n_seqs),
        prefill_chunk=chunk,
        n_prefill_tokens=config.max_prefill_tokens or chunk,
        n_active_prefill_tokens=config.active_prefill_tokens,
        n_decoding_first=config.prefill_first_until_active,
        admit_below=config.admit_below,
    )


def cache_pages(config: EngineConfig, capacity: Capacity) -> int:
    """How many pages of each group the prefix cache may keep: the tightest of its limits, at most all there are."""
    limits = [max(capacity.n_pages)]
    if config.cache_max_bytes is not None:
        limits.append(config.cache_max_bytes // sum(capacity.page_bytes))
    if config.cache_max_entries is not None:
        longest = capacity.context_size if config.cache_max_tokens is None else config.cache_max_tokens
        limits.append(config.cache_max_entries * pages_for(longest, config.page_size))
    return min(limits)


def requested_context(config: EngineConfig, max_context: int) -> int:
    """The context asked for, or the model's own; more than it was trained for is refused, not silently wrong."""
    context = config.context_size or max(1, int(max_context * (config.context_share or 1)))
    if context > max_context:
        raise ConfigError(f"A context of {context} tokens was asked for, but the model was trained for {max_context}.")
    return context
