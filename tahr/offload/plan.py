"""Homes for the tensors of a model that is larger than its memory, from sizes alone.

Steps read the layers behind those that stay, in turn, and the experts that rows are sent to. The first layers stay, as
many as there is memory for.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from tahr.errors import LoadError
from tahr.offload.homes import Home, Homes, SlotArena, TensorSize, read_bytes
from tahr.offload.policy import OffloadPolicy, layer_of

PAGED = Home(None, "paged")
RESIDENT = Home(None, "resident")
LEAST_SLOT_BYTES = 4096
USUAL_SLOT_BYTES = 1 << 20  # a disk reads at full speed in pieces of this size
MOST_WASTE = 0.05  # share of slots that may stay empty where smaller ones would be fuller


class PagedPlan(NamedTuple):
    """Homes of tensors, and the memory that paged ones share."""

    homes: Homes
    arenas: Sequence[SlotArena] = ()
    step_bytes: int = 0  # read from disk in a step of one token, if all experts are used alike; or copied to a device
    buffer_bytes: int = 0  # memory of a device that streamed layers pass through


class Group(NamedTuple):
    """Tensors that would share an arena, and the size of its slots: some of them keep that of all."""

    sizes: Mapping[str, TensorSize]
    by_usage: bool
    slot_bytes: int

    @staticmethod
    def of(sizes: Mapping[str, TensorSize], by_usage: bool) -> "Group":
        """With slots of a size that suits these."""
        return Group(sizes, by_usage, best_slot_bytes(sizes.values()) if sizes else 0)

    @property
    def n_bytes(self) -> int:
        return sum(size.n_bytes for size in self.sizes.values())

    def least_slots(self) -> int:
        """Slots for what an op reads at once, and for what is read meanwhile: two layers, or all experts of one."""
        by_layer: dict[int, list[int]] = {}
        by_part: dict[str, int] = {}  # matrices outside the layers of the text model
        for name, size in self.sizes.items():
            n = n_slots([size], self.slot_bytes)
            layer = layer_of(name)
            if layer is not None:
                by_layer.setdefault(layer, []).append(n)
                continue
            part = name.rsplit(".", 2)[0]  # one op may read all of it
            by_part[part] = by_part.get(part, 0) + n
        others = list(by_part.values())
        if self.by_usage:
            return max([*others, *(sum(sorted(each)[-2:]) for each in by_layer.values())])
        sums = [sum(each) for _, each in sorted(by_layer.items())]
        return max([*others, *map(sum, zip(sums, sums[1:] or [0], strict=False))])

    def least_bytes(self) -> int:
        """Bytes of these slots, and of the memory of reads."""
        return self.least_slots() * self.slot_bytes + read_bytes(self.slot_bytes)

    def arena(self, n_bytes: int, policy: OffloadPolicy) -> SlotArena:
        """An arena that takes at most so many bytes."""
        most = n_slots(self.sizes.values(), self.slot_bytes)
        n = min(most, (n_bytes - read_bytes(self.slot_bytes)) // self.slot_bytes)
        if n < self.least_slots():
            raise LoadError(
                f"Steps need {self.least_slots()} slots of paged weights at a time, and there is memory for "
                f"{max(n, 0)}: raise the ram_budget."
            )
        return SlotArena(self.slot_bytes, n, self.by_usage, policy.prefetch_n_ahead * PIECES_OF_A_LAYER)


PIECES_OF_A_LAYER = 4  # matrices that are read ahead for each layer that is


def best_slot_bytes(sizes: Collection[TensorSize]) -> int:
    """The largest size of slots, of those that are usual, that leaves little of them empty."""
    largest = max(size.panels.n_bytes for size in sizes if size.panels)
    usual = [LEAST_SLOT_BYTES << i for i in range(32)]
    possible = [n for n in usual if n >= largest and (n <= USUAL_SLOT_BYTES or n < 2 * largest)]
    taken = {n: n * n_slots(sizes, n) for n in possible}
    full = [n for n in possible if taken[n] <= (1 + MOST_WASTE) * sum(size.n_bytes for size in sizes)]
    return max(full) if full else min(possible, key=lambda n: taken[n])


def n_slots(sizes: Iterable[TensorSize], slot_bytes: int) -> int:
    """Slots that tensors fill."""
    return sum(size.panels.n_pieces * size.panels.slots_each(slot_bytes) for size in sizes if size.panels)


def plan_paging(
    sizes: Mapping[str, TensorSize],
    budget: int,
    policy: OffloadPolicy,
    n_layers: int,
    other_bytes: int = 0,
    used_share: float = 1.0,
) -> PagedPlan:
    """Homes of the tensors that are not resident where weights and `other_bytes` of pools have `budget` bytes in all.

    `used_share` is the part of a layer's experts that a token is sent to.
    """
    total = sum(size.n_bytes for size in in_memory(sizes).values())
    if total + other_bytes <= budget:
        return PagedPlan({})
    pageable = {name: s for name, s in in_memory(sizes).items() if s.panels and not policy.pins(name, n_layers)}
    stacks = Group.of({name: s for name, s in pageable.items() if s.panels and s.panels.is_stack}, by_usage=True)
    layers = Group.of({name: s for name, s in pageable.items() if name not in stacks.sizes}, by_usage=False)
    left = budget - other_bytes - (total - stacks.n_bytes - layers.n_bytes)
    if stacks.sizes and left - layers.n_bytes >= stacks.least_bytes():
        return plan_groups([(stacks, left - layers.n_bytes)], policy, used_share)
    groups = [group for group in (layers, stacks) if group.sizes]
    least = sum(group.least_bytes() for group in groups)
    if left < least or not groups:
        refuse_budget(budget, min(budget - left + least, total + other_bytes), policy)
    if not layers.sizes:
        return plan_groups([(stacks, left)], policy, used_share)
    kept = first_that_fit(layers, left - least)
    left -= kept.n_bytes
    rest = layers._replace(sizes={name: s for name, s in layers.sizes.items() if name not in kept.sizes})
    spare = left - least
    shares = [(rest, layers.least_bytes() + (0 if stacks.sizes else spare))]
    if stacks.sizes:
        shares.append((stacks, stacks.least_bytes() + spare))
    return plan_groups(shares, policy, used_share)


def in_memory(sizes: Mapping[str, TensorSize]) -> dict[str, TensorSize]:
    """Tensors but those that are looked up in their file."""
    return {name: size for name, size in sizes.items() if not size.file_bytes}


def first_that_fit(group: Group, n_bytes: int) -> Group:
    """The first layers, as many of their tensors as fit into so many bytes."""
    kept = {}
    for name in sorted(group.sizes, key=lambda name: (layer_of(name) is None, layer_of(name) or 0)):
        if group.sizes[name].n_bytes > n_bytes:
            break
        kept[name] = group.sizes[name]
        n_bytes -= kept[name].n_bytes
    return group._replace(sizes=kept)


def plan_groups(shares: Sequence[tuple[Group, int]], policy: OffloadPolicy, used_share: float) -> PagedPlan:
    """Homes and arenas of groups that have so many bytes each."""
    shares = [(group, n_bytes) for group, n_bytes in shares if group.sizes]
    arenas = [group.arena(n_bytes, policy) for group, n_bytes in shares]
    read = 0.0
    for (group, _), arena in zip(shares, arenas, strict=True):
        missing = max(0.0, 1 - arena.n_bytes / (arena.slot_bytes * n_slots(group.sizes.values(), arena.slot_bytes)))
        read += missing * group.n_bytes * (used_share if group.by_usage else 1)
    return PagedPlan({name: PAGED for group, _ in shares for name in group.sizes}, arenas, int(read))


def refuse_budget(budget: int, least: int, policy: OffloadPolicy) -> NoReturn:
    """Refuse a budget below what the model can run in."""
    pinned = policy.pin_embeddings or policy.pin_output_head or policy.pin_last_n_layers
    least_mb = -(-least // 10**5) / 10  # rounded up, so that what is said is enough
    raise LoadError(
        f"A ram_budget of {budget / 1e6:.1f} MB is too small for this model: with two layers, its head or all experts "
        f"of one layer in memory at a time, and its cache beside them, it needs at least {least_mb:.1f} MB. Raise the "
        f"budget, use a smaller context (-c){', pin less' if pinned else ''} or choose a smaller model."
    )
