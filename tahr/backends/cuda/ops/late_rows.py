"""Rows that are computed when they are read: the op that reads them may take them as they are cheapest to make."""

from collections.abc import Callable

import torch


class LateRows:
    """The rows of a product that nobody has read yet; see `DeviceRows`."""

    def __init__(
        self,
        math: torch.dtype,
        multiply: Callable[[], torch.Tensor],
        in_parts: Callable[[], torch.Tensor],
    ):
        self.math = math
        self.multiply = multiply
        self.in_parts = in_parts
        self.is_read = False
        self._values: torch.Tensor | None = None

    @property
    def values(self) -> torch.Tensor:
        """The rows, computed once."""
        self.is_read = True
        if self._values is None:
            self._values = self.multiply()
        return self._values

    def live(self) -> torch.Tensor:
        """All of them: they are no result of a plan."""
        return self.values

    def summands(self) -> torch.Tensor:
        """The summands of the rows, [parts, rows, width], or the rows where they are there already."""
        self.is_read = True
        return self.in_parts() if self._values is None else self._values
