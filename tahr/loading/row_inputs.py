"""Row slots and a tower, for an engine whose model reads rows of images or speech."""

from collections.abc import Sequence
from dataclasses import dataclass

from tahr.backends.api import Backend, Extras, RowStore, StepLimits
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.executor.local import LocalExecutor
from tahr.executor.plans import TOWER_PAGE
from tahr.kv.pages import pages_for
from tahr.kv.row_slots import InputPages, RowSlots
from tahr.loading.capacity import KVGroup
from tahr.models.decoder import Decoder
from tahr.models.parts.tower import Tower

ROW_NUMBER_BYTES = 4
VOICE_ROWS = 64  # vectors of voices, of a model that speaks
SMALL_IMAGES = 16  # images of one row each that are computed together, or more in larger steps
TOKENS_OF_INPUT = 64  # tokens of a small input: so many fit the step of a tower
TOWER_IMAGES = 4  # images of a chat that are computed together


@dataclass(frozen=True, slots=True)
class RowInputs:
    """Memory for rows and for the steps that compute them."""

    n_bytes: int | None  # memory of row slots; None: the model reads none, and the host takes what a tower makes
    tower: Tower | None = None  # None: rows come from the host
    tower_inputs: int = SMALL_IMAGES  # inputs of a tower's step
    n_longest: int | None = None  # tokens of the longest input; None: as many as a step has


def inputs_of(decoder: Decoder, config: EngineConfig) -> RowInputs | None:
    """Memory for the steps of a model's own tower, if it has one, and for the rows that it makes for the model."""
    if decoder.tower is None:
        return RowInputs(VOICE_ROWS * row_bytes(decoder)) if decoder.config.speech else None
    vision = decoder.config.chat_vision
    if vision is None:
        n_inputs = max(SMALL_IMAGES, decoder.tower.n_tokens // TOKENS_OF_INPUT)
        images = decoder.config.vision
        longest = max(images.n_most_patches, images.n_positions) if images else None
        return RowInputs(None, decoder.tower, n_inputs, longest)
    if vision.side:
        decoder.tower.n_tokens = max(decoder.tower.n_tokens, vision.side**2 + vision.has_class)
        return RowInputs(config.feature_cache_bytes, decoder.tower, tower_inputs=TOWER_IMAGES)
    decoder.tower.n_tokens = config.image_max_tokens * vision.n_merged
    # The image with the most windows is one square high; windows at the ends of images may be smaller.
    n_windows = config.image_max_tokens // vision.window if vision.window else 0
    return RowInputs(config.feature_cache_bytes, decoder.tower, tower_inputs=n_windows + TOWER_IMAGES)


def image_rows_of(decoder: Decoder) -> int:
    """Rows of an image whose tokens see each other; 0: they do not."""
    vision = decoder.config.chat_vision
    return vision.n_fixed_rows if decoder.tower and vision and vision.place.both_ways else 0


def make_row_store(backend: Backend, decoder: Decoder, inputs: RowInputs) -> RowStore | None:
    """Row slots, up to the memory they may take."""
    backend.check_rows()
    n_slots = n_row_slots(decoder, inputs)
    return backend.row_store(n_slots, decoder.row_width) if n_slots else None


def n_row_slots(decoder: Decoder, inputs: RowInputs) -> int:
    """Row slots that the memory for them holds; 0: the model reads none."""
    if inputs.n_bytes is None:
        return 0
    n_slots = inputs.n_bytes // row_bytes(decoder)
    if n_slots < 1:
        raise ConfigError(f"{inputs.n_bytes} bytes hold no row of {decoder.row_width} numbers: give rows more memory.")
    return n_slots


def row_bytes(decoder: Decoder) -> int:
    """Memory of a row slot."""
    return ROW_NUMBER_BYTES * decoder.row_width


def extras_of(decoder: Decoder) -> int:
    """Some of `Extras`, for steps of a decoder that reads rows."""
    return int(Extras.ROWS | Extras.ROPE if decoder.has_axes else Extras.ROWS)


def slots_for(buffer: RowStore | None, groups: Sequence[KVGroup], n_inputs: int, page_size: int) -> RowSlots:
    """Slots of rows; or of inputs, where the last group of layers looks at these."""
    if n_inputs:
        inputs = groups[-1]
        return RowSlots(n_inputs, inputs.input_bytes(page_size), InputPages(inputs.n_rows, page_size))
    return RowSlots(buffer.n_slots, ROW_NUMBER_BYTES * buffer.width) if buffer else RowSlots(0)


def add_tower(executor: LocalExecutor, inputs: RowInputs) -> None:
    """Let the executor run the tower, if there is one."""
    if inputs.tower:
        n = inputs.tower.n_tokens
        longest = inputs.n_longest or n
        limits = StepLimits(n, inputs.tower_inputs, n, pages_for(longest, TOWER_PAGE), n_tokens_per_seq=longest)
        executor.add_tower(inputs.tower, limits)
