"""A store of things by key, in bounded memory: pages by block hash on the host, and copies of texts."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Something that takes memory."""

    @property
    def n_bytes(self) -> int: ...


Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item", bound=Sized)


class BoundedStore(Generic[Key, Item]):
    """At most `max_bytes` of items; the one used longest ago gives way, unless it is pinned."""

    def __init__(self, max_bytes: int, max_items: int | None = None):
        self.max_bytes = max_bytes
        self.max_items = max_items
        self.n_bytes = 0
        self.n_evicted = 0
        self._items: OrderedDict[Key, Item] = OrderedDict()  # the one used last at the end
        self._n_pins: dict[Key, int] = {}
        self._pinned_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: Key) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[Key]:
        return iter(self._items)

    def put(self, key: Key, item: Item) -> bool:
        """Keep an item, in place of what the key named before; False if there is no memory for it."""
        self.remove(key)
        if not self.free_memory(item.n_bytes):
            return False
        self._items[key] = item
        self.n_bytes += item.n_bytes
        return True

    def free_memory(self, n_bytes: int) -> bool:
        """Evict items until so many bytes fit; False, and nothing is evicted, if pinned ones leave too little."""
        if n_bytes > self.max_bytes - self._pinned_bytes or len(self._n_pins) == self.max_items:
            return False
        while self.n_bytes + n_bytes > self.max_bytes or len(self._items) == self.max_items:
            self._drop(next(key for key in self._items if key not in self._n_pins))
            self.n_evicted += 1
        return True

    def get(self, key: Key) -> Item | None:
        """The item of a key; it counts as used now."""
        item = self._items.get(key)
        if item is not None:
            self._items.move_to_end(key)
        return item

    def touch(self, keys: Iterable[Key]) -> None:
        """Count items as used now, those of them that are here."""
        for key in keys:
            if key in self._items:
                self._items.move_to_end(key)

    def remove(self, key: Key) -> None:
        """Forget an item and its pins; does nothing if it is not here."""
        if key in self._items:
            if self._n_pins.pop(key, 0):
                self._pinned_bytes -= self._items[key].n_bytes
            self._drop(key)

    def clear(self) -> None:
        for key in list(self._items):
            self.remove(key)

    # ---- pins -------------------------------------------------------------------------------------------------

    @property
    def n_free_bytes(self) -> int:
        """Bytes that could be put here, if all that is not pinned gave way."""
        return self.max_bytes - self._pinned_bytes

    def pin(self, key: Key) -> None:
        """Keep an item that is here until it is unpinned as often as it was pinned."""
        if key not in self._n_pins:
            self._pinned_bytes += self._items[key].n_bytes
            self._items.move_to_end(key)
        self._n_pins[key] = self._n_pins.get(key, 0) + 1

    def unpin(self, key: Key) -> None:
        """Take back one pin; does nothing if the item was removed meanwhile."""
        n = self._n_pins.get(key, 0)
        if n > 1:
            self._n_pins[key] = n - 1
        elif n:
            del self._n_pins[key]
            self._pinned_bytes -= self._items[key].n_bytes

    # ---- integrity --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Sums agree with items, and bounds hold."""
        assert self.n_bytes == sum(item.n_bytes for item in self._items.values()) <= self.max_bytes
        assert self._pinned_bytes == sum(self._items[key].n_bytes for key in self._n_pins)
        assert self.max_items is None or len(self) <= self.max_items

    def _drop(self, key: Key) -> None:
        self.n_bytes -= self._items.pop(key).n_bytes
