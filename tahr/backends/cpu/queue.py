"""The op queue of the CPU backend: a tape of ops, and everything the ops point at."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tahr import _native as native
from tahr._native import address_of
from tahr.backends.api import INT8_BLOCK, StepInputs, Tensor, Weight, check_ids
from tahr.backends.cpu.memory import Arena, Buffer, Count
from tahr.backends.cpu.slots import SlotMemory
from tahr.errors import OffloadEof, OffloadError


def new_tape(isa: str) -> native.Tape:
    """A tape; one that times its ops if asked."""
    if os.environ.get("TAHR_PROFILE") != "1":
        return native.Tape(isa)
    from tahr.backends.cpu.profile import timed_tape  # rarely needed, so not imported at start-up

    return timed_tape(isa)


class Queue:
    """Ops waiting to be run, with everything their structs point at."""

    def __init__(self, isa: str, arena: Arena | None = None):
        self.tape = new_tape(isa)
        self.arena = arena or Arena()
        self.kept: dict[int, object] = {}
        self.slots: dict[int, SlotMemory] = {}  # whose pieces its ops await; keys are ids
        self.tables: list[tuple[StepInputs, Weight]] = []
        self.turn = object()  # a new one each time the queue is cleared

    def keep(self, thing: object) -> None:
        """Keep something alive as long as an op may look at it."""
        self.kept[id(thing)] = thing

    def run(self, pool: native.Pool) -> None:
        for step, table in self.tables:
            check_ids(step, table)
        for slots in self.slots.values():
            slots.begin_step()
        self.tape.run(pool)
        refuse_failed([slots.native.take_failure() for slots in self.slots.values()])

    def clear(self) -> None:
        self.tape.clear()
        self.kept.clear()
        self.tables.clear()
        self.slots.clear()
        self.turn = object()


def refuse_failed(failures: Sequence[tuple[int, str]]) -> None:
    """Raise the first of what kept pagers from reading pieces of the step that has just run."""
    kind, reason = next((each for each in failures if each[0]), (0, ""))
    if kind == native.ARENA_TOO_SMALL:
        raise OffloadError(f"{reason}. The request was given up; raise the ram_budget.")
    if kind:
        error = OffloadEof if kind == native.READ_PAST_END else OffloadError
        raise error(f"{reason}. The request was given up; look at the disk and the model's files, then ask again.")


class QuantisedRows:
    """Rows as int8 blocks, made in the present turn of a queue.

    An op that makes f32 rows offers int8 rows beside them, and computes those too if a later op asks before the queue
    runs. Their memory is reserved with the offer, because memory that is free when a later op asks may be memory that
    the offering op still reads.
    """

    __slots__ = ("_turn", "_wanted", "rows")

    def __init__(self, queue: Queue, count: Count, width: int):
        self.rows = Buffer(queue.arena, count, native.quantised_row_bytes(width))
        self._turn = queue.turn
        self._wanted = np.zeros(1, np.uint64)  # the address of the rows; 0: no op has asked
        queue.keep(self._wanted)

    @property
    def flag_address(self) -> int:
        """Where the offering op looks up whether to write them, and to which address."""
        return address_of(self._wanted)

    def ask(self, queue: Queue) -> bool:
        """Ask for them; False if the op that offered them has run already."""
        if self._turn is not queue.turn:
            return False
        self._wanted[0] = self.rows.address
        return True


def offer_quantised(queue: Queue, x: Tensor) -> int:
    """The `quantised_out` of the op that makes x; 0 where its rows have no whole blocks."""
    if x.width % INT8_BLOCK:
        return 0
    x.data.quantised = QuantisedRows(queue, x.data.count, x.width)
    address: int = x.data.quantised.flag_address
    return address


class NativeCall(NamedTuple):
    """`function(tape, pool)` runs a plan's ops without the interpreter, from any thread. All three are addresses."""

    function: int
    tape: int
    pool: int


class CpuPlan:
    """A kept queue."""

    def __init__(self, queue: Queue, pool: native.Pool, result: Tensor):
        self.result = result
        self._queue = queue
        self._pool = pool

    def run(self) -> None:
        self._queue.run(self._pool)

    def native_call(self) -> NativeCall:
        """How native code runs the plan, which must outlive the calls. Its ops look up no embeddings."""
        assert not self._queue.slots, "what could not be read is told by Python"
        assert not self._queue.tables, "token ids are checked by Python before every run"
        return NativeCall(native.RUN_TAPE, self._queue.tape.address, self._pool.address)
