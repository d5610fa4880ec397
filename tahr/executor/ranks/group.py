"""A group of ranks as its driver sees it: every message goes to all of them, and all answer it."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import finalize

from tahr import _native as native
from tahr.errors import ExecutorLost, LoadError, TahrError
from tahr.executor.ranks.handshake import Hello, check_hello
from tahr.executor.ranks.messages import BadMessage, RankMessage, read_message, text_message, write_message
from tahr.executor.ranks.processes import RankProcesses
from tahr.executor.ranks.program import HELLO, LOAD
from tahr.executor.ranks.region import SENT, Region, RegionSizes, new_region
from tahr.executor.ranks.replies import RankReply, read_reply

HELLO_S = 60.0  # limit on the time until a process is there and has opened the files
LOAD_S = 60.0  # limit on loading, and more by what is read:
LOAD_BYTES_A_SECOND = 2e7
LOOK_S = 0.2  # between two looks at signals
FAILED_S = 2.0  # limit for the others, when a rank has failed


class GroupStart(NamedTuple):
    """The beginning of a group."""

    sizes: RegionSizes
    given: Mapping[str, Any]  # content of the first message
    hello: Hello
    n_weight_bytes: int


class RankGroup:
    """The processes of one model; when they are lost, others take their place."""

    def __init__(self, start: GroupStart):
        self._start = start
        self._number = 0  # messages sent
        self._is_answered = True
        self._region: Region
        self._processes: RankProcesses
        self._end: finalize[Any, Any] | None = None
        self.log: list[str] = []  # lines of the first rank, and one of each

    @property
    def n_ranks(self) -> int:
        return self._start.sizes.n_ranks

    @property
    def region(self) -> Region:
        return self._region

    @property
    def pids(self) -> tuple[int, ...]:
        return self._processes.pids

    def begin(self) -> None:
        """Begin all ranks, and wait until they have loaded; an error names the rank and what it did not come to."""
        self.end()
        self._region = new_region(self._start.sizes)
        self._number = 0
        self._is_answered = True
        sizes = json.dumps({name: getattr(self._start.sizes, name) for name in RegionSizes.__slots__})
        arguments = [[str(rank), str(self._region.descriptor), sizes] for rank in range(self.n_ranks)]
        self._processes = RankProcesses(self._region, arguments)
        self._end = finalize(self, self._processes.end)
        try:
            self._processes.begin()
            os.close(self._region.descriptor)
            self._load()
        except BaseException as error:
            self.end()
            if isinstance(error, ExecutorLost):
                raise LoadError(str(error)) from error
            raise

    def _load(self) -> None:
        began = time.monotonic()
        start = self._start
        hellos = self.call(text_message(HELLO, json.dumps(start.given)), HELLO_S, "start")
        for rank, reply in enumerate(hellos):
            check_hello(rank, json.loads(reply.text), start.hello)
        limit_s = LOAD_S + start.n_weight_bytes / LOAD_BYTES_A_SECOND
        all_found = [json.loads(reply.text) for reply in self.call(RankMessage(LOAD, ()), limit_s, "load")]
        self.log = [f"On rank 0: {line}" for line in all_found[0]["log"]]
        for rank, found in enumerate(all_found):
            self.log.append(
                f"Rank {rank}: process {self.pids[rank]}, {start.given['n_threads'][rank]} threads, "
                f"{found['n_weight_bytes'] / 1e6:.1f} MB of weights, {found['n_kv_bytes'] / 1e6:.1f} MB for keys and "
                f"values, there after {time.monotonic() - began:.1f} s"
            )

    def end(self) -> None:
        """Kill the processes, and forget the memory that they shared."""
        if self._end:
            self._end()
            self._end = None

    # ---- messages ---------------------------------------------------------------------------------------------

    def send(self, message: RankMessage) -> None:
        """Give all ranks a message; the one before has been answered."""
        assert self._is_answered, "ranks answer one message after the other"
        if self._end is None:
            raise ExecutorLost("The ranks of this model were ended.")
        self._number += 1
        write_message(self._region.message, self._number, message)
        self._is_answered = False
        self._region.words.set(SENT, self._number)

    def wait(self, limit_s: float, what: str = "step") -> list[RankReply]:
        """The answers to the last message; an error that a rank answers is raised when all have answered."""
        until = time.monotonic() + limit_s
        replies = []
        failed: TahrError | None = None
        for rank in range(self.n_ranks):
            try:
                reply = self._reply(rank, until, what)
            except ExecutorLost as error:
                raise ExecutorLost(f"{error} Before that, a rank failed: {failed}") if failed else error from failed
            if isinstance(reply, RankReply):
                replies.append(reply)
                continue
            failed = failed or reply
            until = min(until, time.monotonic() + FAILED_S)
        self._is_answered = True
        if failed:
            raise failed
        return replies

    def call(self, message: RankMessage, limit_s: float, what: str) -> list[RankReply]:
        """Send a message and wait for the answers."""
        self.send(message)
        return self.wait(limit_s, what)

    def _reply(self, rank: int, until: float, what: str) -> RankReply | TahrError:
        region = self._region
        while why := region.words.wait(region.answered(rank), self._number, min(LOOK_S, left(until))):
            if why == native.WAITED_ABANDONED:
                raise ExecutorLost(f"The ranks of this model were lost: {self._processes.reason or 'they were ended'}.")
            if not left(until):
                raise ExecutorLost(f"Rank {self._slowest()} did not come to the end of its {what} in time.")
        try:
            return read_reply(read_message(region.reply(rank), self._number))
        except (BadMessage, ValueError) as error:
            raise ExecutorLost(f"Rank {rank} answered what is no answer: {error}") from error

    def _slowest(self) -> int:
        """The rank for which others wait at a meeting, of those that have not answered."""
        region = self._region
        waited_for = [rank for rank in range(self.n_ranks) if region.words.get(region.answered(rank)) != self._number]
        return min(waited_for, key=lambda rank: region.words.get(region.met(rank)))


def left(until: float) -> float:
    return max(0.0, until - time.monotonic())
