"""Times of ops on a CUDA device with TAHR_PROFILE=1, under the names that the CPU's have.

An event is behind each op, also inside captured steps, which record theirs at every run.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from tahr.backends.api import AddedNorm, ExpertMLPs, JoinedLinears, Linear, Plan, Rows, StepInputs, Tensor, Weight
from tahr.backends.api.ops import Ops
from tahr.backends.cuda.ops.step_inputs import RecordingContext
from tahr.backends.cuda.ops.step_ops import StepOps
from tahr.backends.host.profile import Label, Profile, TimedOp, product_name, profile_of_process

NAMES = {"linears": "linear", "rms_norm": "norm", "add_rms_norm": "norm"}  # names on the CPU, where they differ
NO_OPS = ("_", "check_", "with_host_vectors", "vector_values")  # beginnings of names of methods that are no ops


def device_moment() -> torch.cuda.Event:
    """A moment of the stream, which a graph that is being captured has anew at every replay."""
    event = torch.cuda.Event(enable_timing=True, external=True)
    event.record()
    return event


def device_nanoseconds(begin: torch.cuda.Event, end: torch.cuda.Event) -> int:
    end.synchronize()
    return int(begin.elapsed_time(end) * 1e6)


def host_nanoseconds(begin: int, end: int) -> int:
    return end - begin


@dataclass(slots=True)
class MarkedOps:
    """The ops of a step in order, with the moments between them."""

    moments: list[Any]  # one more than ops
    ops: list[tuple[Label, Rows]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MarkedStep:
    """A step that runs or has run: its ops, and how many rows it had of each kind."""

    marked: MarkedOps
    counts: list[int]

    def rows(self, of: Rows) -> int | None:
        return self.counts[of.value] if of is not Rows.FIXED else None


class Recorder(RecordingContext):
    """A context that marks the ops of steps as they run or are captured, and books what they took.

    A step is booked when the next one begins, whose graph may record the same events. So the host waits for each step
    before it launches another: ops take as long as without it, steps longer.
    """

    def __init__(self, profile: Profile, on_device: bool):
        super().__init__()
        self._profile = profile
        self._moment: Callable[[], Any] = device_moment if on_device else time.perf_counter_ns
        self._nanoseconds: Callable[[Any, Any], int] = device_nanoseconds if on_device else host_nanoseconds
        self._marked: MarkedOps | None = None  # ops of the plan that runs, if it has run or captured them
        self._step: MarkedStep | None = None  # the step in flight
        profile.unbooked.append(self.book)

    def run(self, step: Callable[[], Tensor]) -> Tensor:
        self._marked = MarkedOps([self._moment()])
        return super().run(step)

    def mark(self, op: Callable[..., Any], label: Callable[..., tuple[Label, Rows]]) -> Callable[..., Any]:
        """The op, which marks its end. One that calls others leaves the marks to them."""

        def marking(*args: Any, **options: Any) -> Any:
            marked = self._marked if self.inside else None
            n_marks = len(marked.ops) if marked else 0
            found = op(*args, **options)
            if marked and len(marked.ops) == n_marks:
                marked.ops.append(label(*args, *options.values()))
                marked.moments.append(self._moment())
            return found

        return marking

    def time(self, run: Callable[[], None], before: MarkedOps | None, inputs: StepInputs) -> MarkedOps:
        """Run a plan. Its marks, which are those of `before` if it replays a graph."""
        self.book()
        self._marked = None
        self._profile.begin()
        run()
        marked = self._marked or before
        assert marked, "a plan runs its ops before it replays them"
        self._step = MarkedStep(marked, inputs.counts.tolist())
        return marked

    def book(self) -> None:
        """Wait for the step in flight, and book it."""
        step = self._step
        self._step = None
        if step:
            moments = step.marked.moments
            spent = map(self._nanoseconds, moments[:-1], moments[1:])
            ops = zip(step.marked.ops, spent, strict=True)
            timed = [TimedOp(label, nanoseconds, step.rows(rows)) for (label, rows), nanoseconds in ops]
            self._profile.book(step.counts[Rows.TOKENS.value], timed)


class TimedPlan:
    """A plan whose runs are timed."""

    def __init__(self, plan: Plan, inputs: StepInputs, recorder: Recorder):
        self.plan = plan
        self._inputs = inputs
        self._recorder = recorder
        self._marked: MarkedOps | None = None

    @property
    def result(self) -> Tensor:
        return self.plan.result

    def run(self) -> None:
        self._marked = self._recorder.time(self.plan.run, self._marked, self._inputs)


def time_ops(backend: StepOps) -> None:
    """Have a backend mark the ends of its own ops in all plans; default bodies are made of those."""
    recorder = Recorder(profile_of_process(), backend.device.type == "cuda")
    record = backend.record
    prepare = backend.prepare
    timed: dict[str, Callable[..., Any]] = {
        name: recorder.mark(getattr(backend, name), partial(label_of, NAMES.get(name, name)))
        for name in own_ops(type(backend))
    }
    timed["record"] = lambda step, inputs: TimedPlan(record(step, inputs), inputs, recorder)
    timed["prepare"] = lambda plan: prepare(plan.plan if isinstance(plan, TimedPlan) else plan)
    for name, method in timed.items():
        setattr(backend, name, method)
    backend.context = recorder


def own_ops(kind: type[Ops]) -> list[str]:
    """The ops that a backend has bodies of its own for."""
    ops = [name for name in vars(Ops) if not name.startswith(NO_OPS)]
    return [name for name in ops if getattr(kind, name) is not getattr(Ops, name)]


def label_of(name: str, *args: Any) -> tuple[Label, Rows]:
    """Products by formats and shapes, and the rows that an op is about."""
    rows = next((each.rows for each in tensors_of(args)), Rows.TOKENS)
    matrices = [weight for each in args for weight in matrices_of(each)]
    if not matrices:
        return Label(name), rows
    heights = [weight.n_stack * weight.n_rows for weight in matrices]
    title = product_name(name, [weight.format for weight in matrices], heights, matrices[0].n_cols)
    if name == "experts":  # the step decides whose matrices are read
        return Label(title), rows
    n_ops = sum(2 * height * weight.n_cols for height, weight in zip(heights, matrices, strict=True))
    return Label(title, sum(weight.n_bytes for weight in matrices), n_ops), rows


def tensors_of(args: tuple[Any, ...]) -> Iterator[Tensor]:
    """Rows among the arguments of an op, the ones it begins with first."""
    for each in args:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, AddedNorm):
            yield each.x
        elif isinstance(each, list | tuple):
            yield from tensors_of(tuple(each))


def matrices_of(argument: Any) -> list[Weight]:
    """Matrices that rows are multiplied by."""
    match argument:
        case Linear():
            return [argument.weight]
        case JoinedLinears():
            return [linear.weight for linear in argument.parts]
        case ExpertMLPs():
            return [linear.weight for linear in (argument.gate, argument.up, argument.down)]
    return []
