"""Products of some dozens of rows by matrices so small that the vendor's tiles would leave most multiprocessors idle.

Tiles travel by the copy engine of Hopper and later cards. A kernel starts while the one before it still ends.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tahr.backends.api import Activation
from tahr.backends.cuda.kernels.dependent import ENABLED, OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.linear import TYPES, Tile
from tahr.backends.cuda.kernels.rows import gated, narrow

LEAST = 64  # rows, and they come in whole tiles: steps are padded to such sizes
MOST_VALUES = 1 << 23  # of a matrix: larger ones keep the library's tiles busy
ALIGN = 8  # numbers of 16 bits that the copy engine moves at least
# The first whose programs all run at once is taken. As measured on an H200.
TILES = [Tile(64, 32, 128, 4, 5), Tile(64, 64, 128, 4, 4), Tile(64, 128, 128, 4, 3)]
GATED_TILES = [*TILES[1:], Tile(128, 128, 64, 8, 4)]  # half of the weight rows of a tile are a gate's


@triton.jit
def narrow_kernel(
    out, x, w, bias, n_out, n_cols, act: tl.constexpr, has_bias: tl.constexpr, dtype: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """out = x @ w.T + bias; with `act`, w holds a gate above an up matrix: act(gate) * up."""
    let_next_start()
    wait_for_previous()
    first, row = tl.program_id(0) * block_n, tl.program_id(1) * block_m
    total, up = tl.zeros((block_m, block_n), tl.float32), tl.zeros((block_m, block_n), tl.float32)
    for begin in range(0, n_cols, block_k):
        xs = x.load([row, begin])
        total = tl.dot(xs, w.load([first, begin]).T, total)
        if act != "none":
            up = tl.dot(xs, w.load([n_out + first, begin]).T, up)
    if has_bias:
        outs = first + tl.arange(0, block_n)
        total += tl.load(bias + outs, mask=outs < n_out, other=0.0)[None, :]
        if act != "none":
            up += tl.load(bias + n_out + outs, mask=outs < n_out, other=0.0)[None, :]
    if act != "none":
        total = gated(total, up, act)
    out.store([row, first], narrow(total, dtype))


@cache
def n_processors(device: torch.device) -> int:
    """Programs that run at once: one on each multiprocessor, since their tiles fill its shared memory."""
    found: int = torch.cuda.get_device_properties(device).multi_processor_count
    return found


def tile_for(x: torch.Tensor, w: torch.Tensor, is_gated: bool) -> Tile | None:
    """How a product is cut; None where the vendor's library takes it."""
    (n_rows, n_cols), n_out = x.shape, w.shape[0]
    if not (ENABLED and x.is_cuda and w.dtype in TYPES and w.dtype != torch.float32) or n_rows % LEAST:
        return None
    if n_cols % ALIGN or n_out % (2 * ALIGN) or w.numel() >= MOST_VALUES or not (can_travel(w) and can_travel(x)):
        return None
    most = n_processors(x.device)
    return next((t for t in (GATED_TILES if is_gated else TILES) if -(-n_rows // t.m) * -(-n_out // t.n) <= most), None)


def can_travel(x: torch.Tensor) -> bool:
    """Whether the copy engine reads the matrix as it lies."""
    return bool(x.stride(1) == 1 and x.stride(0) % ALIGN == 0 and x.data_ptr() % (2 * ALIGN) == 0)


def narrow_linear(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, tile: Tile, act: Activation | None = None
) -> torch.Tensor:
    """x @ w.T + bias in the type of w, summed in f32; with `act`, w is a gate above an up matrix: act(gate) * up."""
    (n_rows, n_cols), n_out, block_n = x.shape, w.shape[0] // (2 if act else 1), tile.n // (2 if act else 1)
    out = x.new_empty((n_rows, n_out), dtype=w.dtype)
    narrow_kernel[(triton.cdiv(n_out, block_n), triton.cdiv(n_rows, tile.m))](
        described(out, tile.m, block_n), described(x, tile.m, tile.k), described(w, block_n, tile.k),
        out if bias is None else bias, n_out, n_cols, act or "none", bias is not None, TYPES[w.dtype],
        tile.m, block_n, tile.k, num_warps=tile.n_warps, num_stages=tile.n_stages, **OVERLAP,
    )  # fmt: skip
    return out


def described(x: torch.Tensor, n_rows: int, n_cols: int) -> TensorDescriptor:
    """A matrix as the copy engine sees it, in tiles of that size."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [n_rows, n_cols])
