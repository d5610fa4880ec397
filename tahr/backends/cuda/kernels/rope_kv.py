"""Head norms, rotation and the KV write of a layer in one kernel."""

from typing import Any

import torch
import triton
import triton.language as tl

from tahr.backends.api import RopeStyle
from tahr.backends.cuda import kv as cuda_kv
from tahr.backends.cuda.kernels.rows import narrow

TO_WHOLE = tl.constexpr(12582912.0)  # 1.5 * 2^23: small numbers added to it lose their fractions, ties to even


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
def store_head(numbers, scales, place, head, dim, cols, inside, kv_block: tl.constexpr, block: tl.constexpr):
    """Write a head; with a `kv_block`, as codes followed by the scales of so many of them each."""
    if kv_block == 0:
        tl.store(numbers + place + cols, narrow(head, numbers.dtype.element_ty), mask=inside)
    else:
        parts = tl.reshape(head, (block // kv_block, kv_block))
        most = tl.max(tl.abs(parts), 1) + tl.sum(parts * 0.0, 1)  # what is not finite makes the sum NaN
        scale = tl.div_rn(most, tl.full(most.shape, 127.0, tl.float32)).to(tl.float16)
        scale = tl.where(scale == float("inf"), float("nan"), scale).to(tl.float16)
        exact = scale.to(tl.float32)
        inverse = tl.where(exact == 0, 0.0, tl.div_rn(tl.full(most.shape, 1.0, tl.float32), exact))
        codes = parts * inverse[:, None] + TO_WHOLE - TO_WHOLE
        codes = tl.minimum(tl.maximum(codes, -127.0), 127.0).to(tl.int8)
        tl.store(numbers + place + cols, tl.reshape(codes, (block,)), mask=inside)
        at = tl.arange(0, block // kv_block)
        tl.store(scales + (place + dim) // 2 + at, scale, mask=at < dim // kv_block)


@triton.jit(do_not_specialize=["slots", "counts", "page_size"])
def place_kernel(
    out, q, k, v, keys, values, key_scales, value_scales, angles, q_gain, k_gain, slots, counts, eps,
    q_stride, k_stride, v_stride, n_q, n_kv, dim, stored, half, page_size,
    normed: tl.constexpr, pairs: tl.constexpr, kv_block: tl.constexpr, block: tl.constexpr,
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
    place = ((slot // page_size * n_kv + kv_head) * page_size + slot % page_size) * stored
    if head < n_q + n_kv:
        x = k + token * k_stride + kv_head * dim
        turned = rotated(x, k_gain, eps, cos_sin, half, cols, dim, normed, pairs, inside)
        store_head(keys, key_scales, place, turned, dim, cols, inside, kv_block, block)
    else:
        copied = tl.load(v + token * v_stride + kv_head * dim + cols, mask=inside, other=0.0).to(tl.float32)
        store_head(values, value_scales, place, copied, dim, cols, inside, kv_block, block)


def rope_and_cache(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    store: torch.Tensor,
    slots: torch.Tensor,
    angles: torch.Tensor,
    style: RopeStyle,
    inputs: Any,
    gains: tuple[torch.Tensor, torch.Tensor, float] | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Write the keys and values of live tokens to `store` (see `cuda_kv`); the rotated queries."""
    q, k, v = qkv
    _, _, n_kv, page_size, stored = store.shape
    dim = cuda_kv.head_dim(store)
    n_tokens, n_q = q.shape[0], q.shape[1] // dim
    out = q.new_empty((n_tokens, q.shape[1]), dtype=dtype)
    q_gain, k_gain, eps = gains or (angles, angles, 0.0)
    place_kernel[(n_tokens, n_q + 2 * n_kv)](
        out, q, k, v, store[0], store[1], *cuda_kv.scales(store), angles, q_gain, k_gain, slots, inputs.counts, eps,
        q.stride(0), k.stride(0), v.stride(0), n_q, n_kv, dim, stored, angles.shape[1] // 2, page_size,
        gains is not None, style == "pairs", cuda_kv.block_of(store), triton.next_power_of_2(dim), num_warps=1,
        enable_fp_fusion=False,  # a code is a rounded product, rounded again
    )  # fmt: skip
    return out
