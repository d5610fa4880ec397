"""Ops waiting to be recorded, with everything they point at, and the plans made of them."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tahr import _vulkan as native
from tahr.backends.api import (
    INT8_BLOCK,
    StepInputs,
    StepLimits,
    Tensor,
    Weight,
    check_ids,
)
from tahr.backends.vulkan.inputs import SharedInputs
from tahr.backends.vulkan.memory import (
    BlockArena,
    RowBuffer,
    RowCount,
    Span,
)
from tahr.backends.vulkan.shaders import Kernels
from tahr.errors import GenerateError, TahrError

Groups = tuple[int, int, int]
SEGMENT_NS = 50e6  # time that one piece of work should take at most: drivers end what takes seconds
MOST_SEGMENTS = 256
# Ways to run a tape by name; all but the first are tests of barriers and of what ops declare.
PLAIN = "plain"
DECLARED = "declared"
ORDERS = {PLAIN: native.AS_ENQUEUED, "barriers": native.BARRIER_AFTER_EACH, "permuted": native.PERMUTED}


@contextmanager
def raising(error_type: type[TahrError]) -> Iterator[None]:
    """Turns what goes wrong on the device into an error of ours."""
    try:
        yield
    except native.DeviceError as error:
        raise error_type(str(error)) from error


def packed(addresses: Iterable[int], *numbers: float) -> bytes:
    """Push constants: addresses first, then 32-bit integers and floats."""
    at = list(addresses)
    kinds = "".join("f" if isinstance(number, float) else "i" for number in numbers)
    return struct.pack(f"<{len(at)}Q{kinds}", *at, *numbers)


def address_of(span: Span | None) -> int:
    return span.address if span else 0


class Running:
    """The recordings that a device runs: one step at most, because it writes where the next one reads."""

    def __init__(self, device: native.Device, kernels: Kernels, mode: str):
        self.device = device
        self.kernels = kernels
        self._mode = mode
        self._pending: list[native.Recording] = []

    def record(self, tape: native.Tape, n_segments: int = 1) -> native.Recording:
        recording = tape.record(ORDERS[self._mode], n_segments=n_segments)
        self.kernels.keep()
        return recording

    def begin(self, recording: native.Recording) -> None:
        """Submit a recording behind what is running. It is waited for here if it is running itself."""
        recording.run()
        self._pending.append(recording)

    def settle(self) -> None:
        """Wait until nothing is running."""
        pending = self._pending
        self._pending = []
        with raising(GenerateError):
            for recording in pending:
                recording.wait()

    def checks(self, tape: native.Tape) -> bool:
        """Run a tape op by op, if this is a test of what ops declare."""
        if self._mode != DECLARED:
            return False
        tape.run_declared()
        return True


class OpQueue:
    """Ops in order, and what must live as long as they may run."""

    def __init__(self, running: Running, arena: BlockArena):
        self.arena = arena
        self.tape = native.Tape(running.device)
        self.turn = object()  # a new one each time the queue is cleared
        self._running = running
        self._kept: dict[int, object] = {}
        self._steps: dict[int, StepInputs] = {}
        self._tables: list[tuple[StepInputs, Weight]] = []

    def keep(self, thing: object) -> None:
        self._kept[id(thing)] = thing

    def keep_step(self, step: StepInputs) -> SharedInputs:
        """A step that ops read: its inputs on the device."""
        self._steps[id(step.device)] = step
        shared: SharedInputs = step.device
        return shared

    def keep_table(self, step: StepInputs, table: Weight) -> None:
        """A table in which a step's ids are looked up."""
        self._tables.append((step, table))

    def use(self, x: Tensor) -> Span:
        """The rows of a tensor that an op is going to read."""
        buffer: RowBuffer = x.data
        if buffer.arena is not self.arena:
            self.keep(buffer)
        return buffer.span

    def add(
        self,
        pipeline: native.Pipeline,
        groups: Groups,
        constants: bytes,
        reads: Sequence[Span | None],
        writes: Sequence[Span | None],
    ) -> int:
        """Append an op and give its number."""
        for span in (*reads, *writes):
            if span:
                self.keep(span.buffer)
        ranges = [[span.range for span in spans if span] for spans in (reads, writes)]
        return self.tape.append(pipeline, constants, groups, *ranges)

    def check(self) -> None:
        """Refuse inputs that would lead ops out of their tables."""
        for step, table in self._tables:
            check_ids(step, table)

    def upload(self) -> None:
        """Give the device what its ops read of steps, when nothing is running."""
        for step in self._steps.values():
            step.device.upload(step)

    def run(self) -> None:
        """Run everything once, and forget it."""
        if not len(self.tape):
            return
        try:
            self.check()
            self._running.settle()
            self.upload()
            with raising(GenerateError):
                if not self._running.checks(self.tape):
                    self._running.begin(self._running.record(self.tape))
            self._running.settle()
        finally:
            self.tape.clear()
            self._kept.clear()
            self._steps.clear()
            self._tables.clear()
            self.turn = object()


