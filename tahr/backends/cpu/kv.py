"""Keys and values of the CPU backend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr._native import address_of
from tahr.backends.api import KV_BLOCK, Bytes, KVShape, kv_sides, stored_head_bytes
from tahr.errors import UnsupportedModel

# The arrays that hold one head of a page: their item type, and how many numbers of a head one item holds.
# NumPy only moves these items; the kernels read them. The first KV type is the default.
KV_TYPES: dict[str, dict[str, tuple[type, int]]] = {
    "f16": {"numbers": (np.uint16, 1)},
    "f32": {"numbers": (np.uint32, 1)},
    "bf16": {"numbers": (np.uint16, 1)},
    "q8_0": {"codes": (np.int8, 1), "scales": (np.uint16, KV_BLOCK)},
}

MOST_LATENT_HEADS = 32  # heads that one task of latent attention computes


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """One layer's keys and values, [n_pages, n_heads] each, and the same in the kernels' terms.

    Inside a page, keys lie [n_items, page_size] and values [page_size, n_items]. A latent layer has no values.
    """

    keys: NDArray[Any]
    values: NDArray[Any] | None
    native: Any

    @property
    def sides(self) -> list[NDArray[Any]]:
        """Keys and values, or keys alone."""
        return [self.keys] if self.values is None else [self.keys, self.values]

    def by_token(self) -> list[NDArray[Any]]:
        """Views of the parts of keys, then of values: [n_pages, page_size, n_heads, n_items]."""
        keys = self.keys
        values = self.values
        parts = [keys[name].transpose(0, 3, 1, 2) for name in keys.dtype.fields or ()]
        if values is not None:
            parts += [values[name].transpose(0, 2, 1, 3) for name in values.dtype.fields or ()]
        return parts

    def read(self, pages: Sequence[int]) -> Bytes:
        """Keys and values of all tokens of some pages: [n_tokens, n_heads, bytes of a key and a value]."""
        at = np.array(pages, np.int64)
        parts = [np.ascontiguousarray(part[at]).view(np.uint8) for part in self.by_token()]
        whole = np.concatenate(parts, axis=3)
        return whole.reshape(len(at) * whole.shape[1], *whole.shape[2:])

    def write(self, pages: Sequence[int], content: Bytes) -> None:
        """The reverse of `read`."""
        at = np.array(pages, np.int64)
        begin = 0
        for part in self.by_token():
            end = begin + part.shape[3] * part.itemsize
            items = np.ascontiguousarray(content[..., begin:end]).view(part.dtype)
            part[at] = items.reshape(len(at), *part.shape[1:])
            begin = end


def head_items(dtype: str, head_dim: int) -> list[tuple[str, type, int]]:
    """The arrays that hold one head of a token, as (name, item type, number of items)."""
    items = [(name, item, head_dim // n) for name, (item, n) in KV_TYPES[dtype].items()]
    assert sum(np.dtype(item).itemsize * n for _, item, n in items) == stored_head_bytes(dtype, head_dim)
    return items


def make_layer(shape: KVShape, n_pages: int, page_size: int, dtype: str) -> PagedLayer:
    """Zeroed keys and values; pages nobody writes to take no memory."""
    key_type = shape.sides(dtype)[0]
    value_type = kv_sides(dtype)[1]
    key_items = [(name, item, (n, page_size)) for name, item, n in head_items(key_type, shape.head_dim)]
    value_items = [(name, item, (page_size, n)) for name, item, n in head_items(value_type, shape.head_dim)]
    keys: NDArray[Any] = np.zeros((n_pages, shape.n_heads), np.dtype(key_items))
    values: NDArray[Any] | None = None
    if not shape.latent:
        values = np.zeros((n_pages, shape.n_heads), np.dtype(value_items))
    layer = native.KvLayer(
        keys=address_of(keys),
        values=0 if values is None else address_of(values),
        key_type=key_type,
        value_type=value_type,
        n_heads=shape.n_heads,
        head_dim=shape.head_dim,
        page_size=page_size,
        latent=shape.latent,
    )
    return PagedLayer(keys, values, layer)


def task_heads(n_q_heads: int, shape: KVShape) -> int:
    """How many query heads one task of the attention kernel takes: an even part of those that share a key head.

    The many heads of a latent layer share one key, and are shared out for the sake of the other threads.
    """
    group = n_q_heads // shape.n_heads
    most = MOST_LATENT_HEADS if shape.latent else native.MAX_QUERY_TILE
    return next(n for n in range(min(group, most), 0, -1) if group % n == 0)


def check_heads(shape: KVShape) -> None:
    """Refuse heads that are too wide for the attention kernel."""
    if shape.head_dim > native.MAX_HEAD_DIM:
        raise UnsupportedModel(
            f"The cpu backend handles heads of up to {native.MAX_HEAD_DIM} numbers; this model has heads of "
            f"{shape.head_dim}: choose another model or backend."
        )
