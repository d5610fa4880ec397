"""The thread that computes experts for a device, without one: a stream is played by hand, and so are tapes."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from tahr import _native as native
from tahr._native import address_of

MOST_ROWS, WIDTH, N_ACTIVE, N_EXPERTS = 4, 8, 2, 6
POSTED, SERVED, FACTS = 0, 32, 64
SHORT_S = 0.2  # that requests may take where one hangs
LONG_S = 60.0
N_MORE = 20  # meetings beside a thread that comes back
Tape = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def arrays() -> SimpleNamespace:
    return SimpleNamespace(
        rows=np.zeros((MOST_ROWS, WIDTH), np.float32),
        experts=np.zeros((MOST_ROWS, N_ACTIVE), np.int32),
        shares=np.zeros((MOST_ROWS, N_ACTIVE), np.float32),
        result=np.zeros((MOST_ROWS, WIDTH), np.float32),
    )


def addresses(of: SimpleNamespace) -> dict[str, int]:
    return {name: address_of(array) for name, array in vars(of).items()}


class Stream:
    """A device that posts requests and waits for their results."""

    def __init__(self, stall_s: float = LONG_S, begin: int = 0):
        self.words = np.full(128, begin, np.int32)
        self.shared = arrays()
        self.tape = arrays()
        self.n_rows = np.zeros(1, np.int32)
        self.calls: list[object] = []
        at = address_of(self.words)
        self.worker = native.ExpertWorker(
            posted=at + 4 * POSTED,
            served=at + 4 * SERVED,
            facts=at + 4 * FACTS,
            **addresses(self.shared),
            most_rows=MOST_ROWS,
            width=WIDTH,
            n_active=N_ACTIVE,
            n_out=WIDTH,
            stall_s=stall_s,
        )

    def add(self, compute: Callable[[], None]) -> int:
        """A layer whose tape is a function of Python."""
        call = Tape(lambda tape, pool: compute())
        self.calls.append(call)
        run = ctypes.cast(call, ctypes.c_void_p).value or 0
        where = {**addresses(self.tape), "n_rows": address_of(self.n_rows)}
        return self.worker.add(run=run, tape=0, pool=0, n_experts=N_EXPERTS, **where)

    def double(self) -> None:
        n = self.n_rows[0]
        self.tape.result[:n] = 2 * self.tape.rows[:n]

    def post(self, layer: int = 0, n_rows: int = 1, expects: bool = True) -> int:
        if expects:
            self.worker.expect(1)
        self.words[FACTS : FACTS + 2] = n_rows, layer
        self.words[POSTED] += 1
        return int(self.words[POSTED])

    def meet(self, layer: int = 0, n_rows: int = 1) -> np.ndarray:
        number = self.post(layer, n_rows)
        assert self.worker.wait(number, LONG_S)
        assert self.words[SERVED] == number
        return self.shared.result[:n_rows]

    def failure(self, first: int, last: int) -> str:
        return self.worker.take_failure(first, last)


@contextmanager
def hanging(stream: Stream) -> Iterator[int]:
    """Within, a layer hangs; its number."""
    goes_on = threading.Event()
    layer = stream.add(lambda: goes_on.wait() and None)
    yield layer
    goes_on.set()


def test_ten_thousand_meetings_give_the_results_of_their_rows() -> None:
    stream = Stream()
    stream.add(stream.double)
    for i in range(10_000):
        stream.shared.rows[:] = i
        assert (stream.meet(n_rows=1 + i % MOST_ROWS) == 2 * i).all()
    assert stream.failure(0, 10_000) == ""
    assert stream.worker.close()


def test_a_request_without_rows_is_served_and_computes_nothing() -> None:
    stream = Stream()
    stream.add(lambda: pytest.fail("there is nothing to compute"))
    stream.meet(n_rows=0)
    assert stream.failure(0, 1) == ""


@pytest.mark.parametrize(
    ("layer", "n_rows", "expert", "reason"),
    [
        (1, 1, 0, "a layer was asked for that is not there"),
        (-1, 1, 0, "a layer was asked for that is not there"),
        (0, MOST_ROWS + 1, 0, "more rows were sent than a request has room for"),
        (0, -1, 0, "more rows were sent than a request has room for"),
        (0, 2, N_EXPERTS, "an expert was asked for that is not there"),
        (0, 2, -1, "an expert was asked for that is not there"),
    ],
)
def test_what_cannot_be_computed_fails_and_the_next_request_does_not(
    layer: int, n_rows: int, expert: int, reason: str
) -> None:
    stream = Stream()
    stream.add(stream.double)
    stream.shared.experts[1, 1] = expert
    number = stream.post(layer, n_rows)
    assert stream.worker.wait(number, LONG_S)
    assert stream.failure(0, number) == reason
    stream.shared.experts[:] = 0
    stream.shared.rows[:] = 3
    assert (stream.meet(n_rows=2) == 6).all()
    assert stream.failure(number, number + 1) == ""


def test_a_request_that_hangs_is_ended_and_so_are_those_behind_it_until_the_thread_is_back() -> None:
    stream = Stream(stall_s=SHORT_S)
    stream.add(stream.double)
    with hanging(stream) as layer:
        stream.shared.rows[:] = 5
        stream.meet(layer)
        stream.meet(0)
        assert "in time" in stream.failure(0, 1)
        assert "in time" in stream.failure(1, 2)
    while True:  # the thread comes back when it likes
        n = int(stream.words[POSTED])
        found = stream.meet(0)
        if not stream.failure(n, n + 1):
            break
    assert (found == 10).all()


def test_a_late_result_is_not_written_over_that_of_the_next_request() -> None:
    stream = Stream(stall_s=SHORT_S)
    stream.add(stream.double)
    with hanging(stream) as layer:
        stream.meet(layer)
        stream.shared.result[:] = 7
    stream.tape.result[:] = -1
    for _ in range(N_MORE):
        stream.meet(0, n_rows=0)
        assert (stream.shared.result == 7).all()


def test_a_step_that_is_abandoned_halfway_does_not_hold_up_the_next() -> None:
    stream = Stream()
    stream.add(stream.double)
    for i in range(200):
        stream.shared.rows[:] = i
        stream.post()
        number = stream.post()  # nobody has taken the result of the one before
        assert stream.worker.wait(number, LONG_S)
        assert (stream.shared.result[0] == 2 * i).all()


def test_failures_belong_to_the_step_that_made_them() -> None:
    stream = Stream()
    stream.add(stream.double)
    stream.meet()
    stream.meet(layer=9)
    stream.meet()
    assert stream.failure(0, 1) == ""
    assert stream.failure(1, 2) != ""
    assert stream.failure(1, 3) == ""


def test_numbers_may_pass_the_largest() -> None:
    stream = Stream(begin=-2)
    stream.add(stream.double)
    for i in range(5):
        stream.shared.rows[:] = i
        number = stream.post() % (1 << 32)
        assert stream.worker.wait(number, LONG_S)
        assert (stream.shared.result[0] == 2 * i).all()
    assert stream.worker.n_expected == 3


def test_threads_end_while_requests_are_missing() -> None:
    stream = Stream()
    stream.worker.expect(5)
    assert stream.worker.close() and stream.worker.close()


def test_a_thread_that_hangs_is_left_behind() -> None:
    stream = Stream(stall_s=SHORT_S)
    with hanging(stream) as layer:
        stream.meet(layer)
        assert not stream.worker.close()


@pytest.mark.filterwarnings("ignore:This process")
def test_a_fork_neither_waits_for_threads_nor_asks_them() -> None:
    stream = Stream()
    stream.add(stream.double)
    stream.meet()
    child = os.fork()
    if child == 0:
        try:
            stream.worker.expect(1)
        except RuntimeError:
            os._exit(7 if not stream.worker.close() else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    stream.shared.rows[:] = 4
    assert (stream.meet() == 8).all()