class TapePlan:
    """A kept queue. Its commands are recorded when it first runs, and in more pieces when they take long."""

    def __init__(self, queue: OpQueue, running: Running, result: Tensor):
        self.result = result
        self._queue = queue
        self._running = running
        self._recording: native.Recording | None = None
        self._n_segments = 1

    def run(self) -> None:
        self._queue.check()
        self._running.settle()
        self._queue.upload()
        with raising(GenerateError):
            if not self._running.checks(self._queue.tape):
                self._running.begin(self._ready())

    def follow(self) -> None:
        """Run behind the step that is running, without inputs of its own."""
        with raising(GenerateError):
            if not self._running.checks(self._queue.tape):
                self._running.begin(self._ready())

    def _ready(self) -> native.Recording:
        recording = self._recording
        if recording is None or self._is_long(recording):
            recording = self._recording = self._running.record(self._queue.tape, self._n_segments)
        return recording

    def _is_long(self, recording: native.Recording) -> bool:
        """Whether the last run took too long for so few pieces; more are cut then."""
        wanted = min(MOST_SEGMENTS, int(recording.last_wait_ns / SEGMENT_NS) + 1)
        if wanted <= self._n_segments:
            return False
        self._n_segments = 2 * wanted
        return True


class RoundedRows:
    """Rows as int8 codes and, of each block, a scale and the sum of its codes.

    An op that makes f32 rows offers these beside them, and computes them if a later op asks before the queue runs.
    Their memory is reserved with the offer: what is free when a later op asks may be used by ops in between.
    """

    __slots__ = ("_arena", "_is_wanted", "_op", "_turn", "codes", "scales")

    def __init__(self, queue: OpQueue, count: RowCount, width: int):
        n_rows = max(1, count.limit)
        self._arena = queue.arena
        self.codes = queue.arena.take(n_rows * width)
        self.scales = queue.arena.take(n_rows * (width // INT8_BLOCK) * 8)
        self._turn: object = None
        self._op = (0, 0)
        self._is_wanted = False

    def __del__(self) -> None:
        if hasattr(self, "scales"):
            self._arena.give(self.codes)
            self._arena.give(self.scales)

    def offer(self, queue: OpQueue, op: int, push_at: int) -> None:
        """An op can write them: its constants hold the address of codes at `push_at`, that of scales behind it."""
        self._turn = queue.turn
        self._op = op, push_at

    def made(self) -> None:
        """An op of its own writes them."""
        self._is_wanted = True

    def ask(self, queue: OpQueue) -> bool:
        """Ask for them; False if the op that offered them has run already."""
        if self._is_wanted:
            return True
        if self._turn is not queue.turn:
            return False
        op, push_at = self._op
        queue.tape.patch(op, push_at, self.codes.range)
        queue.tape.patch(op, push_at + 8, self.scales.range)
        self._is_wanted = True
        return True


def powers(most: int, least: int = 1) -> list[int]:
    """Powers of two from `least` below `most`, and `most`."""
    found = [1 << i for i in range(31) if least <= 1 << i < most]
    return [*found, most]


def buckets(limits: StepLimits, n_decode_tokens: int) -> list[StepLimits]:
    """Sizes of plans: grids are made for the largest step, and groups without rows end at once, so few are enough."""
    decoding = [
        replace(limits, n_tokens=n * k, n_seqs=n, n_rows=n * k, n_tokens_per_seq=k)
        for k in sorted({1, n_decode_tokens})
        for n in powers(limits.n_seqs)
    ]
    n_sampled = min(limits.n_seqs * n_decode_tokens, limits.n_rows)
    mixed = [replace(limits, n_tokens=n, n_rows=min(n, n_sampled)) for n in powers(limits.n_tokens, 16)]
    return decoding + mixed + [limits] * (n_sampled < limits.n_rows)
