"""State slots: where sequences keep the fixed-size states of layers that have no pages."""

from tahr.kv.pages import PagePool


class StateSlots:
    """Slots 1 to `n_slots`, each held by one sequence; slot 0, the null slot, belongs to nobody.

    Like pages, a slot released while a step is in flight is not taken again before that step has landed. The state
    of a fork is copied before the next step: until then the copies wait here, by their targets.
    """

    def __init__(self, n_slots: int):
        self.n_slots = n_slots
        self._pool = PagePool(n_slots, page_size=1)
        self._copies: dict[int, int] = {}  # source by target

    @property
    def n_free(self) -> int:
        return self._pool.n_free

    @property
    def n_leaving(self) -> int:
        return self._pool.n_leaving

    @property
    def n_used(self) -> int:
        return self._pool.n_used

    def take(self) -> int:
        """A slot; the first token of a text starts it from zeros."""
        (page,) = self._pool.take(1)
        self._copies.pop(page + 1, None)
        return page + 1

    def release(self, slot: int) -> None:
        self._pool.release([slot - 1])

    def copy(self, source: int, target: int) -> None:
        """Let the target begin with the state that the source has now."""
        self._copies[target] = self._copies.get(source, source)

    def is_copied(self, slot: int) -> bool:
        """Whether a copy from or to a slot is still to be made."""
        return any(slot in copy for copy in self._copies.items())

    def take_copies(self) -> list[tuple[int, int]]:
        """The copies to make before the next step, as (from, to)."""
        copies = [(source, target) for target, source in self._copies.items()]
        self._copies.clear()
        return copies

    def launched(self) -> None:
        self._pool.launched()

    def landed(self) -> None:
        self._pool.landed()

    def check(self, held: list[int]) -> None:
        """Every slot is free, or held by just one of the given sequences."""
        assert 0 not in held, "a sequence runs in the null slot"
        self._pool.check([slot - 1] for slot in held)


class TokenSlots:
    """Slots 1 to `n_slots` of the device's memory for sampled tokens, each held by one sequence.

    A step names a token that the host does not know yet by the slot of its sequence. What is sampled for slot 0, which
    belongs to nobody, can be named by no step. A slot released while a step is in flight is taken again when that step
    has landed.
    """

    def __init__(self, n_slots: int):
        self._pool = PagePool(n_slots, page_size=1)

    def take(self) -> int:
        """A slot; 0 if there is none: then the sequence waits for each of its tokens."""
        if not self._pool.n_free:
            return 0
        (page,) = self._pool.take(1)
        return page + 1

    def release(self, slot: int) -> None:
        if slot:
            self._pool.release([slot - 1])

    def launched(self) -> None:
        self._pool.launched()

    def landed(self) -> None:
        self._pool.landed()

    def check(self, held: list[int]) -> None:
        """Every slot is free, or held by just one of the given sequences."""
        self._pool.check([slot - 1] for slot in held if slot)
