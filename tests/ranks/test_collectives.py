"""Meetings of ranks over shared memory: sums in the order of the ranks, and waits that end."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tahr import _native as native
from tahr._native import address_of
from tahr.executor.ranks.region import Region, RegionSizes, new_region

PROGRAM = Path(__file__).parents[1] / "helpers" / "collective_program.py"
LENGTHS = (1, 63, 64, 4096, 100_003)
N_TURNS = 40


def region(n_ranks: int) -> Region:
    return new_region(RegionSizes(n_ranks, 1, 1, 4 * max(LENGTHS)))


def together(meetings: list[native.Meeting], work: Callable[[int, native.Meeting], int]) -> list[int]:
    with ThreadPoolExecutor(len(meetings)) as pool:
        return list(pool.map(work, range(len(meetings)), meetings))


def numbers(rank: int, n: int) -> np.ndarray:
    return np.random.default_rng([rank, n]).standard_normal(n).astype(np.float32)


def ordered_sum(n_ranks: int, n: int) -> np.ndarray:
    total = numbers(0, n)
    for rank in range(1, n_ranks):
        total = total + numbers(rank, n)
    return total


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_sums_of_processes_have_the_bits_of_sums_in_order(n_ranks: int) -> None:
    shared = region(n_ranks)
    before = set(Path("/dev/shm").iterdir())
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps([shared.descriptor, n_ranks, rank, LENGTHS, N_TURNS])],
            pass_fds=(shared.descriptor,),
            stdout=subprocess.PIPE,
        )
        for rank in range(n_ranks)
    ]
    found = [rank.communicate(timeout=60)[0] for rank in ranks]
    wanted = b"".join(ordered_sum(n_ranks, n).tobytes() for n in LENGTHS)
    assert [part == wanted for part in found] == [True] * n_ranks
    assert set(Path("/dev/shm").iterdir()) == before
    os.close(shared.descriptor)


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_parts_side_by_side_and_from_one_rank(n_ranks: int) -> None:
    shared = region(n_ranks)
    meetings = [shared.meeting(rank, 10.0) for rank in range(n_ranks)]
    widths = [100 + 7 * rank for rank in range(n_ranks)]
    joined = np.zeros((n_ranks, sum(widths)), np.float32)
    parts = [numbers(rank, width) for rank, width in enumerate(widths)]
    assert not any(
        together(meetings, lambda r, meeting: meeting.all_gather(address_of(parts[r]), widths, address_of(joined[r])))
    )
    np.testing.assert_array_equal(joined, [np.concatenate(parts)] * n_ranks)
    told = [numbers(rank, 50) for rank in range(n_ranks)]
    last = told[-1].copy()
    assert not any(together(meetings, lambda r, meeting: meeting.broadcast(address_of(told[r]), 50, n_ranks - 1)))
    np.testing.assert_array_equal(told, [last] * n_ranks)


def test_a_rank_that_does_not_come_is_waited_for_so_long() -> None:
    shared = region(2)
    meeting = shared.meeting(0, 0.01)
    x = numbers(0, 10)
    assert meeting.all_reduce(address_of(x), 10, address_of(x)) == native.WAITED_LATE
    shared.words.set(shared.met(1), 99)  # too late: nobody knows what it has handed in
    assert meeting.all_reduce(address_of(x), 10, address_of(x)) == native.WAITED_LATE


def test_nobody_waits_for_a_group_that_was_given_up() -> None:
    shared = region(3)
    meetings = [shared.meeting(rank, 1e9) for rank in range(2)]  # the third one never comes
    x = numbers(0, 10)

    def work(rank: int) -> int:
        if rank == 2:
            shared.words.abandon()
            return native.WAITED_ABANDONED
        return meetings[rank].all_reduce(address_of(x), 10, address_of(x))

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(3))) == [native.WAITED_ABANDONED] * 3


def test_counts_may_pass_the_largest_number() -> None:
    shared = region(2)
    shared.words.set(shared.met(0), 2**32 - 2)
    shared.words.set(shared.met(1), 2**32 - 2)
    meetings = [shared.meeting(rank, 10.0) for rank in range(2)]
    out = [np.zeros(8, np.float32) for _ in range(2)]
    ones = np.ones(8, np.float32)
    for _ in range(5):
        assert not any(
            together(meetings, lambda r, meeting: meeting.all_reduce(address_of(ones), 8, address_of(out[r])))
        )
    np.testing.assert_array_equal(out, np.full((2, 8), 2))


def test_what_is_no_meeting_is_refused() -> None:
    shared = region(2)
    meeting = shared.meeting(0, 1.0)
    x = numbers(0, 4)
    with pytest.raises(ValueError, match="does not hold these rows"):
        meeting.all_reduce(address_of(x), 2**30, address_of(x))
    with pytest.raises(ValueError, match="Every rank has a width"):
        meeting.all_gather(address_of(x), [4], address_of(x))
    with pytest.raises(ValueError, match="no such rank"):
        meeting.broadcast(address_of(x), 4, 2)
    with pytest.raises(ValueError, match="no such meeting"):
        shared.meeting(2, 1.0)
    with pytest.raises(IndexError):
        shared.words.get(99)
