"""Responses that may be asked for again, or continued by their id. What they may take is bounded in three ways."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tahr.server.http.errors import HttpError

Owner = str  # the key of a client: others cannot see its responses
ENTRY_BYTES, ITEM_BYTES = 1024, 256  # about what Python takes beside the texts


@dataclass(slots=True)
class StoredResponse:
    """A response, and the items it added to its conversation, all as JSON.

    Those before are its parent's, which stay in memory as long as a response that follows from them.
    """

    id: str
    reply: bytes
    inputs: Sequence[bytes]
    outputs: Sequence[bytes]
    output_ids: Sequence[str]
    parent: "StoredResponse | None" = None
    stored_at: float = 0.0
    n_users: int = 0  # the store, and responses that follow from it

    @property
    def n_bytes(self) -> int:
        n_items = len(self.inputs) + len(self.outputs)
        return ENTRY_BYTES + ITEM_BYTES * n_items + len(self.reply) + sum(map(len, [*self.inputs, *self.outputs]))

    def conversation(self) -> list[bytes]:
        """All items from the first on."""
        turns: list[list[bytes]] = []
        at: StoredResponse | None = self
        while at is not None:
            turns.append([*at.inputs, *at.outputs])
            at = at.parent
        return [item for turn in reversed(turns) for item in turn]


@dataclass(slots=True)
class StoreLimits:
    """What a store may hold."""

    max_entries: int
    max_bytes: int
    max_age_s: float


class ResponseStore:
    """The response unused for longest is evicted first. Any thread may use it."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float] = time.monotonic):
        self.n_bytes = 0  # of entries, and of what they follow from
        self._limits, self._clock = limits, clock
        self._entries: OrderedDict[tuple[Owner, str], StoredResponse] = OrderedDict()
        self._by_item: dict[tuple[Owner, str], StoredResponse] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, owner: Owner, response: StoredResponse) -> None:
        with self._lock:
            response.stored_at, response.n_users = self._clock(), 1
            self._entries[owner, response.id] = response
            self._by_item |= {(owner, item): response for item in response.output_ids}
            self.n_bytes += response.n_bytes
            self._use_parent(response)
            self._evict()

    def get(self, owner: Owner, id: str) -> StoredResponse:
        with self._lock:
            found = self._entries.get((owner, id))
            if found is None or self._is_old(found):
                raise not_found(id)
            self._entries.move_to_end((owner, id))
            return found

    def item(self, owner: Owner, id: str) -> bytes | None:
        """An output item of a stored response."""
        with self._lock:
            found = self._by_item.get((owner, id))
            return found.outputs[found.output_ids.index(id)] if found and not self._is_old(found) else None

    def remove(self, owner: Owner, id: str) -> None:
        with self._lock:
            if (owner, id) not in self._entries:
                raise not_found(id)
            self._drop((owner, id))

    def _use_parent(self, response: StoredResponse) -> None:
        """A parent that was evicted meanwhile counts again, and so do those before it."""
        at = response.parent
        while at is not None:
            at.n_users += 1
            if at.n_users > 1:
                return
            self.n_bytes += at.n_bytes
            at = at.parent

    def _evict(self) -> None:
        limits = self._limits
        while self._entries:
            owner_id, first = next(iter(self._entries.items()))
            is_full = len(self._entries) > limits.max_entries or self.n_bytes > limits.max_bytes
            if not is_full and not self._is_old(first):
                return
            self._drop(owner_id)

    def _is_old(self, response: StoredResponse) -> bool:
        return self._clock() - response.stored_at > self._limits.max_age_s

    def _drop(self, owner_id: tuple[Owner, str]) -> None:
        dropped = self._entries.pop(owner_id)
        for item in dropped.output_ids:
            self._by_item.pop((owner_id[0], item), None)
        at: StoredResponse | None = dropped
        while at is not None:
            at.n_users -= 1
            if at.n_users:
                return
            self.n_bytes -= at.n_bytes
            at = at.parent


def not_found(id: str) -> HttpError:
    message = f"There is no response {id[:80]!r}: it was not stored, is too old, or belongs to another key."
    return HttpError(404, message, param="previous_response_id", code="response_not_found")
