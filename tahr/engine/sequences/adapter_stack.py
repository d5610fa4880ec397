"""Adapters as requests use them."""

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class LoadedAdapter:
    """An adapter in a slot. It leaves the slot when it has been removed and nobody uses it any more."""

    name: str
    path: str
    digest: str
    slot: int
    scale: float  # default, where a request names none
    rank: int
    n_bytes: int
    base: str
    n_users: int = 0  # sequences, and the engine itself where it is applied to all
    is_removed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class AdapterStack:
    """Changes to the weights of a sequence: the sum of some adapters, each scaled."""

    adapters: tuple[LoadedAdapter, ...]
    parts: tuple[tuple[int, float], ...]  # (slot, scale) of each

    @property
    def digest(self) -> str:
        """Equal digests mean equal weights: part of the block hashes, and of snapshots."""
        return "+".join(f"{a.digest}*{scale!r}" for a, (_, scale) in zip(self.adapters, self.parts, strict=True))


NO_STACK = AdapterStack((), ())
