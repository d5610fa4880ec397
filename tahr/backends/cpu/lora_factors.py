"""Factors of adapters in the layout of the CPU kernels."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr._native import address_of
from tahr.backends.api import LoraFactors
from tahr.backends.cpu.memory import ALIGNMENT, MemoryBlock
from tahr.weights.tensor import HostTensor

TYPES = {"F32": (0, "<f4"), "F16": (1, "<u2"), "BF16": (2, "<u2")}  # the kernel's number, and what NumPy moves


class PackedFactors:
    """The factors of one linear as the kernels read them, in memory that is given out piece by piece."""

    __slots__ = ("a", "b", "rank", "row")

    def __init__(self, factors: LoraFactors, memory: "FactorMemory"):
        number, code = type_of(factors)
        self.a = padded_columns(values_of(factors.a, code), memory)
        self.b = panels(values_of(factors.b, code), memory)
        self.rank = factors.rank
        self.row = address_of(self.a), address_of(self.b), factors.rank, number, factors.scale, 0


class FactorMemory:
    """Memory for all factors of an adapter. One piece, since NumPy asks for huge pages where a piece is large: a step
    reads every byte of an adapter once, and page walks would show."""

    def __init__(self, n_bytes: int):
        self._block = MemoryBlock(n_bytes)
        self._taken = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        n_bytes = math.prod(shape) * dtype.itemsize
        found = self._block.bytes[self._taken : self._taken + n_bytes].view(dtype).reshape(shape)
        self._taken += rounded_up(n_bytes, ALIGNMENT)
        return found


def rounded_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def n_bytes(factors: LoraFactors) -> int:
    """Bytes of both factors of a linear in whole panels."""
    value_bytes = np.dtype(type_of(factors)[1]).itemsize * factors.rank
    widths = factors.a.shape[1], factors.b.shape[0]
    return sum(rounded_up(rounded_up(n, native.LORA_PANEL) * value_bytes, ALIGNMENT) for n in widths)


def type_of(factors: LoraFactors) -> tuple[int, str]:
    """The row of `TYPES`. Two formats in one adapter are rare: both become f32 then."""
    same = factors.a.format.name == factors.b.format.name
    return TYPES[factors.a.format.name if same else "F32"]


def values_of(tensor: HostTensor, code: str) -> NDArray[Any]:
    """The numbers, or their bits where NumPy has no such numbers."""
    as_stored = TYPES[tensor.format.name][1] == code
    return tensor.data.view(code).reshape(tensor.shape) if as_stored else tensor.dense()


def padded_columns(a: NDArray[Any], memory: FactorMemory) -> NDArray[Any]:
    """[rank][columns], with zeros up to a whole panel."""
    padded = memory.take((a.shape[0], rounded_up(a.shape[1], native.LORA_PANEL)), a.dtype)
    padded[:, : a.shape[1]] = a
    padded[:, a.shape[1] :] = 0
    return padded


def panels(b: NDArray[Any], memory: FactorMemory) -> NDArray[Any]:
    """[n_rows][rank] as [panel][rank][row of the panel], with zeros up to a whole panel."""
    n_rows, rank = b.shape
    whole = np.pad(b, ((0, -n_rows % native.LORA_PANEL), (0, 0)))
    packed = memory.take((len(whole) // native.LORA_PANEL, rank, native.LORA_PANEL), b.dtype)
    packed[:] = whole.reshape(-1, native.LORA_PANEL, rank).swapaxes(1, 2)
    return packed
