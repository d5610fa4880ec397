"""Tensors of a codec or a speaker encoder by name, checked where they are taken."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
TensorReader = Callable[[str, tuple[int, ...]], Floats]  # a tensor by its name and shape


class Parts:
    """The tensors under one prefix."""

    def __init__(self, read: TensorReader, prefix: str = ""):
        self._read = read
        self._prefix = prefix

    def at(self, name: str) -> "Parts":
        return Parts(self._read, f"{self._prefix}{name}.")

    def get(self, name: str, *shape: int) -> Floats:
        return self._read(self._prefix + name, shape)

    def matrix(self, name: str, n_out: int, n_in: int) -> Floats:
        """[n_in, n_out], as rows are multiplied by it."""
        return np.ascontiguousarray(self.get(f"{name}.weight", n_out, n_in).T)
