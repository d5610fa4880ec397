"""Products of a few rows, as they are, by matrices of 8-bit floats with one scale to a row: the vendor's tiles would
leave most multiprocessors idle."""

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.api import Activation
from tahr.backends.cuda.kernels.common.card import n_processors, stages_within
from tahr.backends.cuda.kernels.common.dependent import OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rows import gated, narrow
from tahr.backends.cuda.kernels.linear import TYPES, Tile
from tahr.backends.cuda.layouts.fp8 import Fp8Matrix
from tahr.backends.cuda.layouts.presence import interprets

FEW, FEW_IN_PARTS = 16, 32  # rows up to which it is faster than the library, whole or in parts
# Programs of large matrices fill the card many times, so each may have less in flight. As measured on an H200.
N_SMALL, SMALL, LARGE = 8192, Tile(16, 32, 256, 4, 6), Tile(16, 32, 256, 4, 4)
TWO_TILES = Tile(16, 32, 256, 4, 3)  # two tiles of rows: both take registers
PER_PROCESSOR, LEAST_TILES, MOST_PARTS = 4, 4, 8  # programs of a product in parts, tiles of columns in a part, parts

# Four 8-bit floats become two registers of bf16 numbers: their bits, moved, are 2^120 times too small. NaN would become
# 480, but no rounding gives it, and files that hold it are refused.
WIDEN = constexpr("""
{
    .reg .b32 low, high, small, power, zeros;
    mov.b32 power, 0x7b807b80;
    mov.b32 zeros, 0x80008000;
    prmt.b32 low, $2, 0, 0x1404;
    prmt.b32 high, $2, 0, 0x3424;
    and.b32 small, low, 0x7f007f00;
    shr.u32 small, small, 4;
    lop3.b32 low, low, 0x80008000, small, 0xea;
    fma.rn.bf16x2 $0, low, power, zeros;
    and.b32 small, high, 0x7f007f00;
    shr.u32 small, small, 4;
    lop3.b32 high, high, 0x80008000, small, 0xea;
    fma.rn.bf16x2 $1, high, power, zeros;
}
""")
_by_bits = constexpr(not interprets())


@triton.jit
def widened(values, dtype: constexpr):
    """8-bit floats as wider ones. Triton makes them bf16 by way of f32, one at a time, slower than they are read."""
    if _by_bits & (dtype == tl.bfloat16):
        bits = values.to(tl.uint8, bitcast=True)
        return tl.inline_asm_elementwise(WIDEN, "=r,=r,r", [bits], dtype=tl.bfloat16, is_pure=True, pack=4)
    return values.to(dtype)


