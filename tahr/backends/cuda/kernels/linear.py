"""Matrix products in tiles of our own: of few rows, and of any number where a row must not depend on the others.

A tile's shape never changes how one result is summed: the columns go through the same matrix instruction, sixteen at a
time (one at a time in f32), from the first to the last. Only `vector_linear`, for one or two rows, sums differently.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.api import Activation
from tahr.backends.cuda.kernels.common.card import stages_within
from tahr.backends.cuda.kernels.common.dependent import OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rows import gated, narrow

FEW = 16  # rows up to which reading the weights is all that takes time: one tile holds them
N_VECTORS = 2  # rows up to which plain additions keep up with the memory


class Tile(NamedTuple):
    """How a program cuts a product: rows, weight rows, columns at a time, and how Triton schedules them."""

    m: int
    n: int
    k: int
    n_warps: int
    n_stages: int


class RowNorm(NamedTuple):
    """rms_norm(x + scale * y) of rows; the sum goes to `total`."""

    x: torch.Tensor  # f32
    total: torch.Tensor
    y: torch.Tensor
    gain: torch.Tensor
    eps: float
    scale: float


EXACT = Tile(FEW, 32, 32, 4, 2)
# Few rows: many small programs where the matrix has few rows itself, else larger ones. As measured on an H200.
SMALL, LARGE = Tile(FEW, 16, 256, 2, 6), Tile(FEW, 32, 256, 4, 4)
N_SMALL = 4096
# Many rows: 64 to a tile would be faster still, but Hopper has another instruction for those.
MANY = Tile(32, 128, 64, 4, 4)
# One or two rows: as many columns as there are, up to a bound, and weight rows to make up that many values.
VECTOR_COLS, VECTOR_VALUES = 4096, 8192
NORM_COLS = 2048  # a norm repeated by every program pays up to this width
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit(do_not_specialize=["n_rows"])
def linear_kernel(
    out, x, w, bias, n_rows, n_out, n_cols, x_stride,
    has_bias: constexpr, dtype: constexpr, block_m: constexpr, block_n: constexpr, block_k: constexpr,
):  # fmt: skip
    """out = x @ w.T + bias. Columns are summed in the same order for every row, whatever the other rows are."""
    let_next_start()
    wait_for_previous()
    rows = tl.program_id(1) * block_m + tl.arange(0, block_m)
    outs = tl.program_id(0) * block_n + tl.arange(0, block_n)
    total = tl.zeros((block_m, block_n), tl.float32)
    x_rows = x + rows.to(tl.int64)[:, None] * x_stride
    w_rows = w + outs.to(tl.int64)[:, None] * n_cols
    for begin in range(0, n_cols, block_k):
        cols = begin + tl.arange(0, block_k)
        inside = cols[None, :] < n_cols
        xs = tl.load(x_rows + cols[None, :], mask=inside & (rows[:, None] < n_rows), other=0.0).to(dtype)
        ws = tl.load(w_rows + cols[None, :], mask=inside & (outs[:, None] < n_out), other=0.0).to(dtype)
        total = tl.dot(xs, tl.trans(ws), total, input_precision="ieee")
    if has_bias:
        total += tl.load(bias + outs, mask=outs < n_out, other=0.0)[None, :]
    at = out + rows.to(tl.int64)[:, None] * n_out + outs[None, :]
    mask = (rows[:, None] < n_rows) & (outs[None, :] < n_out)
    tl.store(at, narrow(total, out.dtype.element_ty), mask=mask)


@triton.jit
def load_weights(w, outs, n_out, begin, n_cols: constexpr, block_k: constexpr):
    """Columns begin.. of some rows of a matrix [block_n, block_k], zeros outside of it."""
    cols = begin + tl.arange(0, block_k)
    at = w + outs.to(tl.int64)[:, None] * n_cols + cols[None, :]
    mask = (outs[:, None] < n_out) & (cols[None, :] < n_cols)
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def vector_kernel(
    out, x, w, bias, total, y, gain, eps, y_scale, n_out, x_stride, n_cols: constexpr, has_norm: constexpr,
    act: constexpr, has_bias: constexpr, dtype: constexpr, block_n: constexpr, block_k: constexpr,
):  # fmt: skip
    """out = row @ w.T + bias for one row per program: of x, or with `has_norm` of rms_norm(x + y_scale * y).

    With `act`, w holds a gate above an up matrix: out = act(gate) * up. The first weights are asked for before the
    kernels that make the row have finished. With a norm, one tile holds all columns, and the sum is written to `total`.
    """
    let_next_start()
    outs, index = tl.program_id(0) * block_n + tl.arange(0, block_n), tl.program_id(1).to(tl.int64)
    up_w = w + tl.cast(n_out, tl.int64) * n_cols
    weights = load_weights(w, outs, n_out, 0, n_cols, block_k)
    up_weights = load_weights(up_w, outs, n_out, 0, n_cols, block_k) if act != "none" else weights
    if has_norm:
        gains = tl.load(gain + tl.arange(0, block_k), mask=tl.arange(0, block_k) < n_cols, other=0.0)
    wait_for_previous()
    result, up_result = tl.zeros((block_n,), tl.float32), tl.zeros((block_n,), tl.float32)
    for begin in tl.static_range(0, n_cols, block_k):
        cols = begin + tl.arange(0, block_k)
        if begin > 0:
            weights = load_weights(w, outs, n_out, begin, n_cols, block_k)
            if act != "none":
                up_weights = load_weights(up_w, outs, n_out, begin, n_cols, block_k)
        inside = cols < n_cols
        row = tl.load(x + index * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
        if has_norm:
            row += y_scale * tl.load(y + index * n_cols + cols, mask=inside, other=0.0).to(tl.float32)
            if tl.program_id(0) == 0:
                tl.store(total + index * n_cols + cols, row, mask=inside)
            root = tl.sqrt(tl.sum(row * row, 0) / n_cols + eps)
            row = row / root * gains
        row = row.to(dtype).to(tl.float32)
        result += tl.sum(weights.to(tl.float32) * row[None, :], 1)
        if act != "none":
            up_result += tl.sum(up_weights.to(tl.float32) * row[None, :], 1)
    if has_bias:
        result += tl.load(bias + outs, mask=outs < n_out, other=0.0)
        if act != "none":
            up_result += tl.load(bias + n_out + outs, mask=outs < n_out, other=0.0)
    if act != "none":
        result = gated(result, up_result, act)
    tl.store(out + index * n_out + outs, narrow(result, out.dtype.element_ty), mask=outs < n_out)


def tile_for(n_rows: int, n_out: int, dtype: torch.dtype) -> Tile:
    """How a product of that many rows by a matrix of `n_out` is cut."""
    if dtype == torch.float32:
        return EXACT
    if n_rows > FEW:
        return MANY
    return SMALL if n_out <= N_SMALL else LARGE


def tiled_linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """x @ w.T + bias in f32, the factors taken as `dtype`."""
    (n_rows, n_cols), n_out = x.shape, w.shape[0]
    out = x.new_empty((n_rows, n_out), dtype=torch.float32)
    tile = tile_for(n_rows, n_out, dtype)
    stage_bytes = tile.k * (tile.m * x.element_size() + tile.n * w.element_size())
    linear_kernel[(triton.cdiv(n_out, tile.n), triton.cdiv(n_rows, tile.m))](
        out, x, w, out if bias is None else bias, n_rows, n_out, n_cols, x.stride(0),
        bias is not None, TYPES[dtype], tile.m, tile.n, tile.k, num_warps=tile.n_warps,
        num_stages=stages_within(tile.n_stages, stage_bytes, x.device), **OVERLAP,
    )  # fmt: skip
    return out


def vector_linear(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, act: Activation | None = None
) -> torch.Tensor:
    """x @ w.T + bias for a few rows in f32; with `act`, w is a gate above an up matrix: act(gate) * up in `dtype`."""
    return launch_vector(x, w, bias, dtype, act, None)


def norm_vector_linear(
    norm: RowNorm, w: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, act: Activation | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(s, the same of rms_norm(s)) for s = x + scale * y, where all columns of a row fit a tile."""
    total = torch.empty_like(norm.x)
    return total, launch_vector(norm.x, w, bias, dtype, act, norm._replace(total=total))


