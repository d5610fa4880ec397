"""State checkpoints: copies of states at the ends of pages, with which texts of models with states can begin.

Keys and values of a text hold all of its beginnings, but a state only its end. So a text can be continued from the
prefix cache where its pages are cached and a checkpoint was made.
"""

from collections import OrderedDict

from tahr.kv.slots import StateSlots

LEAST_KEPT = 256  # tokens before a state that is worth a checkpoint: a prompt is cut there, which costs a step more


class StateCheckpoints:
    """States by block hash, in slots that no sequence gets; the one used longest ago gives way to a new one.

    Copies are made before the next step, like those of forks: see `StateSlots`.
    """

    def __init__(self, slots: StateSlots, n_most: int, state_bytes: int = 0):
        self._slots = slots
        self._free = list(range(slots.n_slots + n_most, slots.n_slots, -1))
        self.state_bytes = state_bytes
        self._by_hash: OrderedDict[bytes, int] = OrderedDict()  # slots, the one used last at the end

    def __len__(self) -> int:
        return len(self._by_hash)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._by_hash

    @property
    def n_bytes(self) -> int:
        return len(self) * self.state_bytes

    def insert(self, block_hash: bytes, slot: int) -> None:
        """Keep the state that a slot has now."""
        if block_hash in self._by_hash:
            self._by_hash.move_to_end(block_hash)
        elif self._free or self._by_hash:
            own = self._free.pop() if self._free else self._by_hash.popitem(last=False)[1]
            self._by_hash[block_hash] = own
            self._slots.copy(slot, own)

    def restore(self, block_hash: bytes, slot: int) -> None:
        """Let a slot begin with the state that was kept."""
        self._by_hash.move_to_end(block_hash)
        self._slots.copy(self._by_hash[block_hash], slot)

    def take_loading(self) -> int:
        """A slot for a state that is on its way, found by nobody until `loaded`; 0: there is none.

        A copy that is still to be made would mix with what comes: its slots are left alone.
        """
        if self._free:
            return self._free.pop()
        for block_hash, slot in self._by_hash.items():
            if not self._slots.is_copied(slot):
                del self._by_hash[block_hash]
                return slot
        return 0

    def loaded(self, slot: int, block_hash: bytes) -> None:
        """Let a state be found that has come into a slot, unless there is one already."""
        if block_hash in self._by_hash:
            self._free.append(slot)
        else:
            self._by_hash[block_hash] = slot

    def clear(self) -> None:
        """Let nobody begin with any of these states."""
        for block_hash in list(self._by_hash):
            self.remove(block_hash)

    def remove(self, block_hash: bytes) -> None:
        """Let nobody begin with this state."""
        if block_hash in self._by_hash:
            self._free.append(self._by_hash.pop(block_hash))
