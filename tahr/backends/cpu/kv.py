"""Keys and values of the CPU backend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr.backends.api import KV_BLOCK, Bytes, KVShape, stored_head_bytes
from tahr.backends.cpu.memory import address_of
from tahr.errors import UnsupportedModel

# The arrays that hold one head of a page: their item type, and how many numbers of a head one item holds.
# NumPy only moves these items; the kernels read them. The first KV type is the default.
KV_TYPES: dict[str, dict[str, tuple[type, int]]] = {
    "f16": {"numbers": (np.uint16, 1)},
    "f32": {"numbers": (np.uint32, 1)},
    "bf16": {"numbers": (np.uint16, 1)},
    "q8_0": {"codes": (np.int8, 1), "scales": (np.uint16, KV_BLOCK)},
}


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """One layer's keys and values, [n_pages, n_heads] each, and the same in the kernels' terms.

    Inside a page, keys lie [n_items, page_size] and values [page_size, n_items].
    """

    keys: NDArray[Any]
    values: NDArray[Any]
    parts: tuple[str, ...]
    native: Any

    def read(self, pages: Sequence[int]) -> Bytes:
        """Keys and values of all tokens of some pages: [2, n_tokens, n_heads, bytes of one head]."""
        at = np.array(pages, np.int64)
        keys, values = self.keys[at], self.values[at]
        parts = [
            np.stack([keys[name].transpose(0, 3, 1, 2), values[name].transpose(0, 2, 1, 3)]) for name in self.parts
        ]
        whole = np.concatenate([part.view(np.uint8) for part in parts], axis=4)
        return whole.reshape(2, len(at) * whole.shape[2], *whole.shape[3:])

    def write(self, pages: Sequence[int], content: Bytes) -> None:
        """The reverse of `read`."""
        at, begin = np.array(pages, np.int64), 0
        for name in self.parts:
            keys, values = self.keys[name], self.values[name]
            _, n_heads, page_size, n_items = values.shape
            end = begin + n_items * values.itemsize
            part = np.ascontiguousarray(content[..., begin:end]).view(values.dtype)
            both = part.reshape(2, len(at), page_size, n_heads, n_items)
            keys[at], values[at] = both[0].transpose(0, 2, 3, 1), both[1].transpose(0, 2, 1, 3)
            begin = end


def make_layer(shape: KVShape, n_pages: int, page_size: int, dtype: str) -> PagedLayer:
    """Zeroed keys and values; pages nobody writes to take no memory."""
    page_bytes = page_size * stored_head_bytes(dtype, shape.head_dim)
    items = [(name, item, shape.head_dim // n) for name, (item, n) in KV_TYPES[dtype].items()]
    keys: NDArray[Any] = np.zeros(
        (n_pages, shape.n_heads), np.dtype([(name, item, (n, page_size)) for name, item, n in items])
    )
    values: NDArray[Any] = np.zeros(
        (n_pages, shape.n_heads), np.dtype([(name, item, (page_size, n)) for name, item, n in items])
    )
    assert keys.itemsize == values.itemsize == page_bytes  # the kernels compute the same size
    layer = native.KvLayer(
        keys=address_of(keys),
        values=address_of(values),
        type=dtype,
        n_heads=shape.n_heads,
        head_dim=shape.head_dim,
        page_size=page_size,
    )
    return PagedLayer(keys, values, tuple(KV_TYPES[dtype]), layer)


def heads_fit(n_q_heads: int, shape: KVShape) -> bool:
    """Whether the attention kernel has room for heads of this shape."""
    return shape.head_dim <= native.MAX_HEAD_DIM and n_q_heads // shape.n_heads <= native.MAX_QUERY_TILE


def check_heads(n_q_heads: int, shape: KVShape) -> None:
    """Refuse head shapes the attention kernel has no room for."""
    if not heads_fit(n_q_heads, shape):
        raise UnsupportedModel(
            f"The cpu backend handles heads of up to {native.MAX_HEAD_DIM} numbers in groups of up to "
            f"{native.MAX_QUERY_TILE}; this model has heads of {shape.head_dim} in groups of "
            f"{n_q_heads // shape.n_heads}: choose another model or backend."
        )
