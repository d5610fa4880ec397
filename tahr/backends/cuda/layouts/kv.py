"""One layer's keys and values on a CUDA device: `[2, n_pages, n_heads, page_size, numbers of a head]`.
A latent layer has keys alone: `[1, ...]`.

Heads come before places, so that the keys of one head in one page are one run of memory. A q8_0 head is int8: its
codes, then the bytes of its f16 scales. What they stand for is rotated: see `api.KVStore`.
"""

from collections.abc import Sequence

import numpy as np
import torch

from tahr.backends.api import KV_BLOCK, Bytes, KVShape, rotated_together, stored_head_bytes

# The default first.
TYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "q8_0": torch.int8, "fp8": torch.float8_e4m3fn
}  # fmt: skip
EIGHT_BITS = (torch.int8, torch.float8_e4m3fn)


def make(shape: KVShape, n_pages: int, page_size: int, dtype: str, device: torch.device) -> torch.Tensor:
    """Empty pages."""
    kind = TYPES[dtype]
    n_sides = len(shape.sides(dtype))
    n_stored = stored_head_bytes(dtype, shape.head_dim) // kind.itemsize
    return torch.zeros((n_sides, n_pages, shape.n_heads, page_size, n_stored), dtype=kind, device=device)


def head_dim(layer: torch.Tensor) -> int:
    """How many numbers a head has."""
    n_stored = int(layer.shape[-1])
    return n_stored * KV_BLOCK // (KV_BLOCK + 2) if layer.dtype == torch.int8 else n_stored


def block_of(layer: torch.Tensor) -> int:
    """How many codes share a scale; 0 where numbers are stored as they are."""
    return KV_BLOCK if layer.dtype == torch.int8 else 0


def rotation_of(layer: torch.Tensor) -> int:
    """How many numbers of a head are rotated together before they are rounded; 0 where they are stored as they are."""
    return rotated_together(head_dim(layer)) if layer.dtype == torch.int8 else 0


def scales(layer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values seen as f16, for the scales among codes; as they are where there are none."""
    seen = layer.view(torch.float16) if layer.dtype == torch.int8 else layer
    return seen[0], seen[-1]


def movable(layer: torch.Tensor) -> torch.Tensor:
    """The layer in a type that torch moves about: bytes for 8-bit floats."""
    return layer.view(torch.uint8) if layer.dtype == torch.float8_e4m3fn else layer


def read(layer: torch.Tensor, pages: Sequence[int]) -> Bytes:
    """The bytes of pages, token after token: [n_tokens, n_heads, bytes of a key and a value]."""
    by_token = movable(layer)[:, list(pages)].permute(1, 3, 2, 0, 4).contiguous()
    content: Bytes = by_token.view(torch.uint8).flatten(3).flatten(0, 1).cpu().numpy()
    return content


def write(layer: torch.Tensor, pages: Sequence[int], content: Bytes) -> None:
    """Put what `read` gave into pages."""
    layer = movable(layer)
    n_sides, _, n_heads, page_size, n_stored = layer.shape
    items = torch.from_numpy(np.array(content)).to(layer.device).view(layer.dtype)
    layer[:, list(pages)] = items.view(len(pages), page_size, n_heads, n_sides, n_stored).permute(3, 0, 2, 1, 4)


def copy(layer: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy pages, as (from, to), all read before any is written."""
    layer = movable(layer)
    layer[:, [to for _, to in pairs]] = layer[:, [source for source, _ in pairs]]
