"""The bounded store: the item used longest ago gives way, and pins hold. Layouts of pages, and pages that load."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tahr.errors import KvCacheFull
from tahr.kv.layout import LayerRows, PageLayout
from tahr.kv.pages import PagePool
from tahr.kv.store import BoundedStore


@dataclass(frozen=True)
class Item:
    n_bytes: int


def test_the_one_used_longest_ago_gives_way() -> None:
    store: BoundedStore[str, Item] = BoundedStore(10)
    assert all(store.put(name, Item(3)) for name in "abc")
    assert store.get("a") == Item(3) and store.get("x") is None
    store.touch("bx")
    assert store.put("d", Item(3)) and list(store) == ["a", "b", "d"] and store.n_evicted == 1
    assert store.put("a", Item(10)) and list(store) == ["a"]
    assert not store.put("a", Item(11)) and "a" not in store and store.n_bytes == 0


def test_pins_hold_until_all_are_taken_back() -> None:
    store: BoundedStore[str, Item] = BoundedStore(10, max_items=2)
    store.put("a", Item(6))
    store.pin("a")
    store.pin("a")
    assert not store.put("b", Item(5)) and store.n_free_bytes == 4
    assert store.put("b", Item(4)) and store.put("c", Item(4)) and list(store) == ["a", "c"]
    store.pin("c")
    assert not store.put("d", Item(0))  # two are all there may be
    store.unpin("a")
    assert not store.put("d", Item(5))
    store.unpin("a")
    store.unpin("a")
    assert store.put("d", Item(6)) and list(store) == ["c", "d"]
    store.remove("c")
    store.unpin("c")
    assert store.n_free_bytes == 10


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "pin", "unpin", "remove", "touch"]), st.integers(0, 5), st.integers(0, 7))
)


@given(STEPS)
def test_sums_and_bounds_hold_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    store: BoundedStore[int, Item] = BoundedStore(12, max_items=4)
    pins = dict.fromkeys(range(6), 0)
    for what, key, n in steps:
        if what == "put":
            before = key in store
            pins[key] = 0
            assert store.put(key, Item(n)) == (key in store) or before
        elif what == "pin" and key in store:
            store.pin(key)
            pins[key] += 1
        elif what == "unpin":
            store.unpin(key)
            pins[key] = max(0, pins[key] - 1)
        elif what == "remove":
            store.remove(key)
            pins[key] = 0
        elif what == "get":
            assert (store.get(key) is not None) == (key in store)
        else:
            store.touch([key])
        store.check()
        assert all(key in store for key, n_pins in pins.items() if n_pins)


# ---- layouts ----------------------------------------------------------------------------------------------------

LAYOUT = PageLayout("tokens", 32, "f16", ((LayerRows(0, 2, 256), LayerRows(0, 2, 256)), (LayerRows(0, 4, 256),)), (64,))
OTHERS = {
    "order": "heads",
    "page_size": 16,
    "dtype": "f16/q8_0",
    "groups": ((LayerRows(0, 2, 256),), (LayerRows(0, 2, 256), LayerRows(0, 4, 256))),
    "states": (32, 32),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_layouts_have_other_digests(name: str) -> None:
    assert replace(LAYOUT, **{name: OTHERS[name]}).digest != LAYOUT.digest == replace(LAYOUT).digest  # type: ignore[arg-type]


def test_parts_of_heads_have_digests_of_their_own() -> None:
    whole, first, second = (
        replace(LAYOUT, groups=((LayerRows(*rows),),)) for rows in [(0, 4, 8), (0, 2, 8), (2, 2, 8)]
    )
    assert len({whole.digest, first.digest, second.digest}) == 3
    assert (whole.page_bytes(0), first.page_bytes(0), LAYOUT.page_bytes(0), LAYOUT.state_bytes) == (
        1024,
        512,
        32768,
        64,
    )


# ---- pages that are loading -------------------------------------------------------------------------------------


def test_loading_pages_are_nobodys_to_read_write_share_or_release() -> None:
    pool = PagePool(3, 4)
    pages = pool.take_loading(2)
    pool.check([pages])
    assert pool.n_free == 1 and pool.n_loading == 2 and not any(map(pool.writable, pages))
    with pytest.raises(AssertionError, match="loading"):
        pool.share(pages[:1])
    with pytest.raises(AssertionError, match="loading"):
        pool.release(pages[:1])
    with pytest.raises(KvCacheFull):
        pool.take_loading(2)
    pool.loaded(pages[0], b"text")
    assert pool.lookup(b"text") == pages[0]
    pool.loaded(pages[1], b"text")  # another copy of it came first
    pool.release(pages)
    pool.check([])
    assert pool.n_loading == 0 and pool.n_free == 3 and pool.n_hashed == 1


def test_what_failed_to_load_is_found_by_nobody() -> None:
    pool = PagePool(1, 4)
    (page,) = pool.take_loading(1)
    pool.loaded(page, None)
    assert pool.n_hashed == 0 and pool.writable(page)
    pool.release([page])
    pool.check([])
