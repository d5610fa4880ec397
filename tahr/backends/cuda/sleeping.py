"""Weights that wait in the host's memory while a card's is free for others.

Tensors stay the objects that they are: their storages become empty and are filled again, so nothing that refers to them
has to know. Addresses change, so plans that were captured before are of no use.
"""

from collections.abc import Iterable, Iterator
from types import MethodType
from typing import NamedTuple

import torch

from tahr.backends.cuda.pinned import PinnedBlock
from tahr.errors import GenerateError

OURS = "tahr."  # modules whose objects are looked into
ALIGNMENT = 256  # bytes between storages in the host's copy


class SleepingStorage(NamedTuple):
    """A storage without memory."""

    storage: torch.UntypedStorage
    n_bytes: int
    place: int | None  # its bytes in the host's copy; None: its content is lost


class SleepingMemory:
    """The memory of one engine on one device. The host's copy is kept after a wake, because locking it takes long."""

    def __init__(self, device: torch.device):
        self._device = device
        self._asleep: list[SleepingStorage] = []
        self._host: torch.Tensor | None = None
        self._block: PinnedBlock | None = None

    def sleep(self, kept: Iterable[object], lost: Iterable[object]) -> int:
        """Empty all storages that these lead to; the bytes that are free then."""
        gone = storages_in(lost, self._device)
        saved = {key: storage for key, storage in storages_in(kept, self._device).items() if key not in gone}
        place = 0
        for storage in saved.values():
            self._asleep.append(SleepingStorage(storage, storage.nbytes(), place))
            place += -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        host = self._host_bytes(place)
        for each in self._asleep:
            part_of(host, each).copy_(bytes_of(each.storage), non_blocking=True)
        self._synchronize()
        self._asleep += [SleepingStorage(storage, storage.nbytes(), None) for storage in gone.values()]
        self._empty()
        return sum(each.n_bytes for each in self._asleep)

    def wake(self) -> None:
        """Fill them again."""
        try:
            for each in self._asleep:
                each.storage.resize_(each.n_bytes)
        except RuntimeError as error:  # torch's error of no memory is one
            self._empty()
            gigabytes = sum(each.n_bytes for each in self._asleep) / 1e9
            message = f"The device has no {gigabytes:.1f} GB free to wake the model: end what has taken them meanwhile."
            raise GenerateError(message) from error
        for each in self._asleep:
            if each.place is None:
                bytes_of(each.storage).zero_()
            else:
                assert self._host is not None
                bytes_of(each.storage).copy_(part_of(self._host, each), non_blocking=True)
        self._synchronize()
        self._asleep.clear()

    def _empty(self) -> None:
        for each in self._asleep:
            each.storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _host_bytes(self, n_bytes: int) -> torch.Tensor:
        if self._host is None or len(self._host) < n_bytes:
            self._host = self._block = None
            if self._device.type == "cuda":
                self._block = PinnedBlock(n_bytes)
            self._host = self._block.memory if self._block else torch.empty(n_bytes, dtype=torch.uint8)
        return self._host

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def part_of(host: torch.Tensor, each: SleepingStorage) -> torch.Tensor:
    """The host's copy of a storage."""
    assert each.place is not None
    return host[each.place : each.place + each.n_bytes]


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """A storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def storages_in(things: Iterable[object], device: torch.device) -> dict[int, torch.UntypedStorage]:
    """The storages of all tensors on a device that objects lead to, by their addresses; views share one."""
    storages = (tensor.untyped_storage() for tensor in tensors_in(things) if tensor.device.type == device.type)
    return {each.data_ptr(): each for each in storages if each.nbytes() and each.resizable()}


def tensors_in(things: Iterable[object]) -> Iterator[torch.Tensor]:
    """All tensors that objects of ours lead to."""
    seen: set[int] = set()
    waiting = list(things)
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            yield each
        else:
            waiting += parts_of(each)


def parts_of(thing: object) -> Iterable[object]:
    """Values of an object's fields, or of a container."""
    if isinstance(thing, tuple | list):
        return thing
    if isinstance(thing, dict):
        return thing.values()
    if isinstance(thing, MethodType):
        return (thing.__self__,)
    if not type(thing).__module__.startswith(OURS):
        return ()
    slots = (name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()))
    found = [getattr(thing, name, None) for name in slots if name != "__weakref__"]
    return [*found, *getattr(thing, "__dict__", {}).values()]
