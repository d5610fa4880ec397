"""Keys and values of the CPU backend."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr.backends.api import KVShape
from tahr.backends.cpu_memory import address_of
from tahr.errors import UnsupportedModel

# The first is the default. Stored numbers are opaque to NumPy: only the kernels read them.
KV_TYPES: dict[str, type] = {"f16": np.uint16, "f32": np.float32, "bf16": np.uint16}


@dataclass(frozen=True, slots=True)
class CpuLayer:
    """One layer's keys and values, and the same in the kernels' terms."""

    keys: NDArray[Any]
    values: NDArray[Any]
    native: Any


def make_layer(shape: KVShape, n_pages: int, page_size: int, dtype: str) -> CpuLayer:
    """Zeroed keys and values; pages nobody writes to take no memory."""
    size = n_pages * shape.n_heads * page_size * shape.head_dim
    keys: NDArray[Any] = np.zeros(size, KV_TYPES[dtype])
    values = np.zeros_like(keys)
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
