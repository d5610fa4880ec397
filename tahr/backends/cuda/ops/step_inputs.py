"""The inputs of a step on a CUDA device, which arrive in one copy, and how its ops see them."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import torch

from tahr.backends.api import Ints, Rows, StepInputs, StepLimits, Tensor
from tahr.backends.api.step import extra_shapes
from tahr.backends.cuda.ops.late_rows import LateRows

ALIGN = 4  # int32 numbers: arrays start at multiples of 16 bytes, as wide loads want
N_STAGING = 2  # copies of the inputs that may be on their way to the device


class Staging:
    """Pinned memory from which inputs are sent. It is written again only when the device has read it."""

    def __init__(self, n: int):
        self._values = torch.zeros(n, dtype=torch.int32, pin_memory=True)
        self._numbers: Ints = self._values.numpy()
        self._sent = torch.cuda.Event()

    def ready(self) -> Ints:
        """The memory, which still holds what was sent last. NumPy is to write it: torch would wake threads for that."""
        self._sent.synchronize()
        return self._numbers

    def send(self, buffer: torch.Tensor, begin: int = 0) -> None:
        """Copy as many numbers from `begin` on as `buffer` holds to it, behind everything enqueued."""
        buffer.copy_(self._values[begin : begin + len(buffer)], non_blocking=True)
        self._sent.record()


@dataclass(eq=False, slots=True)
class DeviceInputs:
    """Step inputs on the device: views of one buffer, which one copy fills."""

    host: Ints  # memory of the arrays in the `StepInputs`
    buffer: torch.Tensor
    staging: list[Staging]  # empty where the device reads host memory: the interpreter
    host_tables: Ints  # [sequences, groups, pages]: the last numbers of `host`
    host_order: Ints  # [sequences], of `host`: see `order`
    page_size: int  # smallest page size; 1 if it is not known yet
    last_tokens: torch.Tensor  # tokens by slot: targets of negative ids
    counts: torch.Tensor
    ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: tuple[torch.Tensor, ...]  # one for each group
    query_start: torch.Tensor
    seq_lens: tuple[torch.Tensor, ...]  # one for each group
    state_slots: torch.Tensor
    logit_rows: torch.Tensor
    order: torch.Tensor  # the sequences of the step, the longest first: what is begun last should not take long
    page_tables: tuple[torch.Tensor, ...]  # one for each group
    extras: dict[str, torch.Tensor]  # arrays of `Extras`: the first numbers of `host`
    n_extras: int  # numbers of these arrays

    def upload(self, inputs: StepInputs) -> None:
        """Send what a step needs, of page tables the pages that have tokens. The host arrays may change afterwards."""
        n_seqs = inputs.n_seqs
        n_fixed = len(self.host) - self.host_tables.size
        first = 0 if inputs.limits.extras else self.n_extras
        self._sort(inputs.seq_lens[0, :n_seqs])
        n = n_fixed + self.host_tables[:n_seqs].size
        if not self.staging:
            self.buffer[first:n].copy_(torch.from_numpy(self.host[first:n]))
            return
        n_pages = -(-int(inputs.seq_lens[:, :n_seqs].max(initial=0)) // self.page_size)
        self.staging.append(self.staging.pop(0))
        staged = self.staging[0].ready()
        staged[first:n_fixed] = self.host[first:n_fixed]
        tables = staged[n_fixed:].reshape(self.host_tables.shape)
        tables[:n_seqs, :, :n_pages] = self.host_tables[:n_seqs, :, :n_pages]  # a full row is as long as the context
        self.staging[0].send(self.buffer[first:n], first)

    def _sort(self, lengths: Ints) -> None:
        n = len(lengths)
        self.host_order[:n] = np.argsort(-lengths, kind="stable")
        self.host_order[n:] = np.arange(n, len(self.host_order))  # places without a sequence stay where they are


def make_inputs(limits: StepLimits, last_tokens: torch.Tensor, page_size: int) -> StepInputs:
    """Host arrays with their device copies behind them."""
    device = last_tokens.device
    n = limits.n_tokens
    s = limits.n_seqs
    g = limits.n_groups
    extra = extra_shapes(limits)
    shapes = {**extra, "counts": (3,), "ids": (n,), "positions": (n,), "slot_mapping": (g, n), "query_start": (s + 1,),
              "seq_lens": (g, s), "state_slots": (s,), "logit_rows": (limits.n_rows,), "order": (s,),
              "page_table": (s, g, limits.n_pages_per_seq)}  # fmt: skip
    begins = {}
    at = 0
    for name, shape in shapes.items():
        begins[name] = at = -(-at // ALIGN) * ALIGN
        at += prod(shape)
    host = torch.zeros(at, dtype=torch.int32)
    buffer = torch.zeros(at, dtype=torch.int32, device=device)

    def views(of: torch.Tensor) -> dict[str, torch.Tensor]:
        found = {k: of[begins[k] : begins[k] + prod(shape)].view(shape) for k, shape in shapes.items()}
        return {**found, "page_table": found["page_table"].transpose(0, 1)}

    there = views(buffer)
    slots = there.pop("slot_mapping").unbind()
    lengths = there.pop("seq_lens").unbind()
    tables = there.pop("page_table").unbind()
    staging = [Staging(at) for _ in range(N_STAGING)] if device.type == "cuda" else []
    numbers = host.numpy()
    host_tables = numbers[begins["page_table"] :].reshape(shapes["page_table"])
    here: dict[str, Any] = {name: view.numpy() for name, view in views(host).items()}
    order = here.pop("order")
    on_device = DeviceInputs(
        numbers,
        buffer,
        staging,
        host_tables,
        order,
        page_size,
        last_tokens,
        slot_mapping=slots,
        seq_lens=lengths,
        page_tables=tables,
        extras={name: there.pop(name) for name in extra},
        n_extras=begins["counts"],
        **there,
    )
    return StepInputs(limits, **here, device=on_device)


class Ring(Protocol):
    """Matrices that are on the device only while ops read them."""

    def begin_step(self) -> None: ...

    def end_step(self) -> None: ...

    def forget(self) -> None: ...

    def need(self, matrix: Any) -> None: ...

    def put_off(self, matrix: Any, late: LateRows) -> None: ...


class RecordingContext:
    """Says how an op sees its step: inside a plan, the inputs have been sent, and rows are padded to the limits."""

    def __init__(self) -> None:
        self.inside = False
        self.ring: Ring | None = None  # None: all matrices stay on the device
        self._inputs: DeviceInputs | None = None

    def enter(self, step: StepInputs) -> DeviceInputs:
        """The step's inputs on the device; every op begins with this."""
        inputs: DeviceInputs = step.device
        self._inputs = inputs
        if not self.inside:
            inputs.upload(step)
        return inputs

    def counts(self, rows: Rows) -> torch.Tensor | None:
        """Where the device finds how many of such rows are alive; None if all are."""
        if not self.inside or rows is Rows.FIXED or self._inputs is None:
            return None
        return self._inputs.counts[rows.value :]

    def run(self, step: Callable[[], Tensor]) -> Tensor:
        """Call `step`, whose inputs have been sent."""
        self.inside = True
        if self.ring:
            self.ring.begin_step()
        try:
            result = step()
            if self.ring:
                self.ring.end_step()
            return result
        finally:
            self.inside = False

    def need(self, *matrices: Any) -> None:
        """Have matrices on the device for the ops that follow."""
        if self.ring:
            for matrix in matrices:
                self.ring.need(matrix)

    def put_off(self, matrix: Any, late: LateRows) -> None:
        """Say that a product by a matrix is computed when it is read."""
        if self.ring:
            self.ring.put_off(matrix, late)

    def forget(self) -> None:
        """A graph has run, which may have brought other matrices to the device."""
        if self.ring:
            self.ring.forget()
