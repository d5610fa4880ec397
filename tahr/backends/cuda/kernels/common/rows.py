"""Kernels that treat rows one by one: gathering, norms, gated activations."""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.api import Activation
from tahr.backends.cuda.kernels.common.dependent import OVERLAP, let_next_start, wait_for_previous

NORM_WARPS = 8
BLOCK = 1024  # columns a program takes where columns do not depend on each other


@triton.jit
def narrow(values, dtype: constexpr):
    """Convert f32 for storing; f16 and 8-bit floats saturate instead of turning large values into infinity or NaN."""
    if (dtype == tl.float16) | (dtype == tl.float8e4nv):
        most: constexpr = 65504.0 if dtype == tl.float16 else 448.0
        low = tl.maximum(values, -most, propagate_nan=tl.PropagateNan.ALL)
        values = tl.minimum(low, most, propagate_nan=tl.PropagateNan.ALL)
    return values.to(dtype)


@triton.jit
def gather_kernel(
    out, table, indices, last_tokens, counts, scale, width, table_stride,
    count: constexpr, has_last_tokens: constexpr, block: constexpr,
):  # fmt: skip
    """Row `indices[i]` of the table. With `last_tokens`, an index i < 0 stands for last_tokens[~i]."""
    let_next_start()
    wait_for_previous()
    row = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    alive = row < tl.load(counts + count)  # indices below the live rows are left over: not followed
    end = tl.where(alive, width, 0)
    index = tl.load(indices + row).to(tl.int64)
    if has_last_tokens:
        sampled = tl.load(last_tokens + (-1 - index), mask=alive & (index < 0), other=0)
        index = tl.where(index < 0, tl.maximum(sampled, 0).to(tl.int64), index)  # below 0 is an error, not a row
    values = tl.load(table + index * table_stride + cols, mask=cols < end, other=0.0).to(tl.float32)
    at = out + row.to(tl.int64) * width + cols
    tl.store(at, narrow(values * scale, out.dtype.element_ty), mask=cols < width)


def embed_positions(table: torch.Tensor, inputs: Any, n_tokens: int) -> torch.Tensor:
    """table[positions] in f32 for the live ones of `n_tokens` tokens, zeros below them."""
    width, index = table.shape[1], inputs.positions
    out = table.new_empty((n_tokens, width), dtype=torch.float32)
    gather_kernel[(n_tokens, triton.cdiv(width, BLOCK))](
        out, table, index, index, inputs.counts, 1.0, width, table.stride(0), 0, False, BLOCK, **OVERLAP
    )
    return out


def embed(table: torch.Tensor, inputs: Any, n_tokens: int, scale: float) -> torch.Tensor:
    """scale * table[ids] in f32 for the live ones of `n_tokens` tokens, zeros below them."""
    width = table.shape[1]
    out = table.new_empty((n_tokens, width), dtype=torch.float32)
    gather_kernel[(n_tokens, triton.cdiv(width, BLOCK))](
        out,
        table,
        inputs.ids,
        inputs.last_tokens,
        inputs.counts,
        scale,
        width,
        table.stride(0),
        0,
        True,
        BLOCK,
        **OVERLAP,
    )
    return out


def gather(x: torch.Tensor, inputs: Any, n_rows: int) -> torch.Tensor:
    """x[logit_rows] for the live ones of `n_rows` rows, zeros below them."""
    width, index = x.shape[1], inputs.logit_rows
    out = x.new_empty((n_rows, width))
    gather_kernel[(n_rows, triton.cdiv(width, BLOCK))](
        out, x, index, index, inputs.counts, 1.0, width, x.stride(0), 1, False, BLOCK, **OVERLAP
    )
    return out


