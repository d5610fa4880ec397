"""Row slots: held, cached and given back, whatever happens in which order; block hashes of pages that rows touch."""

import random

import pytest

from tahr.kv.pages import PagePool
from tahr.kv.prefix import BlockHashes, PrefixCache
from tahr.kv.row_slots import RowSlots, RowSpan

A, B, C = (bytes([i]) * 16 for i in (1, 2, 3))


def test_content_is_held_then_cached_then_dropped() -> None:
    rows = RowSlots(8)
    assert rows.hold({A: 3, B: 2}) and not rows.is_ready(A)
    rows.ready(A)
    assert not rows.hold({C: 4}), "nothing is taken where not all fits"
    rows.check([[A, B]])
    rows.release(B)  # it was never computed: nothing is kept
    assert rows.hold({C: 4}) and rows.n_held == 7
    rows.release(A)
    assert rows.is_ready(A) and rows.n_used == 7
    assert rows.hold({B: 4}) and not rows.is_ready(A) and rows.n_dropped == 1
    assert rows.targets(A) == [] and len(rows.targets(B)) == 4
    rows.ready(A)  # nobody waits for it any more
    rows.check([[B], [C]])


def test_the_content_released_first_is_dropped_first() -> None:
    rows = RowSlots(6)
    for digest in (A, B, C):
        assert rows.hold({digest: 2})
        rows.ready(digest)
    for digest in (B, A, C):
        rows.release(digest)
    assert rows.hold({bytes(16): 2})
    assert [rows.is_ready(digest) for digest in (A, B, C)] == [True, False, True]
    assert rows.hold({A: 2, bytes([9]) * 16: 2})  # what is needed is not dropped for the rest
    assert rows.is_ready(A) and not rows.is_ready(C)


def test_slots_released_in_flight_wait_for_the_step() -> None:
    rows = RowSlots(4)
    assert rows.hold({A: 4})
    rows.ready(A)
    rows.launched()
    rows.release(A)
    assert not rows.hold({B: 1})
    rows.landed()
    assert rows.hold({B: 1})


def test_random_events_lose_no_slot() -> None:
    rng = random.Random(3)
    rows = RowSlots(24)
    sizes = {bytes([i]) * 16: rng.randrange(1, 9) for i in range(12)}
    held: list[list[bytes]] = []
    n_flying = 0
    for _ in range(4000):
        match rng.randrange(5):
            case 0 | 1:
                wanted = {digest: sizes[digest] for digest in rng.sample(sorted(sizes), rng.randrange(1, 4))}
                if rows.hold(wanted):
                    held.append(list(wanted))
            case 2 if held:
                for digest in held.pop(rng.randrange(len(held))):
                    rows.release(digest)
            case 3:
                rows.ready(rng.choice(sorted(sizes)))
            case _ if n_flying and rng.random() < 0.5:
                rows.landed()
                n_flying -= 1
            case _:
                rows.launched()
                n_flying += 1
        rows.check(held)
    for digests in held:
        for digest in digests:
            rows.release(digest)
    for _ in range(n_flying):
        rows.landed()
    assert rows.n_held == 0 and rows.n_dropped


def test_misuse_is_found() -> None:
    rows = RowSlots(8)
    assert rows.hold({A: 2})
    with pytest.raises(AssertionError, match="different numbers"):
        rows.hold({A: 3})
    with pytest.raises(AssertionError, match="holders disagree"):
        rows.check([])
    rows.ready(A)
    rows.release(A)
    with pytest.raises(AssertionError, match="may be dropped"):
        rows.slots(A)
    with pytest.raises(AssertionError, match="released twice"):
        rows.release(A)


# ---- block hashes ---------------------------------------------------------------------------------------------

TOKENS = [3] * 40


def hashes_of(*spans: RowSpan) -> list[bytes]:
    made = PrefixCache([PagePool(8, 8)]).hashes(spans=spans)
    return [made.of(TOKENS, page) for page in range(5)]


def test_pages_of_equal_images_have_equal_hashes_and_those_of_others_have_not() -> None:
    plain, one, other = hashes_of(), hashes_of(RowSpan(9, 11, A)), hashes_of(RowSpan(9, 11, B))
    assert one == hashes_of(RowSpan(9, 11, A))
    assert hashes_of(RowSpan(9, 11, A, 11, 22))[1] not in (one[1], hashes_of(RowSpan(9, 11, A, 0, 22))[1])
    assert plain[0] == one[0] == other[0], "no row is in the first page"
    for page in range(1, 5):
        assert len({plain[page], one[page], other[page]}) == 3, "what follows depends on it"


@pytest.mark.parametrize("span", [RowSpan(10, 11, A), RowSpan(9, 12, A), RowSpan(8, 11, A), RowSpan(9, 30, A)])
def test_an_image_elsewhere_or_of_another_size_has_other_hashes(span: RowSpan) -> None:
    assert hashes_of(RowSpan(9, 11, A))[1] != hashes_of(span)[1]


def test_two_images_in_a_page_are_told_apart() -> None:
    first = hashes_of(RowSpan(1, 2, A), RowSpan(4, 2, B))
    assert first[0] != hashes_of(RowSpan(1, 2, B), RowSpan(4, 2, A))[0]
    assert first[0] != hashes_of(RowSpan(1, 2, A))[0]


def test_a_fork_and_a_cut_text_keep_their_rows() -> None:
    made = BlockHashes(b"root", 8, (RowSpan(9, 11, A),))
    wanted = [made.of(TOKENS, page) for page in range(3)]
    fork = made.fork()
    for each in (made, fork):
        each.cut(1)
        assert [each.of(TOKENS, page) for page in range(3)] == wanted
