"""Products of up to some hundred rows by matrices so small that the vendor's tiles leave most multiprocessors idle.

Tiles travel by the copy engine of Hopper and later cards. A kernel starts while the one before it still ends.
"""

import torch
import triton
import triton.language as tl
from triton.language import constexpr
from triton.tools.tensor_descriptor import TensorDescriptor

from tahr.backends.api import Activation
from tahr.backends.cuda.kernels.common.card import is_large, n_processors
from tahr.backends.cuda.kernels.common.dependent import ENABLED, OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rows import gated, narrow
from tahr.backends.cuda.kernels.linear import TYPES, Tile

ONE_TILE = 64  # rows up to which a tile may be filled in part; more come in whole tiles
# values of a matrix, whole or in parts: the library is faster with larger ones
MOST_VALUES, MOST_IN_PARTS = 1 << 23, 1 << 24
ALIGN = 8  # numbers of 16 bits that the copy engine moves at least
# The first whose programs all run at once is taken. As measured on an H200.
TILES = [Tile(64, 32, 128, 4, 5), Tile(64, 64, 128, 4, 4), Tile(64, 128, 128, 4, 3)]
GATED_TILES = [*TILES[1:], Tile(128, 128, 64, 8, 4)]  # half of the weight rows of a tile are a gate's
# Where results may come in parts, larger tiles share the columns: less is read twice.
PARTS_TILE, MOST_PARTS = TILES[1], 8


@triton.jit
def narrow_kernel(
    out, x, w, bias, n_out, share, act: constexpr, has_bias: constexpr, dtype: constexpr,
    block_m: constexpr, block_n: constexpr, block_k: constexpr,
):  # fmt: skip
    """out = x @ w.T + bias; with `act`, w holds a gate above an up matrix: act(gate) * up.

    Each part of `out` is the sum over its own `share` of the columns.
    """
    let_next_start()
    wait_for_previous()
    first, row, part = tl.program_id(0) * block_n, tl.program_id(1) * block_m, tl.program_id(2)
    total, up = tl.zeros((block_m, block_n), tl.float32), tl.zeros((block_m, block_n), tl.float32)
    for begin in range(part * share, (part + 1) * share, block_k):
        xs = x.load([row, begin])
        total = tl.dot(xs, w.load([first, begin]).T, total)
        if act != "none":
            up = tl.dot(xs, w.load([n_out + first, begin]).T, up)
    if has_bias & (part == 0):
        outs = first + tl.arange(0, block_n)
        total += tl.load(bias + outs, mask=outs < n_out, other=0.0)[None, :]
        if act != "none":
            up += tl.load(bias + n_out + outs, mask=outs < n_out, other=0.0)[None, :]
    if act != "none":
        total = gated(total, up, act)
    out.store([part, row, first], tl.reshape(narrow(total, dtype), (1, block_m, block_n)))


def tile_for(x: torch.Tensor, w: torch.Tensor, is_gated: bool) -> Tile | None:
    """How a product is cut; None where the vendor's library takes it."""
    if not fits(x, w) or w.numel() >= MOST_VALUES:
        return None
    most = n_processors(x.device)
    tiles = (t for t in (GATED_TILES if is_gated else TILES) if len(x) <= ONE_TILE or len(x) % t.m == 0)
    return next((t for t in tiles if n_programs(x, w, t) <= most), None)


def fits(x: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether the card has a copy engine and memory enough for it, and both matrices are read as they lie."""
    is_half = w.dtype in TYPES and w.dtype != torch.float32
    is_even = w.shape[1] % ALIGN == 0 == w.shape[0] % (2 * ALIGN)
    is_there = ENABLED and x.is_cuda and is_large(x.device)
    return is_there and is_half and is_even and can_travel(w) and can_travel(x)


def n_programs(x: torch.Tensor, w: torch.Tensor, tile: Tile) -> int:
    """Programs of a product in such tiles."""
    return -(-len(x) // tile.m) * -(-len(w) // tile.n)


def parts_of(x: torch.Tensor, w: torch.Tensor) -> int:
    """The number of parts in which a product in `PARTS_TILE`s keeps the card busy; 0: the vendor's library takes it."""
    n = n_processors(x.device) // n_programs(x, w, PARTS_TILE) if fits(x, w) else 0
    is_small = w.numel() < (MOST_IN_PARTS if n > 1 else MOST_VALUES)
    return 1 << min(n, MOST_PARTS).bit_length() - 1 if n and is_small else 0


def can_travel(x: torch.Tensor) -> bool:
    """Whether the copy engine reads the matrix as it lies."""
    return bool(x.stride(1) == 1 and x.stride(0) % ALIGN == 0 and x.data_ptr() % (2 * ALIGN) == 0)


def narrow_linear(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    tile: Tile,
    act: Activation | None = None,
    n_parts: int = 1,
) -> torch.Tensor:
    """x @ w.T + bias in the type of w, summed in f32; with `act`, w is a gate above an up matrix: act(gate) * up.

    In several parts, summed over some columns each: [n_parts, rows, outputs] in f32, to be added up.
    """
    x = x.to(w.dtype)
    (n_rows, n_cols), n_out, block_n = x.shape, w.shape[0] // (2 if act else 1), tile.n // (2 if act else 1)
    dtype = torch.float32 if n_parts > 1 else w.dtype
    out = x.new_empty((n_parts, n_rows, n_out), dtype=dtype)
    share = triton.cdiv(triton.cdiv(n_cols, tile.k), n_parts) * tile.k
    narrow_kernel[(triton.cdiv(n_out, block_n), triton.cdiv(n_rows, tile.m), n_parts)](
        described(out, 1, tile.m, block_n), described(x, tile.m, tile.k), described(w, block_n, tile.k),
        w if bias is None else bias, n_out, share, act or "none", bias is not None, TYPES[dtype],
        tile.m, block_n, tile.k, num_warps=tile.n_warps, num_stages=tile.n_stages, **OVERLAP,
    )  # fmt: skip
    return out if n_parts > 1 else out[0]


def described(x: torch.Tensor, *block: int) -> TensorDescriptor:
    """A tensor as the copy engine sees it, in blocks of that size."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), list(block))
