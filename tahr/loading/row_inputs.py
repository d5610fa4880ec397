"""Row slots and a tower, for an engine whose model reads rows of images or speech."""

from dataclasses import dataclass

from tahr.backends.api import Backend, Extras, RowStore, StepLimits
from tahr.errors import ConfigError
from tahr.executor.local import LocalExecutor
from tahr.executor.plans import TOWER_PAGE
from tahr.kv.pages import pages_for
from tahr.kv.row_slots import RowSlots
from tahr.models.decoder import Decoder
from tahr.models.parts.tower import Tower

ROW_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class RowInputs:
    """Memory for rows and for the steps that compute them."""

    n_bytes: int  # memory of row slots
    tower: Tower | None = None  # None: rows come from the host
    tower_tokens: int = 4096  # tokens of a tower's step, and of the longest input
    tower_inputs: int = 16  # inputs of a tower's step


def make_row_store(backend: Backend, decoder: Decoder, inputs: RowInputs) -> RowStore:
    """Row slots, up to the memory they may take."""
    backend.check_rows()
    n_slots = inputs.n_bytes // (ROW_NUMBER_BYTES * decoder.row_width)
    if n_slots < 1:
        raise ConfigError(f"{inputs.n_bytes} bytes hold no row of {decoder.row_width} numbers: give rows more memory.")
    return backend.row_store(n_slots, decoder.row_width)


def extras_of(decoder: Decoder) -> int:
    """Some of `Extras`, for steps of a decoder that reads rows."""
    return int(Extras.ROWS | Extras.ROPE if decoder.has_axes else Extras.ROWS)


def row_slots(buffer: RowStore) -> RowSlots:
    return RowSlots(buffer.n_slots, ROW_NUMBER_BYTES * buffer.width)


def add_tower(executor: LocalExecutor, inputs: RowInputs) -> None:
    """Let the executor run the tower, if there is one."""
    if inputs.tower:
        n = inputs.tower_tokens
        executor.add_tower(inputs.tower, StepLimits(n, inputs.tower_inputs, n, pages_for(n, TOWER_PAGE)))
