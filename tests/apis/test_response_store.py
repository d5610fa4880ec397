"""The store of responses: what it evicts, what it counts, and chains of responses."""

from tahr.server.conversations.store import (
    ENTRY_BYTES,
    ITEM_BYTES,
    ResponseStore,
    StoredItem,
    StoredItems,
    StoredResponse,
    StoreLimits,
)
from tahr.server.http.errors import HttpError


def entry(id: str, parent: StoredResponse | None = None, n: int = 100) -> StoredResponse:
    inputs, outputs = StoredItems([StoredItem("in", b"i")]), StoredItems([StoredItem(f"item {id}", b"o")])
    return StoredResponse(id, b"r" * n, inputs, outputs, parent)


SIZE = ENTRY_BYTES + 2 * ITEM_BYTES + 102 + len("in") + len("item a")  # of an entry


def store_of(
    max_entries: int = 100, max_bytes: int = 10**9, max_age_s: float = 100
) -> tuple[ResponseStore, list[float]]:
    now = [0.0]
    return ResponseStore(StoreLimits(max_entries, max_bytes, max_age_s), lambda: now[0]), now


def has(store: ResponseStore, id: str) -> bool:
    try:
        return store.get("me", id).id == id
    except HttpError as error:
        assert error.status == 404
        return False


def test_the_one_unused_for_longest_goes_first() -> None:
    store, _ = store_of(max_entries=2)
    for id in "ab":
        store.add("me", entry(id))
    assert has(store, "a")
    store.add("me", entry("c"))
    assert has(store, "a") and not has(store, "b") and has(store, "c") and len(store) == 2
    assert store.item("me", "item b") is None and store.item("me", "item a") == b"o"


def test_bytes_are_bounded_and_counted_exactly() -> None:
    store, _ = store_of(max_bytes=3 * SIZE)
    for id in "abcdef":
        store.add("me", entry(id))
    assert len(store) == 3 and store.n_bytes == 3 * SIZE
    store.add("me", entry("g", n=10**6))
    assert len(store) == 0 and store.n_bytes == 0, "what is too large by itself is not kept"


def test_one_owner_does_not_evict_what_another_has() -> None:
    store, _ = store_of(max_entries=4)
    store.add("me", entry("a"))
    for i in range(10):
        store.add("other", entry(str(i)))
    assert has(store, "a") and len(store) == 4
    store, _ = store_of(max_bytes=4 * SIZE)
    store.add("me", entry("a"))
    for i in range(10):
        store.add("other", entry(str(i), n=500))
    store.add("other", entry("x", n=10**6))
    assert has(store, "a") and store.n_bytes <= 4 * SIZE


def test_an_owner_takes_its_share_of_one_that_has_more() -> None:
    store, _ = store_of(max_entries=4)
    for i in range(4):
        store.add("other", entry(str(i)))
    for id in "abcd":
        store.add("me", entry(id))
    assert [has(store, id) for id in "abcd"] == [False, False, True, True] and len(store) == 4
    assert store.get("other", "3") and store.get("other", "2")


def test_old_responses_of_all_owners_go() -> None:
    store, now = store_of()
    store.add("other", entry("a"))
    now[0] = 60
    store.add("me", entry("b"))
    now[0] = 150
    store.add("me", entry("c"))
    assert len(store) == 2 and store.n_bytes == 2 * SIZE


def test_responses_age() -> None:
    store, now = store_of()
    store.add("me", entry("a"))
    now[0] = 60
    store.add("me", entry("b"))
    assert has(store, "a")
    now[0] = 101
    assert not has(store, "a") and store.item("me", "item a") is None and has(store, "b")
    now[0] = 300
    store.add("me", entry("c"))
    assert len(store) == 1 and store.n_bytes == SIZE


def test_a_chain_stays_whole_when_its_beginning_is_evicted() -> None:
    store, _ = store_of(max_entries=1)
    store.add("me", entry("a"))
    first = store.get("me", "a")
    store.add("me", entry("b", first))
    assert not has(store, "a") and store.n_bytes == 2 * SIZE
    assert store.get("me", "b").conversation() == [b"i", b"o"] * 2
    store.remove("me", "b")
    assert store.n_bytes == 0


def test_a_parent_that_was_evicted_meanwhile_counts_again() -> None:
    store, _ = store_of()
    store.add("me", entry("a"))
    store.add("me", entry("b", store.get("me", "a")))
    parent = store.get("me", "b")
    store.remove("me", "b")
    store.remove("me", "a")
    assert store.n_bytes == 0
    store.add("me", entry("c", parent))
    assert store.n_bytes == 3 * SIZE
    store.add("me", entry("d", parent))
    assert store.n_bytes == 4 * SIZE
    store.remove("me", "c")
    assert store.n_bytes == 3 * SIZE
    store.remove("me", "d")
    assert store.n_bytes == 0


def test_a_long_chain_is_walked_and_freed() -> None:
    store, _ = store_of(max_entries=10, max_bytes=10**10)
    last: StoredResponse | None = None
    n_bytes = 0
    for i in range(20_000):
        made = entry(str(i), last)
        store.add("me", made)
        last, n_bytes = made, n_bytes + made.n_bytes
    assert last is not None and len(last.conversation()) == 40_000 and store.n_bytes == n_bytes
    del made
    for i in range(19_990, 20_000):
        store.remove("me", str(i))
    last = None
    assert store.n_bytes == 0 and len(store) == 0
