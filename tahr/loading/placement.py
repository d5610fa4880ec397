"""Where every tensor and every pool of a model lies, worked out from sizes before a matrix is read.

Matrices are resident but for tables that a backend looks up in their file, and for those that budgets give another home
(`tahr/offload/homes.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tahr.errors import LoadError
from tahr.offload.homes import Home, Homes, SlotArena, TensorSize
from tahr.offload.plan import PagedPlan

HEAD = "lm_head.weight"
TABLE = "model.embed_tokens.weight"
NO_HOMES: Homes = {}
NOTHING_PAGED = PagedPlan({})


class DeviceFacts(NamedTuple):
    """A memory that weights may lie in; `free_bytes` is None where the system does not say."""

    name: str
    free_bytes: int | None
    is_host: bool = True


class Pool(NamedTuple):
    """Memory of one size for ever, handed out in equal pieces."""

    name: str
    n: int
    unit: str
    n_bytes: int


class PartSize(NamedTuple):
    """The tensors of one part of a model that have the same home."""

    part: str
    home: Home
    n_tensors: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A home for every tensor and a size for every pool."""

    homes: Mapping[str, Home]
    sizes: Mapping[str, TensorSize]
    devices: Sequence[DeviceFacts]
    pools: Sequence[Pool] = ()
    arenas: Sequence[SlotArena] = ()
    step_bytes: int = 0  # read from disk in a step of one token, or copied to the device
    host_step_bytes: int = 0  # bytes of experts that a step of one token reads on the host

    def n_bytes(self, name: str) -> int:
        """Bytes of a tensor at its home."""
        size = self.sizes[name]
        return size.file_bytes if self.homes[name].how == "file" else size.n_bytes

    @property
    def resident_bytes(self) -> int:
        """Memory of the first device that weights take for ever."""
        usual = self.default_home
        return sum(self.n_bytes(name) for name, home in self.homes.items() if home == usual)

    @property
    def slot_bytes(self) -> int:
        """Memory of paged weights: slots, and what reads take."""
        return sum(arena.n_bytes + arena.read_bytes for arena in self.arenas)

    @property
    def file_bytes(self) -> int:
        """Weights that are looked up in their file, which the system may drop from memory."""
        return sum(self.n_bytes(name) for name, home in self.homes.items() if home.how == "file")

    @property
    def paged_bytes(self) -> int:
        """Weights that are in memory only while steps need them."""
        return sum(self.n_bytes(name) for name, home in self.homes.items() if home.how == "paged")

    @property
    def streamed_bytes(self) -> int:
        """Weights in the host's memory that pass through the device."""
        return sum(self.n_bytes(name) for name, home in self.homes.items() if home.how == "streamed")

    @property
    def host_bytes(self) -> int:
        """Weights in the host's memory, of a model that runs on a device."""
        beside = {home for home in self.homes.values() if home.device is None and home.how == "resident"}
        kept = 0 if self.devices[0].is_host else sum(self.n_bytes(n) for n, h in self.homes.items() if h in beside)
        return kept + self.streamed_bytes

    @property
    def pool_bytes(self) -> int:
        """Memory of all pools."""
        return sum(pool.n_bytes for pool in self.pools)

    def parts(self) -> list[PartSize]:
        """Bytes of the model's parts, the largest first."""
        homes = {name: home._replace(layer=None) for name, home in self.homes.items()}
        n_tensors = Counter((part_of(name), home) for name, home in homes.items())
        n_bytes: Counter[tuple[str, Home]] = Counter()
        for name, home in homes.items():
            n_bytes[part_of(name), home] += self.n_bytes(name)
        return [PartSize(part, home, n_tensors[part, home], size) for (part, home), size in n_bytes.most_common()]

    @property
    def default_home(self) -> Home:
        """Where pools are, and matrices of which nothing else is said."""
        return Home(None if self.devices[0].is_host else 0, "resident")

    @property
    def elsewhere(self) -> Homes:
        """Homes of the tensors that are neither at the usual place nor tables in their file."""
        usual = self.default_home
        found = {name: home for name, home in self.homes.items() if home != usual and home.how != "file"}
        if HEAD in found:  # The head may be the table that is looked up
            found[TABLE] = found[HEAD]
        return found

    def place_of(self, home: Home) -> str:
        """A home in words."""
        if home.how == "file":
            return "file, mapped"
        name = "host" if home.device is None else f"{self.devices[home.device].name} {home.device}"
        return f"{name}, {home.how}" + (f", part {home.split.part + 1} of {home.split.n}" if home.split else "")


# The words of a tensor's name that say which part of a model it belongs to: the first that is found counts.
PARTS = {
    "lm_head": "head",
    "shared_expert": "shared experts",
    "experts": "experts",
    "embed": "embeddings",
    "mlp": "feed-forward layers",
    "attn": "attention",
    "layers": "other layers",
}


def part_of(name: str) -> str:
    """The part of a model that a tensor of that canonical name belongs to."""
    return next((part for word, part in PARTS.items() if word in name), "norms, biases and other vectors")


def place(
    sizes: Mapping[str, TensorSize],
    devices: Sequence[DeviceFacts],
    pools: Sequence[Pool] = (),
    paged: PagedPlan = NOTHING_PAGED,
    homes: Homes = NO_HOMES,
) -> Placement:
    """Everything on the first device but what is paged or has one of `homes`; tables that are read in their file stay
    there."""
    resident = Home(None if devices[0].is_host else 0, "resident")
    table = Home(None, "file")
    usual = {name: table if size.file_bytes else resident for name, size in sizes.items()}
    slots = [
        Pool("slots of experts" if arena.by_usage else "slots of layers", arena.n_slots, "slots", arena.n_bytes)
        for arena in paged.arenas
    ]
    if paged.arenas:
        n_bytes = sum(arena.read_bytes for arena in paged.arenas)
        slots.append(Pool("reads of paged weights", len(paged.arenas), "parts", n_bytes))
    if paged.buffer_bytes:
        slots.append(Pool("buffers of layers", 1, "part", paged.buffer_bytes))
    found = {**usual, **homes, **paged.homes}
    return Placement(found, sizes, devices, [*pools, *slots], paged.arenas, paged.step_bytes)


def refuse_too_large(placement: Placement, least_pool_bytes: int = 0) -> None:
    """Refuse weights that the device has no memory for, and say what would be enough."""
    device = placement.devices[0]
    held = placement.resident_bytes + placement.slot_bytes
    if device.free_bytes is None or held <= device.free_bytes:
        return
    least = held + least_pool_bytes
    raise LoadError(
        f"The model needs more memory than is free: its weights take {held / 1e6:.1f} MB, with the "
        f"smallest cache it needs at least {least / 1e6:.1f} MB, and {device.free_bytes / 1e6:.1f} MB are left "
        f"({device.name}). {'Lower the ram_budget, use' if placement.arenas else 'Use'} a smaller model or one "
        "quantised further, or end other programs."
    )