@triton.jit
def load_tile(x, first, n_rows, begin, stride, n_cols: constexpr, block_m: constexpr, block_k: constexpr):
    """Columns `begin` .. of rows `first` .., zeros outside."""
    rows, cols = first + tl.arange(0, block_m), begin + tl.arange(0, block_k)
    inside = rows[:, None] < n_rows
    if n_cols % block_k:
        inside &= cols[None, :] < n_cols
    return tl.load(x + rows.to(tl.int64)[:, None] * stride + cols[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(
    out, total, up, scales, bias, first, n_rows, outs, n_out, act: constexpr, has_bias: constexpr,
):  # fmt: skip
    """Sums times the scales of their rows of w, plus bias, or what `act` makes of two such: rows `first` .. of out."""
    inside, rows = outs < n_out, first + tl.arange(0, total.shape[0])
    total *= tl.load(scales + outs, mask=inside, other=0.0)[None, :]
    if has_bias:
        total += tl.load(bias + outs, mask=inside, other=0.0)[None, :]
    if act != "none":
        up *= tl.load(scales + n_out + outs, mask=inside, other=0.0)[None, :]
        if has_bias:
            up += tl.load(bias + n_out + outs, mask=inside, other=0.0)[None, :]
        total = gated(total, up, act)
    at = out + rows[:, None] * n_out + outs[None, :]
    tl.store(at, narrow(total, out.dtype.element_ty), mask=(rows[:, None] < n_rows) & inside[None, :])


@triton.jit(do_not_specialize=["n_rows"])
def fp8_few_kernel(
    out, x, w, scales, bias, n_rows, n_out, x_stride, n_cols: constexpr, share: constexpr, act: constexpr,
    has_bias: constexpr, several: constexpr, dtype: constexpr, block_m: constexpr, block_n: constexpr,
    block_k: constexpr,
):  # fmt: skip
    """out = x @ w.T + bias; with `act`, w holds a gate above an up matrix: act(gate) * up.

    Each part of `out` is the sum over its own `share` of the columns. With `several`, there are more than `block_m`
    rows: both tiles of them meet weights that were widened once.
    """
    let_next_start()
    wait_for_previous()
    first, part = tl.program_id(0) * block_n, tl.program_id(1)
    up_w = w + tl.cast(n_out, tl.int64) * n_cols
    low, high = tl.zeros((block_m, block_n), tl.float32), tl.zeros((block_m, block_n), tl.float32)
    up_low, up_high = low, high
    for begin in range(part * share, tl.minimum((part + 1) * share, n_cols), block_k):
        xs = load_tile(x, 0, n_rows, begin, x_stride, n_cols, block_m, block_k).to(dtype)
        ws = tl.trans(widened(load_tile(w, first, n_out, begin, n_cols, n_cols, block_n, block_k), dtype))
        low = tl.dot(xs, ws, low)
        if act != "none":
            ups = tl.trans(widened(load_tile(up_w, first, n_out, begin, n_cols, n_cols, block_n, block_k), dtype))
            up_low = tl.dot(xs, ups, up_low)
        if several:
            more = load_tile(x, block_m, n_rows, begin, x_stride, n_cols, block_m, block_k).to(dtype)
            high = tl.dot(more, ws, high)
            if act != "none":
                up_high = tl.dot(more, ups, up_high)
    outs, out = first + tl.arange(0, block_n), out + part.to(tl.int64) * n_rows * n_out
    store_rows(out, low, up_low, scales, bias, 0, n_rows, outs, n_out, act, has_bias)
    if several:
        store_rows(out, high, up_high, scales, bias, block_m, n_rows, outs, n_out, act, has_bias)


def takes(x: torch.Tensor, w: Fp8Matrix) -> bool:
    """Whether a product is faster so than by the library."""
    return len(x) <= FEW and not w.grouped


def parts_of(x: torch.Tensor, w: Fp8Matrix, bias: torch.Tensor | None) -> int:
    """The number of parts in which a product keeps the card busy; 0 where it is not to be cut."""
    if len(x) > FEW_IN_PARTS or w.grouped or bias is not None or not x.is_cuda:
        return 0
    wanted = PER_PROCESSOR * n_processors(x.device) // triton.cdiv(w.shape[0], LARGE.n)
    n_parts = min(wanted, w.shape[1] // (LEAST_TILES * LARGE.k), MOST_PARTS)
    return 1 << n_parts.bit_length() - 1 if n_parts > 1 else 0


def few_linear(
    x: torch.Tensor, w: Fp8Matrix, bias: torch.Tensor | None, dtype: torch.dtype, act: Activation | None = None
) -> torch.Tensor:
    """x @ w.T + bias in f32; with `act`, w is a gate above an up matrix: act(gate) * up in `dtype`."""
    n_out = w.shape[0] // (2 if act else 1)
    out = x.new_empty((len(x), n_out), dtype=dtype if act else torch.float32)
    launch(out, x, w, bias, dtype, act, SMALL if n_out <= N_SMALL else LARGE, 1)
    return out


def few_in_parts(x: torch.Tensor, w: Fp8Matrix, dtype: torch.dtype, n_parts: int) -> torch.Tensor:
    """x @ w.T in parts, summed over some columns each: [n_parts, rows, outputs] in f32, to be added up."""
    out = x.new_empty((n_parts, len(x), w.shape[0]), dtype=torch.float32)
    launch(out, x, w, None, dtype, None, LARGE if len(x) <= LARGE.m else TWO_TILES, n_parts)
    return out


def launch(
    out: torch.Tensor,
    x: torch.Tensor,
    w: Fp8Matrix,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    act: Activation | None,
    tile: Tile,
    n_parts: int,
) -> None:
    (n_rows, n_cols), n_out = x.shape, out.shape[-1]
    share = triton.cdiv(triton.cdiv(n_cols, tile.k), n_parts) * tile.k
    n_x, n_w = 2 if n_rows > tile.m else 1, 2 if act else 1
    stage_bytes = tile.k * (n_x * tile.m * x.element_size() + n_w * tile.n)
    fp8_few_kernel[(triton.cdiv(n_out, tile.n), n_parts)](
        out, x, w.values, w.scales, out if bias is None else bias, n_rows, n_out, x.stride(0), n_cols, share,
        act or "none", bias is not None, n_rows > tile.m, TYPES[dtype], tile.m, tile.n, tile.k,
        num_warps=tile.n_warps, num_stages=stages_within(tile.n_stages, stage_bytes, x.device), **OVERLAP,
    )  # fmt: skip
