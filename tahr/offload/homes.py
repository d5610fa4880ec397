"""Where a tensor lives, as plain data.

| where | home | computed by |
|---|---|---|
| in the memory of device 0 | `Home(0, "resident")` | the device |
| in host memory | `Home(None, "resident")` | the CPU, also where other tensors of the model are on a GPU |
| in host memory, copied through device 0 | `Home(0, "streamed")` | the device |
| in the model's file, read in pieces into a bounded arena of host memory | `Home(None, "paged")` | the CPU |
| in the model's file, mapped; single rows of it are looked up | `Home(None, "file")` | |
"""

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from tahr.errors import ConfigError

How = Literal["resident", "streamed", "paged", "file"]


class Panels(NamedTuple):
    """A matrix, or a stack of such, as it can be paged: each of `n_pieces` in so many panels of `n_bytes`."""

    n_pieces: int
    n_panels: int
    n_bytes: int
    is_stack: bool

    def slots_each(self, slot_bytes: int) -> int:
        """Slots that a piece fills."""
        return -(-self.n_panels // (slot_bytes // self.n_bytes))


class TensorSize(NamedTuple):
    """A tensor in numbers: what a backend keeps of it, and what of it is read in its file for ever."""

    format: str
    n_bytes: int
    file_bytes: int = 0
    panels: Panels | None = None  # None: it cannot be paged


class TensorSplit(NamedTuple):
    """The part of a tensor: number `part` of `n` along an axis."""

    axis: int
    part: int
    n: int


N_READERS = 4  # reads at once: one does not keep a disk busy
READ_SHARE = 1.25  # memory that a read takes, in slots
FETCH_BYTES = 2 * 4096


def read_bytes(slot_bytes: int) -> int:
    """Memory beside slots of that size: that of reads, and a slot of zeros."""
    return N_READERS * (int(READ_SHARE * slot_bytes) + FETCH_BYTES) + slot_bytes


class SlotArena(NamedTuple):
    """Host memory that paged matrices share, in slots of equal size; stacks of matrices have one of their own."""

    slot_bytes: int
    n_slots: int
    by_usage: bool  # experts: which are used cannot be foreseen
    n_ahead: int = 0  # matrices read ahead, where steps use them in one order

    @property
    def n_bytes(self) -> int:
        return self.slot_bytes * self.n_slots

    @property
    def read_bytes(self) -> int:
        """Memory beside the slots."""
        return read_bytes(self.slot_bytes)


class Home(NamedTuple):
    """Where a tensor is: on a device, or on the host where `device` is None. The table above says what each means."""

    device: int | None
    how: How
    split: TensorSplit | None = None
    layer: int | None = None  # number of a streamed one's layer, whose tensors travel together


Homes = Mapping[str, Home]  # keys are canonical names; tensors at their backend's usual place are left out
# A backend's names of the homes it has, see `Backend.homes`: how, and where if that is not the usual place.
ON_HOST = "host"
USUAL_HOMES = frozenset({"resident", "file"})


def kind_of(home: Home, has_own_memory: bool) -> str:
    """The name of a home among `Backend.homes`."""
    return ON_HOST if has_own_memory and home.device is None and home.how == "resident" else home.how


def refuse_homes(homes: Homes, known: Collection[str], backend: str, has_own_memory: bool) -> None:
    """Refuse homes that a backend has no mechanism for."""
    wanted = {kind_of(home, has_own_memory): name for name, home in homes.items()}
    if missing := sorted(wanted.keys() - set(known)):
        raise ConfigError(
            f"The {backend} backend cannot have weights {missing[0]} ({wanted[missing[0]]}): leave out the budget that "
            "asks for it, or choose a smaller model or another backend."
        )