@triton.jit
def store_kernel(there, x, slots, counts, width, there_stride, x_stride, count: constexpr, block: constexpr):
    """Row i of x goes to row `slots[i]`, nowhere if that is negative."""
    let_next_start()
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    slot = tl.load(slots + row).to(tl.int64)
    goes = (slot >= 0) & (row < tl.load(counts + count))  # slots below the live rows are left over
    end = tl.where(goes, width, 0)
    values = tl.load(x + row * x_stride + cols, mask=cols < end, other=0.0).to(tl.float32)
    tl.store(there + slot * there_stride + cols, values, mask=cols < end)


def store(x: torch.Tensor, there: torch.Tensor, slots: torch.Tensor, counts: torch.Tensor, count: int) -> None:
    """there[slots] = x for the rows that have a slot and are among the first `counts[count]`."""
    n_rows, width = x.shape
    grid = (n_rows, triton.cdiv(width, BLOCK))
    store_kernel[grid](there, x, slots, counts, width, there.stride(0), x.stride(0), count, BLOCK, **OVERLAP)


@triton.jit
def summed(parts, n_parts: constexpr, part_stride, at, mask):
    """The numbers there, in f32, added up over the parts they come in."""
    total = tl.load(parts + at, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, n_parts):
        total += tl.load(parts + part * part_stride + at, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def norm_kernel(normed, x, gain, eps, width, x_stride, block: constexpr):
    let_next_start()
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, block)
    inside = cols < width
    gains = tl.load(gain + cols, mask=inside, other=0.0)
    wait_for_previous()
    values = tl.load(x + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
    root = tl.sqrt(tl.sum(values * values, 0) / width + eps)
    result = values / root * gains
    tl.store(normed + row * width + cols, narrow(result, normed.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """Each row over its root mean square, times the gain."""
    n_rows, width = x.shape
    normed = x.new_empty((n_rows, width), dtype=dtype)
    norm_kernel[(n_rows,)](
        normed, x, gain, eps, width, x.stride(0), triton.next_power_of_2(width), num_warps=NORM_WARPS, **OVERLAP
    )
    return normed


@triton.jit
def add_norm_kernel(
    normed, total, x, y, gain, eps, scale, width, x_stride, y_stride, part_stride, n_parts: constexpr,
    block: constexpr,
):  # fmt: skip
    let_next_start()
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, block)
    inside = cols < width
    gains = tl.load(gain + cols, mask=inside, other=0.0)
    wait_for_previous()
    values = tl.load(x + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
    values += scale * summed(y, n_parts, part_stride, row * y_stride + cols, inside)
    tl.store(total + row * width + cols, values, mask=inside)
    root = tl.sqrt(tl.sum(values * values, 0) / width + eps)
    result = values / root * gains
    tl.store(normed + row * width + cols, narrow(result, normed.dtype.element_ty), mask=inside)


def add_rms_norm(
    x: torch.Tensor, y: torch.Tensor, gain: torch.Tensor, eps: float, scale: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """(s, rms_norm(s)) for s = x + scale * y; s in f32. y may come in parts, [parts, rows, width]."""
    n_rows, width = x.shape
    y = y if y.dim() == 3 else y[None]
    total, normed = x.new_empty((n_rows, width), dtype=torch.float32), x.new_empty((n_rows, width), dtype=dtype)
    add_norm_kernel[(n_rows,)](
        normed, total, x, y, gain, eps, scale, width, x.stride(0), y.stride(1), y.stride(0), len(y),
        triton.next_power_of_2(width), num_warps=NORM_WARPS, **OVERLAP,
    )  # fmt: skip
    return total, normed


@triton.jit
def layer_norm_kernel(
    normed, total, x, y, gain, bias, eps, scale, width, x_stride, y_stride, part_stride, n_parts: constexpr,
    has_bias: constexpr, block: constexpr,
):  # fmt: skip
    """The layer norm of x + scale * y, which goes to `total`; without parts of y, of x alone."""
    let_next_start()
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, block)
    inside = cols < width
    gains = tl.load(gain + cols, mask=inside, other=0.0)
    wait_for_previous()
    values = tl.load(x + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
    if n_parts:
        values += scale * summed(y, n_parts, part_stride, row * y_stride + cols, inside)
        tl.store(total + row * width + cols, values, mask=inside)
    centred = tl.where(inside, values - tl.sum(values, 0) / width, 0.0)
    result = centred / tl.sqrt(tl.sum(centred * centred, 0) / width + eps) * gains
    if has_bias:
        result += tl.load(bias + cols, mask=inside, other=0.0)
    tl.store(normed + row * width + cols, narrow(result, normed.dtype.element_ty), mask=inside)


def layer_norm(
    x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor | None, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """Each row less its mean, over what its root mean square is then, times the gain, plus the bias."""
    n_rows, width = x.shape
    normed = x.new_empty((n_rows, width), dtype=dtype)
    layer_norm_kernel[(n_rows,)](
        normed, normed, x, x, gain, gain if bias is None else bias, eps, 1.0, width, x.stride(0), 0, 0, 0,
        bias is not None, triton.next_power_of_2(width), num_warps=NORM_WARPS, **OVERLAP,
    )  # fmt: skip
    return normed


def add_layer_norm(
    x: torch.Tensor,
    y: torch.Tensor,
    gain: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    scale: float,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(s, layer_norm(s)) for s = x + scale * y; s in f32. y may come in parts, [parts, rows, width]."""
    n_rows, width = x.shape
    y = y if y.dim() == 3 else y[None]
    total, normed = x.new_empty((n_rows, width), dtype=torch.float32), x.new_empty((n_rows, width), dtype=dtype)
    layer_norm_kernel[(n_rows,)](
        normed, total, x, y, gain, gain if bias is None else bias, eps, scale, width, x.stride(0), y.stride(1),
        y.stride(0), len(y), bias is not None, triton.next_power_of_2(width), num_warps=NORM_WARPS, **OVERLAP,
    )  # fmt: skip
    return total, normed


@triton.jit
def tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def activated(x, act: constexpr):
    """The activation function of that name."""
    if act == "silu":
        share = tl.sigmoid(x)
    elif act == "gelu_tanh":
        share = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # (1 + tanh(u)) / 2 = sigmoid(2 u)
    elif act == "relu2":
        share = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif act == "quick_gelu":
        share = tl.sigmoid(1.702 * x)
    else:
        tl.static_assert(act == "gelu")
        share = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    return x * share


@triton.jit
def gated(g, u, act: constexpr):
    """act(g) * u, or what the activation of that name makes of both."""
    if act == "clamped_swiglu":
        below = tl.minimum(g, 7.0)
        result = below * tl.sigmoid(1.702 * below) * (tl.minimum(tl.maximum(u, -7.0), 7.0) + 1.0)
    elif act == "sigmoid":
        result = tl.sigmoid(g) * u
    else:
        result = activated(g, act) * u
    return result


@triton.jit
def activate_kernel(
    out, gate, up, width, gate_stride, up_stride, act: constexpr, has_up: constexpr, block: constexpr
):  # fmt: skip
    let_next_start()
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    g = tl.load(gate + row * gate_stride + cols, mask=cols < width, other=0.0).to(tl.float32)
    if has_up:
        u = tl.load(up + row * up_stride + cols, mask=cols < width, other=0.0).to(tl.float32)
        result = gated(g, u, act)
    elif act == "sigmoid":
        result = tl.sigmoid(g)
    else:
        result = activated(g, act)
    tl.store(out + row * width + cols, narrow(result, out.dtype.element_ty), mask=cols < width)


def activate(gate: torch.Tensor, up: torch.Tensor | None, act: Activation, dtype: torch.dtype) -> torch.Tensor:
    """act(gate) * up, or act(gate)."""
    n_rows, width = gate.shape
    out = gate.new_empty((n_rows, width), dtype=dtype)
    grid = (n_rows, triton.cdiv(width, BLOCK))
    beside = gate if up is None else up
    activate_kernel[grid](
        out, gate, beside, width, gate.stride(0), beside.stride(0), act, up is not None, BLOCK, **OVERLAP
    )
    return out
