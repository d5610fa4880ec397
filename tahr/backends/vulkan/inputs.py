"""Step inputs in memory that the device reads and the host writes."""

from dataclasses import dataclass, fields
from math import prod
from typing import Any

import numpy as np

from tahr import _vulkan as native
from tahr.backends.api import Ints, StepInputs, StepLimits
from tahr.backends.vulkan.memory import RowCount, Span

ALIGN = 4  # numbers: arrays begin at multiples of 16 bytes
TABLE = "page_table"  # comes last, a row for each sequence, because most of it is seldom filled


@dataclass(eq=False, slots=True)
class SharedInputs:
    """The arrays of a step on the host and on the device, at the same places."""

    host: Ints  # memory of the arrays of the `StepInputs`
    span: Span
    seen: Ints  # the device's memory
    begins: dict[str, int]  # first number of each array
    table_stride: int  # numbers of a sequence in the page table: those of all groups

    def upload(self, step: StepInputs) -> None:
        """Copy what a step needs. Nothing that reads it may be running."""
        n = self.begins[TABLE] + step.n_seqs * self.table_stride
        self.seen[:n] = self.host[:n]

    def count(self, step: StepInputs, index: int, limit: int) -> RowCount:
        return RowCount(step.counts, index, limit, self.span.part(4 * index, 4))

    def address(self, name: str, at: int = 0) -> int:
        return self.span.address + 4 * (self.begins[name] + at)


def make_inputs(device: native.Device, limits: StepLimits) -> StepInputs:
    """Host arrays with memory of the device behind them."""
    plain = StepInputs.empty(limits)
    values = {field.name: getattr(plain, field.name) for field in fields(plain)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray) and value.size}
    table = arrays.pop(TABLE)
    by_sequence = table.transpose(1, 0, 2).shape
    begins: dict[str, int] = {}
    n = 0
    for name, array in [*arrays.items(), (TABLE, table)]:
        begins[name] = n
        n += -(-array.size // ALIGN) * ALIGN
    assert begins["counts"] == 0, "kernels find the counts first"
    host = np.zeros(n, np.int32)

    def view(name: str, shape: tuple[int, ...]) -> Ints:
        begin = begins[name]
        return host[begin : begin + prod(shape)].reshape(shape)

    views: dict[str, Any] = {name: view(name, array.shape) for name, array in arrays.items()}
    views[TABLE] = view(TABLE, by_sequence).transpose(1, 0, 2)
    buffer = native.Buffer(device, 4 * n, native.Home.SHARED)
    seen: Ints = buffer.view()[: 4 * n].view(np.int32)
    seen[:] = 0
    shared = SharedInputs(host, Span(buffer, 0, 4 * n), seen, begins, by_sequence[1] * by_sequence[2])
    return StepInputs(limits, **views, device=shared)
