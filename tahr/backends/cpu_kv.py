"""Keys and values of the CPU backend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr.backends.api import Bytes, KVShape
from tahr.backends.cpu_memory import address_of
from tahr.errors import UnsupportedModel

# The first is the default. Stored numbers are opaque to NumPy: only the kernels read them.
KV_TYPES: dict[str, type] = {"f16": np.uint16, "f32": np.float32, "bf16": np.uint16}


@dataclass(frozen=True, slots=True)
class CpuLayer:
    """One layer's keys and values, and the same in the kernels' terms."""

    keys: NDArray[Any]  # [n_pages, n_heads, head_dim, page_size]
    values: NDArray[Any]  # [n_pages, n_heads, page_size, head_dim]
    native: Any

    def read(self, pages: Sequence[int]) -> Bytes:
        """Keys and values of all tokens of some pages: [2, n_tokens, n_heads, bytes of one head]."""
        at = np.array(pages, np.int64)
        both = np.stack([self.keys[at].transpose(0, 3, 1, 2), self.values[at].transpose(0, 2, 1, 3)])
        return both.reshape(2, len(at) * both.shape[2], *both.shape[3:]).view(np.uint8)

    def write(self, pages: Sequence[int], content: Bytes) -> None:
        """The reverse of `read`."""
        at = np.array(pages, np.int64)
        _, n_heads, page_size, head_dim = self.values.shape
        numbers = np.ascontiguousarray(content).view(self.values.dtype)
        keys, values = numbers.reshape(2, len(at), page_size, n_heads, head_dim)
        self.keys[at] = keys.transpose(0, 2, 3, 1)
        self.values[at] = values.transpose(0, 2, 1, 3)


def make_layer(shape: KVShape, n_pages: int, page_size: int, dtype: str) -> CpuLayer:
    """Zeroed keys and values; pages nobody writes to take no memory."""
    keys: NDArray[Any] = np.zeros((n_pages, shape.n_heads, shape.head_dim, page_size), KV_TYPES[dtype])
    values: NDArray[Any] = np.zeros((n_pages, shape.n_heads, page_size, shape.head_dim), KV_TYPES[dtype])
    layer = native.KvLayer(
        keys=address_of(keys),
        values=address_of(values),
        type=dtype,
        n_heads=shape.n_heads,
        head_dim=shape.head_dim,
        page_size=page_size,
    )
    return CpuLayer(keys, values, layer)


def check_heads(n_q_heads: int, shape: KVShape) -> None:
    """Refuse head shapes the attention kernel has no room for."""
    group = n_q_heads // shape.n_heads
    if shape.head_dim > native.MAX_HEAD_DIM or group > native.MAX_QUERY_TILE:
        raise UnsupportedModel(
            f"The cpu backend handles heads of up to {native.MAX_HEAD_DIM} numbers in groups of up to "
            f"{native.MAX_QUERY_TILE}; this model has heads of {shape.head_dim} in groups of {group}."
        )
