"""KV pages as bytes: exact, in one layout, and only where asked."""

from collections.abc import Iterator

import numpy as np
import pytest

from backends_here import NAMES, backend, kv_store
from tahr.backends.api import STATES, Backend, KVShape, KVStore, StateShape
from tahr.errors import GenerateError

SHAPES = [KVShape(2, 32), KVShape(1, 64)]  # heads that every KV type can store
N_PAGES, PAGE_SIZE = 6, 4
MIXED = ("q8_0/f16", "f32/q8_0")  # of keys and values


@pytest.fixture(params=NAMES)
def be(request: pytest.FixtureRequest) -> Backend:
    return backend(request.param)


def stores(be: Backend) -> Iterator[KVStore]:
    for dtype in [*be.kv_dtypes, *(MIXED if be.mixes_kv_dtypes else ())]:
        yield kv_store(be, SHAPES, [N_PAGES], PAGE_SIZE, dtype)


def random_pages(be: Backend, kv: KVStore, n_pages: int, seed: int) -> list[np.ndarray]:
    """Any bytes will do: nobody computes with them."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, layer.shape, np.uint8) for layer in be.read_pages(kv, range(n_pages))]


def test_what_is_written_is_read(be: Backend) -> None:
    for kv in stores(be):
        pages = [4, 1, 3]
        content = random_pages(be, kv, 3, seed=1)
        be.write_pages(kv, pages, content)
        for found, expected in zip(be.read_pages(kv, pages), content, strict=True):
            np.testing.assert_array_equal(found, expected)
        for layer in be.read_pages(kv, [0, 2, 5]):
            assert not layer.any()  # no other page has changed


def test_tokens_follow_each_other_across_pages(be: Backend) -> None:
    for kv in stores(be):
        be.write_pages(kv, [2, 5], random_pages(be, kv, 2, seed=2))
        together = be.read_pages(kv, [5, 2])
        apart = [np.concatenate(pair) for pair in zip(be.read_pages(kv, [5]), be.read_pages(kv, [2]), strict=True)]
        for shape, both, joined in zip(SHAPES, together, apart, strict=True):
            np.testing.assert_array_equal(both, joined)
            assert both.shape[:2] == (2 * PAGE_SIZE, shape.n_heads)
        assert [len(layer) for layer in be.read_pages(kv, [])] == [0, 0]


def test_copies_are_exact_and_read_before_they_are_written(be: Backend) -> None:
    for kv in stores(be):
        be.write_pages(kv, range(N_PAGES), random_pages(be, kv, N_PAGES, seed=3))
        before = [be.read_pages(kv, [page]) for page in range(N_PAGES)]
        be.copy_pages(kv, [(0, 1), (1, 0), (2, 3)])
        for page, source in enumerate([1, 0, 2, 2, 4, 5]):
            for found, expected in zip(be.read_pages(kv, [page]), before[source], strict=True):
                np.testing.assert_array_equal(found, expected)


def test_groups_have_pages_of_their_own(be: Backend) -> None:
    shapes, dtype = [*SHAPES, SHAPES[0]], be.kv_dtypes[0]
    kv = kv_store(be, shapes, [N_PAGES, 2], PAGE_SIZE, dtype, groups=[[1], [0, 2]])
    assert (kv.group_of, kv.layout.n_pages) == ((1, 0, 1), (N_PAGES, 2))
    bytes_of = [kv_store(be, [shape], [1], PAGE_SIZE, dtype).n_bytes for shape in SHAPES]
    assert kv.n_bytes == N_PAGES * bytes_of[1] + 2 * 2 * bytes_of[0]
    rng = np.random.default_rng(4)
    content = [rng.integers(0, 256, layer.shape, np.uint8) for layer in be.read_pages(kv, [0], group=1)]
    assert len(content) == 2
    be.write_pages(kv, [0], content, group=1)
    be.copy_pages(kv, [(0, 1)], group=1)
    for found, expected in zip(be.read_pages(kv, [1], group=1), content, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not be.read_pages(kv, range(N_PAGES))[0].any()  # the other group has not changed


# ---- pages elsewhere --------------------------------------------------------------------------------------------

LATENT = KVShape(1, 72, latent=64)


def fill(be: Backend, kv: KVStore, group: int = 0) -> list[np.ndarray]:
    """Random bytes in all pages of a group."""
    pages, rng = range(kv.layout.n_pages[group]), np.random.default_rng(5)
    content = [rng.integers(0, 256, layer.shape, np.uint8) for layer in be.read_pages(kv, pages, group)]
    be.write_pages(kv, pages, content, group)
    return content


def stores_of_any_kind(be: Backend) -> Iterator[KVStore]:
    yield from stores(be)
    for dtype in be.kv_dtypes:
        if dtype not in ("q8_0", "fp8"):  # compressed vectors are not stored in 8 bits
            yield kv_store(be, [LATENT, LATENT], [N_PAGES], PAGE_SIZE, dtype)


def stores_of_states(be: Backend) -> KVStore:
    layers, dtype = [*SHAPES, StateShape((2, 3)), SHAPES[0], StateShape((5,))], be.kv_dtypes[0]
    return kv_store(be, layers, [N_PAGES, 2], PAGE_SIZE, dtype, groups=[[1], [0, 3]], n_slots=4)


def test_what_was_stored_comes_back_wherever_it_is_loaded(be: Backend) -> None:
    for kv in stores_of_any_kind(be):
        fill(be, kv)
        before, io = be.read_pages(kv, [4, 1, 3]), be.page_io(kv)
        ticket = io.store([4, 1, 3])
        be.write_pages(kv, range(N_PAGES), [np.zeros_like(x) for x in be.read_pages(kv, range(N_PAGES))])
        contents = ticket.collect()
        assert ticket.done() and [page.n_bytes for page in contents] == [kv.n_bytes // N_PAGES] * 3
        io.load([1, 5, 0], 0, contents).collect()
        for found, expected in zip(be.read_pages(kv, [1, 5, 0]), before, strict=True):
            np.testing.assert_array_equal(found, expected)
        assert not any(layer.any() for layer in be.read_pages(kv, [2, 3, 4]))  # no other page has changed


def test_content_can_be_loaded_again_by_another_store_page_by_page_and_from_bytes(be: Backend) -> None:
    for kv in stores(be):
        fill(be, kv)
        other = kv_store(be, SHAPES, [N_PAGES + 1], PAGE_SIZE, kv.dtype)
        contents, io = be.page_io(kv).store([2, 0]).collect(), be.page_io(other)
        copies = io.blank(2)
        for page, copy in zip(contents, copies, strict=True):
            copy.data[:] = np.frombuffer(page.data.tobytes(), np.uint8)
        for pages, source, order in [
            ([6, 1], contents, [2, 0]),
            ([3, 4], copies, [2, 0]),
            ([4, 3], contents[::-1], [0, 2]),
        ]:
            io.load(pages, 0, source).collect()
            for found, expected in zip(be.read_pages(other, pages), be.read_pages(kv, order), strict=True):
                np.testing.assert_array_equal(found, expected)


def test_groups_are_stored_apart(be: Backend) -> None:
    kv = stores_of_states(be)
    expected, io = fill(be, kv, group=1), be.page_io(kv)
    contents = io.store([1, 0], group=1).collect()
    io.load([0, 1], 1, contents).collect()
    swapped = [np.concatenate(np.split(layer, 2)[::-1]) for layer in expected]
    for found, wanted in zip(be.read_pages(kv, [0, 1], 1), swapped, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert not be.read_pages(kv, range(N_PAGES))[0].any()
    with pytest.raises(GenerateError, match="no group 2"):
        io.store([0], 2)
    with pytest.raises(GenerateError, match="no group -1"):
        be.page_io(next(stores(be))).store([0], STATES)


def test_states_are_pages_of_a_group_of_their_own(be: Backend) -> None:
    kv, rng = stores_of_states(be), np.random.default_rng(7)
    states = [rng.standard_normal(layer.shape).astype(np.float32) for layer in be.read_states(kv, range(4))]
    be.write_states(kv, range(4), states)
    io = be.page_io(kv)
    contents = io.store([2, 3], STATES).collect()
    assert [page.n_bytes for page in contents] == [4 * (6 + 5)] * 2
    be.write_states(kv, [2, 3], [np.zeros_like(layer[:2]) for layer in states])
    io.load([1, 2], STATES, contents).collect()
    for found, before in zip(be.read_states(kv, range(4)), states, strict=True):
        np.testing.assert_array_equal(found, np.concatenate([before[[0, 2, 3]], np.zeros_like(before[:1])]))


def test_nothing_is_stored_of_no_pages(be: Backend) -> None:
    kv = next(stores(be))
    contents = be.page_io(kv).store([]).collect()
    assert list(contents) == []
    be.page_io(kv).load([], 0, contents).collect()


def test_pages_that_are_not_there_or_do_not_fit_are_refused(be: Backend) -> None:
    kv = kv_store(be, SHAPES, [N_PAGES], PAGE_SIZE, "f16")
    io = be.page_io(kv)
    for pages in ([N_PAGES], [-1, 2]):
        with pytest.raises(GenerateError, match="has pages 0 to 5"):
            io.store(pages)
    with pytest.raises(GenerateError, match="named twice"):
        io.store([3, 3])
    contents = io.store([0, 1]).collect()
    with pytest.raises(GenerateError, match=r"holds 2 pages .* 1 pages"):
        io.load([0], 0, contents)
    # As many bytes, with other heads.
    other = kv_store(be, [KVShape(1, 32), KVShape(2, 48)], [N_PAGES], PAGE_SIZE, "f16")
    assert other.n_bytes == kv.n_bytes
    with pytest.raises(GenerateError, match="cannot take"):
        be.page_io(other).load([0, 1], 0, contents)
    assert not any(layer.any() for layer in be.read_pages(other, [0, 1]))
