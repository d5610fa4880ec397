"""Pages of a GPU elsewhere: gathered exactly, behind steps and before those that follow, in bounded pinned memory."""

import threading
from collections.abc import Iterator
from time import sleep
from typing import Any

import numpy as np
import pytest

import backends_here
from backends_here import kv_store
from tahr.backends.api import Backend, KVShape, KVStore, PageIO
from tahr.backends.cuda.layouts import presence as cuda_presence

pytestmark = pytest.mark.skipif("cuda" not in backends_here.NAMES, reason="no GPU, or torch and Triton are missing")
on_device = pytest.mark.skipif(cuda_presence.interprets(), reason="the interpreter has no streams")

SHAPES = [KVShape(2, 32), KVShape(1, 64), KVShape(3, 96)]
N_PAGES = 40
N_WARM = 2  # copies until every buffer that pages pass through is there


@pytest.fixture
def be() -> Backend:
    return backends_here.backend("cuda")


def filled(be: Backend, dtype: str, page_size: int) -> KVStore:
    kv, rng = kv_store(be, SHAPES, [N_PAGES], page_size, dtype), np.random.default_rng(6)
    content = [rng.integers(0, 256, layer.shape, np.uint8) for layer in be.read_pages(kv, range(N_PAGES))]
    be.write_pages(kv, range(N_PAGES), content)
    return kv


def all_stores(be: Backend) -> Iterator[KVStore]:
    """Runs of memory of many sizes: not all are whole words of 8 bytes."""
    for dtype in be.kv_dtypes:
        for page_size in (1, 3, 32):
            yield filled(be, dtype, page_size)


def clear(kv: KVStore) -> None:
    import torch

    for layer in kv.layers:
        layer.view(torch.uint8).zero_()


def warmed(be: Backend, kv: KVStore) -> PageIO:
    """Its kernels are compiled, its memory is there and none is being locked: calls that follow never wait."""
    io = be.page_io(kv, pinned_bytes=kv.n_bytes)
    for _ in range(N_WARM):
        kv.layers[0][:, 0] = 0.0
        kv.layers[0][:, 0].clone().copy_(kv.layers[0][:, 0])
        io.load([0], 0, io.store([0]).collect()).collect()
    return io


def gates(n: int) -> list[Any]:
    """Gates of the device, whose host locks no memory any more."""
    from device_gate import Gate

    for thread in threading.enumerate():
        if thread.name == "tahr-pinning":
            thread.join()
    return [Gate() for _ in range(n)]


