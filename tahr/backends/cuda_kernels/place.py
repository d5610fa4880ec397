"""Head norms, rotation and the KV write of a layer in one kernel."""

from typing import Any

import torch
import triton
import triton.language as tl

from tahr.backends.api import RopeStyle
from tahr.backends.cuda_kernels.rows import narrow


@triton.jit
def rotated(x, gain, eps, cos_sin, half, cols, dim, normed: tl.constexpr, pairs: tl.constexpr, inside):
    """One head, normed if it has a gain, its first 2 * half numbers turned."""
    if pairs:
        partner, turn = cols ^ 1, cols // 2
        first = cols % 2 == 0
    else:
        first = cols < half
        partner, turn = tl.where(first, cols + half, cols - half), tl.where(first, cols, cols - half)
    turns = cols < 2 * half
    values = tl.load(x + cols, mask=inside, other=0.0).to(tl.float32)
    others = tl.load(x + partner, mask=turns, other=0.0).to(tl.float32)
    if normed:
        root = tl.sqrt(tl.sum(values * values, 0) / dim + eps)
        values = values / root * tl.load(gain + cols, mask=inside, other=0.0)
        others = others / root * tl.load(gain + partner, mask=turns, other=0.0)
    cos = tl.load(cos_sin + turn, mask=turns, other=1.0)
    sin = tl.load(cos_sin + half + turn, mask=turns, other=0.0)
    return values * cos + tl.where(first, -others, others) * sin


@triton.jit
def place_kernel(
    out, q, k, v, keys, values, angles, q_gain, k_gain, slots, counts, eps,
    q_stride, k_stride, v_stride, n_q, n_kv, dim, half, page_size,
    normed: tl.constexpr, pairs: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program per token and head: the query heads first, then the key heads, then the value heads."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if token >= tl.load(counts):
        return
    cols = tl.arange(0, block)
    inside = cols < dim
    cos_sin = angles + token * 2 * half
    if head < n_q:
        x = q + token * q_stride + head * dim
        turned = rotated(x, q_gain, eps, cos_sin, half, cols, dim, normed, pairs, inside)
        tl.store(out + (token * n_q + head) * dim + cols, narrow(turned, out.dtype.element_ty), mask=inside)
        return
    slot = tl.load(slots + token).to(tl.int64)
    kv_head = (head - n_q) % n_kv
    at = ((slot // page_size * n_kv + kv_head) * page_size + slot % page_size) * dim + cols
    if head < n_q + n_kv:
        x = k + token * k_stride + kv_head * dim
        turned = rotated(x, k_gain, eps, cos_sin, half, cols, dim, normed, pairs, inside)
        tl.store(keys + at, narrow(turned, keys.dtype.element_ty), mask=inside)
    else:
        copied = tl.load(v + token * v_stride + kv_head * dim + cols, mask=inside, other=0.0).to(tl.float32)
        tl.store(values + at, narrow(copied, values.dtype.element_ty), mask=inside)


def place_qkv(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    store: torch.Tensor,
    slots: torch.Tensor,
    angles: torch.Tensor,
    style: RopeStyle,
    inputs: Any,
    gains: tuple[torch.Tensor, torch.Tensor, float] | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Write the keys and values of live tokens to `store` [2, pages, heads, page_size, dim]; the rotated queries."""
    q, k, v = qkv
    _, _, n_kv, page_size, dim = store.shape
    n_tokens, n_q = q.shape[0], q.shape[1] // dim
    out = q.new_empty((n_tokens, q.shape[1]), dtype=dtype)
    q_gain, k_gain, eps = gains or (angles, angles, 0.0)
    place_kernel[(n_tokens, n_q + 2 * n_kv)](
        out, q, k, v, store[0], store[1], angles, q_gain, k_gain, slots, inputs.counts, eps,
        q.stride(0), k.stride(0), v.stride(0), n_q, n_kv, dim, angles.shape[1] // 2, page_size,
        gains is not None, style == "pairs", triton.next_power_of_2(dim), num_warps=1,
    )  # fmt: skip
    return out
