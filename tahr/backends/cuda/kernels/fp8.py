"""Products with matrices of 8-bit floats: a few rows as they are, more of them rounded to 8-bit floats themselves."""

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.api import Activation
from tahr.backends.cuda.kernels.common.dependent import OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rows import gated, narrow
from tahr.backends.cuda.kernels.linear import TYPES, blas_linear, load_weights
from tahr.backends.cuda.layouts.fp8 import LARGEST, Fp8Matrix

MOST_VECTORS = 2  # rows up to which plain additions keep up with the memory
VECTOR_VALUES = 8192  # values that a program takes at a time: so many columns of so many rows, measured on an H200
N_NARROW, NARROW, WIDE = 4096, 2048, 4096  # columns of a matrix, and those taken at a time up to it and beyond
ALIGN = 16  # rows and columns of a matrix for the library's products of 8-bit floats


@triton.jit
def scaled_sums(
    products, scales, outs, n_out, begin, n_cols: constexpr, group: constexpr, block_n: constexpr,
    block_k: constexpr,
):  # fmt: skip
    """The sums of products [block_n, block_k] from column `begin` on, times the scales of their columns; one scale of
    all columns is left to the caller."""
    if group == n_cols:
        found = tl.sum(products, 1)
    else:
        sums = tl.sum(tl.reshape(products, (block_n, block_k // group, group)), 2)
        groups = begin // group + tl.arange(0, block_k // group)
        inside = (outs[:, None] < n_out) & (groups[None, :] < n_cols // group)
        at = scales + outs.to(tl.int64)[:, None] * (n_cols // group) + groups[None, :]
        found = tl.sum(sums * tl.load(at, mask=inside, other=0.0), 1)
    return found


@triton.jit
def fp8_vector_kernel(
    out, x, w, scales, bias, n_out, x_stride, n_cols: constexpr, group: constexpr, act: constexpr,
    has_bias: constexpr, dtype: constexpr, block_n: constexpr, block_k: constexpr,
):  # fmt: skip
    """out = row @ w.T + bias for one row per program; with `act`, w holds a gate above an up matrix: act(gate) * up.

    Every `group` columns of a row of w have a scale. The first weights are asked for before the kernels that make the
    row have finished.
    """
    let_next_start()
    outs, index = tl.program_id(0) * block_n + tl.arange(0, block_n), tl.program_id(1).to(tl.int64)
    up_w = w + tl.cast(n_out, tl.int64) * n_cols
    result, up_result = tl.zeros((block_n,), tl.float32), tl.zeros((block_n,), tl.float32)
    inside, one_scale = outs < n_out, group == n_cols
    own = tl.load(scales + outs, mask=inside & one_scale, other=1.0)
    up_own = tl.load(scales + n_out + outs, mask=inside & one_scale, other=1.0) if act != "none" else own
    for begin in tl.static_range(0, n_cols, block_k):
        cols = begin + tl.arange(0, block_k)
        weights = load_weights(w, outs, n_out, begin, n_cols, block_k)
        up_weights = load_weights(up_w, outs, n_out, begin, n_cols, block_k) if act != "none" else weights
        if begin == 0:
            wait_for_previous()
        row = tl.load(x + index * x_stride + cols, mask=cols < n_cols, other=0.0).to(dtype).to(tl.float32)
        products = weights.to(tl.float32) * row[None, :]
        result += scaled_sums(products, scales, outs, n_out, begin, n_cols, group, block_n, block_k)
        if act != "none":
            products = up_weights.to(tl.float32) * row[None, :]
            up_result += scaled_sums(products, scales, outs + n_out, 2 * n_out, begin, n_cols, group, block_n, block_k)
    result, up_result = result * own, up_result * up_own
    if has_bias:
        result += tl.load(bias + outs, mask=inside, other=0.0)
    if act != "none":
        if has_bias:
            up_result += tl.load(bias + n_out + outs, mask=inside, other=0.0)
        result = gated(result, up_result, act)
    tl.store(out + index * n_out + outs, narrow(result, out.dtype.element_ty), mask=inside)


@triton.jit
def round_rows_kernel(rounded, scales, x, n_cols, x_stride, largest: constexpr, block: constexpr):
    """Rows as 8-bit floats, the largest number of each as the largest there is, and what they must be multiplied by."""
    let_next_start()
    wait_for_previous()
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    values = tl.load(x + row * x_stride + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    most = tl.max(tl.abs(values), 0)
    scale = tl.where(most > 0, most / largest, 1.0)
    tl.store(scales + row, scale)
    tl.store(rounded + row * n_cols + cols, (values / scale).to(tl.float8e4nv), mask=cols < n_cols)


def fp8_vector_linear(
    x: torch.Tensor, w: Fp8Matrix, bias: torch.Tensor | None, dtype: torch.dtype, act: Activation | None = None
) -> torch.Tensor:
    """x @ w.T + bias for a few rows in f32; with `act`, w is a gate above an up matrix: act(gate) * up in `dtype`."""
    (n_rows, n_cols), n_out = x.shape, w.shape[0] // (2 if act else 1)
    out = x.new_empty((n_rows, n_out), dtype=dtype if act else torch.float32)
    block_k = min(NARROW if n_cols <= N_NARROW else WIDE, triton.next_power_of_2(n_cols))
    block_n = VECTOR_VALUES // block_k
    fp8_vector_kernel[(triton.cdiv(n_out, block_n), n_rows)](
        out, x, w.values, w.scales, out if bias is None else bias, n_out, x.stride(0), n_cols,
        n_cols // w.scales.shape[1], act or "none", bias is not None, TYPES[dtype], block_n, block_k,
        num_warps=4, **OVERLAP,
    )  # fmt: skip
    return out


def fp8_linear(x: torch.Tensor, w: Fp8Matrix, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """x @ w.T + bias by the vendor's library, rows rounded to 8-bit floats where it multiplies such."""
    if w.grouped or not x.is_cuda or w.shape[0] % ALIGN or w.shape[1] % ALIGN:
        return blas_linear(x, w.dense(w.dtype) if w.copy is None else w.copy, bias, dtype)
    n_rows, n_cols = x.shape
    rounded = torch.empty((n_rows, n_cols), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((n_rows, 1), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(n_cols)
    round_rows_kernel[(n_rows,)](
        rounded, scales, x, n_cols, x.stride(0), LARGEST, block, num_warps=8 if block >= 4096 else 4, **OVERLAP
    )
    out = torch._scaled_mm(
        rounded, w.values.T, scale_a=scales, scale_b=w.scales.T, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return (out if bias is None else out.add_(bias)).to(dtype)
