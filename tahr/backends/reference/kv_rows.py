"""Keys and values as a KV store keeps them: bytes of heads, by slot."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tahr.backends import api
from tahr.backends.api import KV_BLOCK, Bytes, Floats
from tahr.backends.reference.arithmetic import F32, inverse_where

FLOAT_TYPES: dict[str, type[np.floating[Any]]] = {"f32": np.float32, "f16": np.float16}


def encode(heads: Floats, dtype: str) -> Bytes:
    """Store heads `[n, heads, head_dim]` as `[n, heads, bytes of one head]`."""
    if dtype in FLOAT_TYPES:
        heads = np.ascontiguousarray(heads)
        return heads.astype(FLOAT_TYPES[dtype]).view(np.uint8)
    heads = hadamard(heads)
    blocks = heads.reshape(*heads.shape[:2], -1, KV_BLOCK)
    largest = np.abs(blocks).max(axis=3)
    scales = (largest / F32(127)).astype(np.float16)
    step = scales.astype(F32)[..., None]
    inverse = inverse_where(step > 0, step)
    rounded = np.rint(blocks * inverse)
    codes = np.clip(rounded, -127, 127).astype(np.int8)
    code_bytes = codes.reshape(heads.shape).view(np.uint8)
    return np.concatenate([code_bytes, scales.view(np.uint8)], axis=2)


def decode(stored: Bytes, dtype: str) -> Floats:
    """Read what `encode` stored; q8_0 heads are still rotated."""
    stored = np.ascontiguousarray(stored)
    if dtype in FLOAT_TYPES:
        return stored.view(FLOAT_TYPES[dtype]).astype(F32)
    n_codes = stored.shape[2] * KV_BLOCK // (KV_BLOCK + 2)
    codes = view_as(stored[..., :n_codes], np.int8)
    scales = view_as(stored[..., n_codes:], np.float16)
    return codes * np.repeat(scales, KV_BLOCK, axis=2)


def view_as(stored: Bytes, dtype: Any) -> Floats:
    """Bytes as numbers of another type, in f32."""
    numbers = np.ascontiguousarray(stored).view(dtype)
    values: Floats = numbers.astype(F32)
    return values


def hadamard(heads: Floats) -> Floats:
    """Heads `[n, heads, head_dim]` rotated by a Hadamard matrix, which is its own inverse."""
    n = api.rotated_together(heads.shape[2])
    x = heads.reshape(-1, n)
    stride = 1
    while stride < n:
        pairs = x.reshape(-1, n // (2 * stride), 2, stride)
        first = pairs[:, :, 0]
        second = pairs[:, :, 1]
        x = np.stack([first + second, first - second], axis=2)
        x = x.reshape(-1, n)
        stride *= 2
    scaled = x * F32(n**-0.5)
    return scaled.reshape(heads.shape)


def page_slots(pages: Sequence[int], page_size: int) -> np.ndarray:
    """The slots of whole pages."""
    first = np.array(pages, np.int64)[:, None] * page_size
    slots: np.ndarray = first + np.arange(page_size)
    return slots.reshape(-1)


def sequence_slots(pages: np.ndarray, positions: np.ndarray, page_size: int) -> np.ndarray:
    """The slots of some positions of a sequence, by its page table."""
    page = pages[positions // page_size]
    slots: np.ndarray = page * page_size + positions % page_size
    return slots
