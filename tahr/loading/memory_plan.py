"""The pages and states that an engine gets, worked out before they are made."""

from dataclasses import dataclass, replace

from tahr.backends.api import Backend, LayerShape, MemoryLayout
from tahr.config import EngineConfig
from tahr.engine.scheduling.work import MAX_CHUNK
from tahr.errors import ConfigError
from tahr.loading.capacity import Capacity, KVGroup, fit_memory, state_bytes, with_step_defaults
from tahr.loading.row_inputs import image_rows_of
from tahr.loading.speculation import Draft, check_context, draft_windows, n_draft_tokens
from tahr.loading.whole_texts import encoder_config, longest_text, n_full_texts
from tahr.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Layout of the memory in which layers keep their sequences."""

    config: EngineConfig  # complete: the sizes of steps are filled in
    shapes: tuple[LayerShape, ...]  # all layers, a draft model's last
    dtype: str
    groups: list[KVGroup]
    capacity: Capacity
    n_decode_tokens: int
    n_in_flight: int  # tokens of a sequence that may be computed and not yet accepted

    @property
    def layout(self) -> MemoryLayout:
        """The memory as a backend makes it."""
        capacity = self.capacity
        groups = tuple(group.layers for group in self.groups)
        return MemoryLayout(self.shapes, capacity.n_pages, self.config.page_size, self.dtype, groups, capacity.n_slots)


def plan_memory(
    backend: Backend, decoder: Decoder, config: EngineConfig, draft: Draft | None = None, whole_texts: int = 0
) -> MemoryPlan:
    """Pages and states for a decoder, see `build_engine`; nothing is made."""
    if decoder.config.embeds_whole:
        config = encoder_config(config, backend)
        whole_texts = n_full_texts(config, decoder.config, backend)
    config = with_step_defaults(config, backend, state_bytes(decoder.memory))
    # A chunk holds an image that is computed in one step.
    chunk = max(config.prefill_chunk_size or 0, image_rows_of(decoder))
    config = replace(config, prefill_chunk_size=chunk)
    memory = decoder.memory
    n_decode_tokens = 1 + n_draft_tokens(config, draft)
    windows = [0] * len(memory) if whole_texts else list(decoder.windows)
    if draft:
        memory = memory + draft.decoder.memory
        windows = windows + draft_windows(draft, windows)
    n_in_flight = min(max(chunk, n_decode_tokens) * (2 if backend.overlaps else 1), MAX_CHUNK)
    requested = replace(
        config, max_batch_size=whole_texts or config.max_batch_size, prefill_chunk_size=n_in_flight
    )  # least capacity
    dtype = check_kv_dtype(config.kv_dtype, backend)
    dtype, groups, capacity = fit_memory(requested, backend, memory, windows, longest_text(decoder.config), dtype)
    if n_decode_tokens > 1:
        check_context(draft, capacity.context_size, has_states=capacity.slot_bytes > 0)
    return MemoryPlan(config, memory, dtype, groups, capacity, n_decode_tokens, n_in_flight)


def check_kv_dtype(requested: str | None, backend: Backend) -> str:
    """The type of keys and values, or KEYS/VALUES; the backend's default where nothing is asked."""
    sides = [side or backend.kv_dtypes[0] for side in (requested or "").split("/")]
    for dtype in sides:
        if dtype not in backend.kv_dtypes:
            raise ConfigError(
                f"KV type {dtype!r} is not one the {backend.name} backend has: {', '.join(backend.kv_dtypes)}."
            )
    if len(sides) > 2:
        raise ConfigError(f"{requested!r} names {len(sides)} KV types: give one, or KEYS/VALUES.")
    if len(set(sides)) > 1 and not backend.mixes_kv_dtypes:
        raise ConfigError(
            f"The {backend.name} backend stores keys and values in one type, not in {' and '.join(sides)}: "
            "ask for the same on both sides."
        )
    return sides[0] if len(set(sides)) == 1 else "/".join(sides)
