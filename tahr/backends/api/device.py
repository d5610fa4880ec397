"""The device behind a backend: what is said of it, and rows on their way to it and from it."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Protocol

from tahr.backends.api.step import StepDefaults
from tahr.backends.api.tensors import Floats, Tensor


class EnergyCounter(Protocol):
    """Counts the energy that a device uses, whoever uses it. A reading may take milliseconds."""

    name: str  # name of the source, and of the device

    def joules(self) -> float | None:
        """Joules since some moment; None: they cannot be read any more."""


class Device(ABC):
    """The common base of all parts of a backend."""

    name: str
    summary: str  # one line for people: device, instructions, threads
    deterministic: bool = True  # a row's result never depends on the other rows, to the last bit
    step_defaults: StepDefaults = StepDefaults()

    @abstractmethod
    def tensor(self, values: Floats) -> Tensor:
        """Rows from host memory, for tests and probes."""

    @abstractmethod
    def read(self, tensor: Tensor) -> Floats:
        """Flush, then the live rows of `tensor` on the host. The array may be a view that the next run overwrites."""

    def rows_like(self, x: Tensor, values: Floats) -> Tensor:
        """Rows from host memory, as many as x has at present, that count as those of x do."""
        return replace(self.tensor(values), rows=x.rows)

    def energy_counter(self) -> EnergyCounter | None:
        """A new counter of the device's energy, where this process may read one."""
        return None

    def flush(self) -> None:  # noqa: B027  (ops may run where they are called)
        """Run what has been enqueued."""
