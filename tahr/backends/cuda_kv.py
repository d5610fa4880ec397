"""One layer's keys and values on a CUDA device: `[2, n_pages, n_heads, page_size, head_dim]`.

Heads come before places, so that the keys of one head in one page are one run of memory.
"""

from collections.abc import Sequence

import numpy as np
import torch

from tahr.backends.api import Bytes, KVShape

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}  # the default first


def make(shape: KVShape, n_pages: int, page_size: int, dtype: str, device: torch.device) -> torch.Tensor:
    """Empty pages."""
    return torch.zeros((2, n_pages, shape.n_heads, page_size, shape.head_dim), dtype=TYPES[dtype], device=device)


def read(layer: torch.Tensor, pages: Sequence[int]) -> Bytes:
    """The bytes of pages, token after token: [2, n_tokens, n_heads, bytes of a head]."""
    by_token = layer[:, list(pages)].transpose(2, 3).contiguous()
    content: Bytes = by_token.view(torch.uint8).flatten(1, 2).cpu().numpy()
    return content


def write(layer: torch.Tensor, pages: Sequence[int], content: Bytes) -> None:
    """Put what `read` gave into pages."""
    _, _, n_heads, page_size, head_dim = layer.shape
    values = torch.from_numpy(np.array(content)).to(layer.device).view(layer.dtype)
    layer[:, list(pages)] = values.view(2, len(pages), page_size, n_heads, head_dim).transpose(2, 3)


def copy(layer: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy pages, as (from, to), all read before any is written."""
    layer[:, [to for _, to in pairs]] = layer[:, [source for source, _ in pairs]]