def launch_vector(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    act: Activation | None,
    norm: RowNorm | None,
) -> torch.Tensor:
    (n_rows, n_cols), n_out = x.shape, w.shape[0] // (2 if act else 1)
    out = x.new_empty((n_rows, n_out), dtype=dtype if act else torch.float32)
    block_k = min(VECTOR_COLS, triton.next_power_of_2(n_cols))
    block_n = max(2, VECTOR_VALUES // block_k) // (2 if act else 1)
    assert norm is None or n_cols <= block_k
    _, total, y, gain, eps, scale = norm or RowNorm(x, out, out, out, 0.0, 0.0)
    vector_kernel[(triton.cdiv(n_out, block_n), n_rows)](
        out, x, w, out if bias is None else bias, total, y, gain, eps, scale, n_out, x.stride(0), n_cols,
        norm is not None, act or "none", bias is not None, TYPES[dtype], block_n, block_k, num_warps=4, **OVERLAP,
    )  # fmt: skip
    return out


def blas_linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """x @ w.T + bias by the vendor's library, accumulated in f32 and stored as `dtype`."""
    x = x.to(w.dtype)
    if dtype == w.dtype:
        out = x @ w.T
    elif x.is_cuda:
        out = torch.mm(x, w.T, out_dtype=dtype)
    else:
        out = x.to(dtype) @ w.T.to(dtype)
    return out if bias is None else out.add_(bias)
