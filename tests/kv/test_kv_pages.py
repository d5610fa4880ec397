"""KV pages as bytes: exact, in one layout, and only where asked."""

from collections.abc import Iterator

import numpy as np
import pytest

from backends_here import NAMES, backend, kv_store
from tahr.backends.api import Backend, KVShape, KVStore

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
