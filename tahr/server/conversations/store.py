"""Responses that may be asked for again, or continued by their id. What they may take is bounded in three ways."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tahr.server.http.errors import HttpError

Owner = str  # a key's digest, of bounded length: other clients cannot see the owner's responses
# about what Python takes beside the texts
ENTRY_BYTES = 1024
ITEM_BYTES = 256


class StoredItem(NamedTuple):
    """An item of a conversation as JSON."""

    id: str
    data: bytes


class StoredItems:
    """Items, and how much memory they take, which is worked out once."""

    def __init__(self, items: Iterable[StoredItem]):
        self.items = tuple(items)
        self.n_bytes = sum(ITEM_BYTES + len(item.id) + len(item.data) for item in self.items)


@dataclass(slots=True)
class StoredResponse:
    """A response, and the items it added to its conversation, all as JSON.

    Those before are its parent's, which stay in memory as long as a response that follows from them.
    """

    id: str
    reply: bytes
    inputs: StoredItems
    outputs: StoredItems
    parent: "StoredResponse | None" = None
    stored_at: float = 0.0
    n_users: int = 0  # the store, and responses that follow from it

    @property
    def n_bytes(self) -> int:
        return ENTRY_BYTES + len(self.reply) + self.inputs.n_bytes + self.outputs.n_bytes

    def conversation(self) -> list[bytes]:
        """All items from the first on."""
        turns: list[list[StoredItem]] = []
        at: StoredResponse | None = self
        while at is not None:
            turns.append([*at.inputs.items, *at.outputs.items])
            at = at.parent
        return [item.data for turn in reversed(turns) for item in turn]


class KeptResponse(NamedTuple):
    """A response as it outlives the process; one that is not listed has others that follow from it."""

    owner: Owner
    response: StoredResponse
    is_listed: bool
    age_s: float


class ResponseKeeper(Protocol):
    """Keeps the responses of a store beyond the process."""

    def put(self, kept: KeptResponse) -> None: ...
    def hide(self, id: str) -> None: ...
    def forget(self, id: str) -> None: ...
    def commit(self, everything: Callable[[], Iterable[KeptResponse]]) -> None:
        """End a change of the store, whose responses `everything` gives, parents first."""

    def retry(self, everything: Callable[[], Iterable[KeptResponse]], at_once: bool = False) -> None:
        """Write what could not be written before."""


class NoKeeper:
    """Nothing outlives the process."""

    def put(self, kept: KeptResponse) -> None: ...
    def hide(self, id: str) -> None: ...
    def forget(self, id: str) -> None: ...
    def commit(self, everything: Callable[[], Iterable[KeptResponse]]) -> None: ...
    def retry(self, everything: Callable[[], Iterable[KeptResponse]], at_once: bool = False) -> None: ...


@dataclass(slots=True)
class StoreLimits:
    """Limits of a store."""

    max_entries: int
    max_bytes: int
    max_age_s: float


class Owned:
    """The responses of one owner, the one unused for longest first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self.n_bytes = 0  # entries and their ancestors


