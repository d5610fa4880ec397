"""Rows of numbers on a CUDA device, and those on their way to the host."""

from dataclasses import dataclass

import torch

from tahr.backends.api import Floats, Rows, Tensor


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Rows on the device: `math` is the type that products of them run in, narrower at times than they are stored.

    The result of a plan says how many of its rows are alive.
    """

    values: torch.Tensor
    math: torch.dtype
    n_live: int | None = None  # None: all

    def live(self) -> torch.Tensor:
        """The rows that mean something."""
        return self.values if self.n_live is None else self.values[: self.n_live]


def values(x: Tensor) -> torch.Tensor:
    """The rows of x, live or not."""
    found: torch.Tensor = x.data.values
    return found


def made(found: torch.Tensor, rows_of: Rows, math: torch.dtype) -> Tensor:
    """New rows."""
    return Tensor(found.shape[1], rows_of, DeviceRows(found, math))


def like(x: Tensor, found: torch.Tensor) -> Tensor:
    """New rows in place of x's."""
    return made(found, x.rows, x.data.math)


class FetchedRows:
    """Rows on their way to pinned memory."""

    def __init__(self, rows: torch.Tensor):
        self._rows = torch.empty(rows.shape, dtype=torch.float32, pin_memory=True)
        self._rows.copy_(rows.float(), non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record()

    def collect(self) -> Floats:
        self._done.synchronize()
        rows: Floats = self._rows.numpy()
        return rows