def same(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(have, want)


def test_pieces_are_gathered_and_scattered_exactly(be: Backend) -> None:
    import torch

    from tahr.backends.cuda.piece_table import PieceTable

    def numbers(pages: list[int]) -> torch.Tensor:
        return torch.tensor(pages, dtype=torch.int32, device=kv.layers[0].device)

    for kv in all_stores(be):
        table, before = PieceTable(kv, 0), be.read_pages(kv, [7, 0, 39])
        staged = torch.zeros(3 * table.form.n_bytes, dtype=torch.uint8, device=table.device)
        table.gather(numbers([7, 0, 39]), staged)
        sides = [side[page].contiguous().view(torch.uint8).flatten() for page in (7, 0, 39) for layer in kv.layers
                 for side in layer]  # fmt: skip
        assert torch.equal(staged, torch.cat(sides))
        clear(kv)
        table.scatter(numbers([1, 38, 0]), staged)
        same(be.read_pages(kv, [1, 38, 0]), before)
        assert not any(layer.any() for layer in be.read_pages(kv, [*range(2, 38), 39]))


@on_device
def test_long_copies_travel_in_parts(be: Backend) -> None:
    for kv in all_stores(be):
        order = np.random.default_rng(8).permutation(N_PAGES).tolist()
        before, io = be.read_pages(kv, order), be.page_io(kv)
        io.staged_bytes = 7 * kv.n_bytes // N_PAGES  # type: ignore[attr-defined]
        content = io.store(order)
        clear(kv)
        io.load(order, 0, content.collect()).collect()
        same(be.read_pages(kv, order), before)


@on_device
def test_steps_before_and_after_see_what_they_should(be: Backend) -> None:
    """The host holds the steps back, so that every copy is enqueued long before what it must wait for."""
    kv = filled(be, "f16", 32)
    io, layer = warmed(be, kv), kv.layers[0]
    first, second, third = gates(3)
    seen_before = layer[:, 3].clone()
    first.close()
    layer[:, 3] = 3.0  # a step before
    stored = io.store([3])
    layer[:, 3] = 4.0  # a step after
    assert not stored.done()
    first.open()
    content = stored.collect()
    assert stored.done() and (layer[:, 3] == 4).all()
    second.close()
    seen_before.copy_(layer[:, 3])
    loaded = io.load([3], 0, content)
    third.close()
    assert not loaded.done()
    second.open()
    while not loaded.done():  # behind the step before, not behind the one enqueued after
        assert not third.has_ended()
    third.open()
    loaded.collect()
    assert (seen_before == 4).all() and (layer[:, 3] == 3).all()


@on_device
def test_a_collected_load_is_seen_without_waiting_on_the_host(be: Backend) -> None:
    import torch

    kv = filled(be, "bf16", 32)
    io, before = warmed(be, kv), be.read_pages(kv, [5])
    content = io.store([5]).collect()
    clear(kv)
    (gate,) = gates(1)
    copy = kv.layers[0][:, 5].clone()
    gate.close()
    ticket = io.load([5], 0, content)
    ticket.collect()
    copy.copy_(kv.layers[0][:, 5])
    assert not ticket.done()
    gate.open()
    same(be.read_pages(kv, [5]), before)
    assert torch.equal(copy.view(torch.int16), kv.layers[0][:, 5].view(torch.int16))  # some are not numbers


@on_device
def test_pinned_memory_is_bounded_and_taken_again(be: Backend) -> None:
    kv = filled(be, "q8_0", 32)
    page_bytes = kv.n_bytes // N_PAGES
    io = be.page_io(kv, pinned_bytes=3 * page_bytes)
    before = be.read_pages(kv, range(6))
    assert [io.n_storable(n) for n in (1, 3, 6)] == [1, 3, 3]
    contents = [io.store([page]).collect()[0] for page in range(6)]
    assert [page.slot is None for page in contents] == [False] * 3 + [True] * 3  # type: ignore[attr-defined]
    assert io.arena.n_bytes == 3 * page_bytes and io.n_storable(1) == 0  # type: ignore[attr-defined]
    clear(kv)
    for page, content in enumerate(contents):
        io.load([page], 0, [content]).collect()
    same(be.read_pages(kv, range(6)), before)
    address = contents[0].memory.data_ptr()  # type: ignore[attr-defined]
    contents.clear()
    del content
    held = [io.store([page]).collect()[0] for page in range(3)]
    assert address in [content.memory.data_ptr() for content in held]  # type: ignore[attr-defined]


@on_device
def test_a_copy_that_nobody_waits_for_spoils_no_other(be: Backend) -> None:
    """Its memory is taken again while it travels."""
    kv = filled(be, "f16", 32)
    io, before = be.page_io(kv, pinned_bytes=kv.n_bytes // N_PAGES), be.read_pages(kv, range(N_PAGES))
    for page in range(N_PAGES - 1):
        io.store([page])
    contents = io.store([N_PAGES - 1]).collect()
    assert contents[0].slot is not None  # type: ignore[attr-defined]
    io.load([2], 0, contents)
    del contents
    later = io.store([9]).collect()
    found = be.read_pages(kv, [2])
    same(found, be.read_pages(kv, [N_PAGES - 1]))
    io.load([11], 0, later).collect()
    same(be.read_pages(kv, [11]), be.read_pages(kv, [9]))
    same(be.read_pages(kv, [0]), [layer[: kv.page_size] for layer in before])


def arena(monkeypatch: pytest.MonkeyPatch, n_bytes: int, piece_bytes: int, largest: int = 1) -> Any:
    """Of memory that is not locked, all of it there."""
    from tahr.backends.cuda import pinned

    class Block:
        is_pinned = True

        def __init__(self, n: int):
            self.memory = np.arange(n)

    monkeypatch.setattr(pinned, "PinnedBlock", Block)
    monkeypatch.setattr(pinned, "PIECE_BYTES", piece_bytes)
    made = pinned.PinnedArena(n_bytes, largest)
    while made.grows:
        sleep(1e-3)
    return made


def test_slots_are_neighbours_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from tahr.backends.cuda.pinned import in_runs

    found = arena(monkeypatch, n_bytes=100, piece_bytes=50)
    assert found.n_free(10) == 10 and found.n_free(20) == 4
    slots = found.take(10, 7)
    assert list(in_runs(slots)) == [(0, 5), (5, 7)] and list(in_runs([*slots[:2], None, None])) == [
        (0, 2),
        (2, 3),
        (3, 4),
    ]
    assert found.memory(slots[1], 3).tolist() == list(range(10, 40))
    for slot in (slots[4], slots[2], slots[3]):
        found.give(slot)
    assert list(in_runs(found.take(10, 3))) == [(0, 3)]
    assert list(in_runs([])) == []


def test_pieces_without_slots_in_use_are_cut_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    found = arena(monkeypatch, n_bytes=100, piece_bytes=50)
    slots = found.take(10, 20)
    assert len(slots) == 10 and found.n_free(25) == 0 and found.take(25, 1) == []
    for slot in slots[:5]:
        found.give(slot)
    assert found.n_free(25) == 2 and len(found.take(25, 3)) == 2
    assert found.n_free(10) == 0 and len({*slots[5:], *found.take(10, 9)}) == 5


def test_a_slot_larger_than_pieces_makes_them_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arena(monkeypatch, n_bytes=100, piece_bytes=10, largest=30).n_free(30) == 3


def test_page_numbers_are_overwritten_when_copies_have_read_them() -> None:
    from tahr.backends.cuda import pinned

    waited: list[str] = []

    class Copy:
        def __init__(self, name: str):
            self.name = name

        def synchronize(self) -> None:
            waited.append(self.name)

    numbers, most = pinned.PageNumbers(), pinned.N_NUMBERS
    first = numbers.put([5, 3])
    numbers.read_at(Copy("first"))
    second = numbers.put(range(most - 2))
    numbers.read_at(Copy("second"))
    third = numbers.put([8])
    numbers.read_at(Copy("third"))
    assert not waited and first.tolist() == [5, 3] and second.tolist() == [*range(most - 2)] and third.tolist() == [8]
    assert numbers.put(range(most)).tolist() == [*range(most)]
    assert waited == ["second"] and third.tolist() == [8]