class ResponseStore:
    """When it is full, the owner that takes the most loses the response unused for longest. Any thread may use it.

    So an owner keeps what it has while it takes no more than its share, whatever others store.
    """

    def __init__(
        self,
        limits: StoreLimits,
        clock: Callable[[], float] = time.monotonic,
        keeper: ResponseKeeper | None = None,
    ):
        self._limits = limits
        self._clock = clock
        self._keeper = keeper or NoKeeper()
        self._owned: dict[Owner, Owned] = {}
        self._by_item: dict[tuple[Owner, str], tuple[StoredResponse, bytes]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(len(each.entries) for each in list(self._owned.values()))

    @property
    def n_bytes(self) -> int:
        return sum(each.n_bytes for each in list(self._owned.values()))

    def add(self, owner: Owner, response: StoredResponse) -> None:
        with self._lock:
            response.stored_at = self._clock()
            for ancestor in self._insert(owner, response):
                self._keeper.put(self._kept(owner, ancestor, False))
            self._keeper.put(self._kept(owner, response, True))
            self._evict()
            self._keeper.commit(self._everything)

    def restore(self, kept: Sequence[KeptResponse]) -> None:
        """Take over what an earlier process has kept, within the limits of this one."""
        with self._lock:
            for owner, response, is_listed, age_s in kept:
                response.stored_at = self._clock() - age_s
                if is_listed:
                    self._insert(owner, response)
            for each in kept:
                if not each.response.n_users:
                    self._keeper.forget(each.response.id)
            self._evict()
            self._keeper.commit(self._everything)

    def _insert(self, owner: Owner, response: StoredResponse) -> list[StoredResponse]:
        """List a response; returned are its ancestors that were evicted and count again."""
        owned = self._owned.setdefault(owner, Owned())
        owned.entries[response.id] = response
        self._by_item |= {(owner, item.id): (response, item.data) for item in response.outputs.items}
        return [each for each in counted_with(owned, response) if each is not response]

    def get(self, owner: Owner, id: str) -> StoredResponse:
        with self._lock:
            owned = self._owned.get(owner)
            found = owned.entries.get(id) if owned else None
            if owned is None or found is None or self._is_old(found):
                raise not_found(id)
            owned.entries.move_to_end(id)
            return found

    def all_of(self, owner: Owner) -> list[StoredResponse]:
        """An owner's responses, the oldest first."""
        with self._lock:
            owned = self._owned.get(owner)
            found = [each for each in owned.entries.values() if not self._is_old(each)] if owned else []
        return sorted(found, key=lambda each: each.stored_at)

    def item(self, owner: Owner, id: str) -> bytes | None:
        """An output item of a stored response."""
        with self._lock:
            response, data = self._by_item.get((owner, id), (None, None))
            return data if response and not self._is_old(response) else None

    def remove(self, owner: Owner, id: str) -> None:
        with self._lock:
            if owner not in self._owned or id not in self._owned[owner].entries:
                raise not_found(id)
            self._drop(owner, id)
            self._keeper.commit(self._everything)

    def flush(self, at_once: bool = False) -> None:
        """Write what could not be written before, maybe before it is time to try again."""
        with self._lock:
            self._keeper.retry(self._everything, at_once)

    def _kept(self, owner: Owner, response: StoredResponse, is_listed: bool) -> KeptResponse:
        return KeptResponse(owner, response, is_listed, self._clock() - response.stored_at)

    def _everything(self) -> list[KeptResponse]:
        found: dict[str, KeptResponse] = {}
        for owner, owned in self._owned.items():
            for response in owned.entries.values():
                at = response.parent
                chain = [self._kept(owner, response, True)]
                while at is not None and at.id not in found and at.id not in owned.entries:
                    chain.append(self._kept(owner, at, False))
                    at = at.parent
                found |= {each.response.id: each for each in reversed(chain)}
        return list(found.values())

    def _evict(self) -> None:
        for owner, owned in list(self._owned.items()):
            while owned.entries and self._is_old(first_of(owned)):
                self._drop(owner, first_of(owned).id)
        while len(self) > self._limits.max_entries:
            self._drop_of_largest(lambda owned: len(owned.entries))
        while self._owned and self.n_bytes > self._limits.max_bytes:
            self._drop_of_largest(lambda owned: owned.n_bytes)

    def _drop_of_largest(self, size_of: Callable[[Owned], int]) -> None:
        owner = max(self._owned, key=lambda each: size_of(self._owned[each]))
        self._drop(owner, first_of(self._owned[owner]).id)

    def _is_old(self, response: StoredResponse) -> bool:
        return self._clock() - response.stored_at > self._limits.max_age_s

    def _drop(self, owner: Owner, id: str) -> None:
        owned = self._owned[owner]
        dropped = owned.entries.pop(id)
        if not owned.entries:
            del self._owned[owner]
        for item in dropped.outputs.items:
            self._by_item.pop((owner, item.id), None)
        at: StoredResponse | None = dropped
        while at is not None:
            at.n_users -= 1
            if at.n_users:
                if at is dropped:
                    self._keeper.hide(at.id)
                return
            owned.n_bytes -= at.n_bytes
            self._keeper.forget(at.id)
            at = at.parent


def counted_with(owned: Owned, response: StoredResponse) -> list[StoredResponse]:
    """Count a user of a response, and one of its parent if it had none before, and so on: those that had none."""
    found: list[StoredResponse] = []
    at: StoredResponse | None = response
    while at is not None:
        at.n_users += 1
        if at.n_users > 1:
            break
        owned.n_bytes += at.n_bytes
        found.append(at)
        at = at.parent
    return found


def first_of(owned: Owned) -> StoredResponse:
    """The one unused for longest."""
    return next(iter(owned.entries.values()))


def not_found(id: str) -> HttpError:
    message = f"There is no response {id[:80]!r}: it was not stored, is too old, or belongs to another key."
    return HttpError(404, message, param="previous_response_id", code="response_not_found")
