"""What changes from step to step on a CUDA device: inputs that arrive in one copy, and plans that replay a step."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from tahr.backends.api import Rows, StepInputs, StepLimits, Tensor

ALIGN = 4  # int32 numbers: arrays start at multiples of 16 bytes, as wide loads want


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """Step inputs on the device: views of one buffer, which one copy from pinned host memory fills."""

    host: torch.Tensor
    buffer: torch.Tensor
    n_fixed: int  # numbers before the page tables, which come last, those of a sequence together
    counts: torch.Tensor
    ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: tuple[torch.Tensor, ...]  # by group
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    state_slots: torch.Tensor
    logit_rows: torch.Tensor
    page_tables: tuple[torch.Tensor, ...]  # by group

    def upload(self, n_seqs: int) -> None:
        """Send what a step of `n_seqs` sequences needs. The host arrays may change again once a result is read."""
        n = self.n_fixed + n_seqs * self.page_tables[0].stride(0)
        self.buffer[:n].copy_(self.host[:n], non_blocking=True)


def make_inputs(limits: StepLimits, device: torch.device) -> StepInputs:
    """Host arrays in pinned memory with their device copies behind them."""
    n, s, g = limits.n_tokens, limits.n_seqs, limits.n_groups
    shapes = {"counts": (3,), "ids": (n,), "positions": (n,), "slot_mapping": (g, n), "query_start": (s + 1,),
              "seq_lens": (s,), "state_slots": (s,), "logit_rows": (limits.n_rows,),
              "page_table": (s, g, limits.n_pages_per_seq)}  # fmt: skip
    begins, at = {}, 0
    for name, shape in shapes.items():
        begins[name] = at
        at += -(-int(np.prod(shape)) // ALIGN) * ALIGN
    host = torch.zeros(at, dtype=torch.int32, pin_memory=device.type == "cuda")
    buffer = torch.zeros(at, dtype=torch.int32, device=device)

    def views(of: torch.Tensor) -> dict[str, torch.Tensor]:
        found = {k: of[begins[k] : begins[k] + int(np.prod(shape))].view(shape) for k, shape in shapes.items()}
        return {**found, "page_table": found["page_table"].transpose(0, 1)}

    there = views(buffer)
    slots, tables = there.pop("slot_mapping").unbind(), there.pop("page_table").unbind()
    on_device = DeviceInputs(host, buffer, begins["page_table"], slot_mapping=slots, page_tables=tables, **there)
    return StepInputs(limits, **{name: view.numpy() for name, view in views(host).items()}, device=on_device)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows on the device: `math` is the type that products of them run in, narrower at times than they are stored.

    `inputs` is set on the results of plans: its counts then say how many rows are alive.
    """

    values: torch.Tensor
    math: torch.dtype
    inputs: StepInputs | None = None

    def live(self, rows: Rows) -> torch.Tensor:
        """The rows that mean something."""
        if self.inputs is None or rows is Rows.FIXED:
            return self.values
        return self.values[: int(self.inputs.counts[rows.value])]


class Stage:
    """Says how the ops of the moment see their step: sent already or not, padded to the limits or not."""

    def __init__(self) -> None:
        self.inside = False  # a plan is at work: its inputs have been sent
        self.padded = False
        self.looking = False
        self.seen: StepInputs | None = None

    def enter(self, step: StepInputs) -> DeviceInputs:
        """What an op calls first: the step's inputs on the device."""
        inputs: DeviceInputs = step.device
        if not self.inside:
            inputs.upload(step.n_seqs)
        if self.looking and not self.inside:
            self.seen, self.inside, self.padded = step, True, step.limits.n_tokens_per_seq == 1
        return inputs

    def look(self, step: Callable[[], Tensor]) -> tuple[StepInputs | None, Tensor]:
        """Call `step` to see which inputs it reads; this also compiles its kernels."""
        self.seen, self.looking = None, True
        try:
            result = step()
            return self.seen, result
        finally:
            self.looking = self.inside = self.padded = False

    def run(self, step: Callable[[], Tensor], padded: bool) -> Tensor:
        """Call `step`, whose inputs have been sent."""
        self.inside, self.padded = True, padded
        try:
            return step()
        finally:
            self.inside = self.padded = False


class EagerPlan:
    """Calls the function again at each run, for exactly as many rows as the step has (or padded, for testing that)."""

    def __init__(self, stage: Stage, step: Callable[[], Tensor], inputs: StepInputs, result: Tensor, padded: bool):
        self._stage, self._step, self._inputs, self._padded = stage, step, inputs, padded
        self.result = owned(result, inputs)

    def run(self) -> None:
        self._inputs.device.upload(self._inputs.n_seqs)
        self.result = owned(self._stage.run(self._step, self._padded), self._inputs)


class GraphPlan:
    """A captured CUDA graph: one copy and one launch per run."""

    def __init__(self, stage: Stage, step: Callable[[], Tensor], inputs: StepInputs, pool: tuple[int, int]):
        self._inputs = inputs
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile (another engine loads): only this thread must behave.
        with uncollected(), torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            result = stage.run(step, padded=True)
        self.result = owned(result, inputs)

    def run(self) -> None:
        self._inputs.device.upload(self._inputs.n_seqs)
        self._graph.replay()


@contextmanager
def uncollected() -> Iterator[None]:
    """Keeps Python's collector from running: a graph it found to be garbage would be freed, which ends a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def owned(result: Tensor, inputs: StepInputs) -> Tensor:
    """The result of a plan, tied to the inputs whose counts say how much of it is alive."""
    return replace(result, data=replace(result.data, inputs=inputs))
