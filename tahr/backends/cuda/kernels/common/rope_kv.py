"""Head norms, rope and the cache write of a layer in one kernel."""

from collections.abc import Sequence
from math import gcd

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.api import Rotation
from tahr.backends.cuda.kernels.common.dependent import OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rows import narrow
from tahr.backends.cuda.layouts import kv as cuda_kv

TO_WHOLE = constexpr(12582912.0)  # 1.5 * 2^23: small numbers added to it lose their fractions, ties to even
FEW = 64  # tokens up to which every head gets a program of its own
HEADS = 8  # most heads of a program in larger steps


@triton.jit
def butterflies(x, n: constexpr, width: constexpr, stride: constexpr):
    """Sums and differences of the numbers of x [n, width] that lie `stride` apart."""
    pairs = tl.permute(tl.reshape(x, (n, width // (2 * stride), 2, stride)), (0, 1, 3, 2))
    first, second = tl.split(pairs)
    both = tl.join(first + second, first - second)
    return tl.reshape(tl.permute(both, (0, 1, 3, 2)), (n, width))


@triton.jit
def hadamard(x, n: constexpr, width: constexpr, together: constexpr):
    """Rows of x [n, width], f32, each `together` neighbours of them rotated by a Hadamard matrix (its own inverse)."""
    for stage in tl.static_range(0, 10):
        if (1 << stage) < together:
            x = butterflies(x, n, width, 1 << stage)
    return x * together**-0.5


@triton.jit
def cos_sin_kernel(out, positions, inv_freq, axis_begins, scale, half, has_axes: constexpr, block: constexpr):
    """One program per token: cos, then sin, of its position times each frequency; `axis_begins` says by frequency where
    positions begin."""
    let_next_start()
    wait_for_previous()
    token, cols = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    if has_axes:
        at = tl.load(axis_begins + cols, mask=cols < half, other=0) + token
        position = tl.load(positions + at, mask=cols < half, other=0)
    else:
        position = tl.load(positions + token)
    angle = position.to(tl.float32) * tl.load(inv_freq + cols, mask=cols < half, other=0.0)
    tl.store(out + token * 2 * half + cols, tl.cos(angle) * scale, mask=cols < half)
    tl.store(out + token * 2 * half + half + cols, tl.sin(angle) * scale, mask=cols < half)


def cos_sin(
    positions: torch.Tensor,
    n_tokens: int,
    inv_freq: torch.Tensor,
    scale: float,
    axis_begins: torch.Tensor | None = None,
) -> torch.Tensor:
    """cos then sin of position * frequency, times a scale: [n_tokens, 2 * len(inv_freq)]."""
    half = len(inv_freq)
    out = inv_freq.new_empty((n_tokens, 2 * half))
    cos_sin_kernel[(n_tokens,)](
        out,
        positions,
        inv_freq,
        positions if axis_begins is None else axis_begins,
        scale,
        half,
        axis_begins is not None,
        triton.next_power_of_2(half),
        num_warps=1,
        **OVERLAP,
    )
    return out


@triton.jit
def rotated(x, gain, eps, cos_sin, half, cols, dim, normed: constexpr, pairs: constexpr, inside):
    """Heads [heads, block] that begin at x[:, None], normed if there is a gain, their first 2 * half numbers turned."""
    if pairs:
        partner, angle = cols ^ 1, cols // 2
        first = cols % 2 == 0
    else:
        first = cols < half
        partner, angle = tl.where(first, cols + half, cols - half), tl.where(first, cols, cols - half)
    turns = cols < 2 * half
    values = tl.load(x[:, None] + cols[None, :], mask=inside[None, :], other=0.0).to(tl.float32)
    others = tl.load(x[:, None] + partner[None, :], mask=turns[None, :], other=0.0).to(tl.float32)
    if normed:
        root = tl.sqrt(tl.sum(values * values, 1) / dim + eps)[:, None]
        values = values / root * tl.load(gain + cols, mask=inside, other=0.0)[None, :]
        others = others / root * tl.load(gain + partner, mask=turns, other=0.0)[None, :]
    cos = tl.load(cos_sin + angle, mask=turns, other=1.0)[None, :]
    sin = tl.load(cos_sin + half + angle, mask=turns, other=0.0)[None, :]
    return values * cos + tl.where(first[None, :], -others, others) * sin


@triton.jit
def store_heads(numbers, scales, offset, heads, dim, cols, inside, kv_block: constexpr, block: constexpr):
    """Write heads [n, block] at their offsets; with a `kv_block`, as codes followed by the scales of so many each."""
    at, mask = offset[:, None] + cols[None, :], inside[None, :]
    if kv_block == 0:
        tl.store(numbers + at, narrow(heads, numbers.dtype.element_ty), mask=mask)
    else:
        n: constexpr = heads.shape[0]
        parts = tl.reshape(heads, (n, block // kv_block, kv_block))
        most = tl.max(tl.abs(parts), 2) + tl.sum(parts * 0.0, 2)  # numbers that are not finite make the sum NaN
        scale = tl.div_rn(most, tl.full(most.shape, 127.0, tl.float32)).to(tl.float16)
        scale = tl.where(scale == float("inf"), float("nan"), scale).to(tl.float16)
        exact = scale.to(tl.float32)
        inverse = tl.where(exact == 0, 0.0, tl.div_rn(tl.full(most.shape, 1.0, tl.float32), exact))
        codes = parts * inverse[:, :, None] + TO_WHOLE - TO_WHOLE
        codes = tl.minimum(tl.maximum(codes, -127.0), 127.0).to(tl.int8)
        tl.store(numbers + at, tl.reshape(codes, (n, block)), mask=mask)
        block_at = tl.arange(0, block // kv_block)[None, :]
        tl.store(scales + ((offset + dim) // 2)[:, None] + block_at, scale, mask=block_at < dim // kv_block)


@triton.jit(do_not_specialize=["slot_mapping", "counts", "page_size"])
def rope_and_cache_kernel(
    out, q, k, v, keys, values, key_scales, value_scales, new_keys, cos_sin, q_gain, k_gain, key_mean, slot_mapping,
    counts, eps, q_stride, k_stride, v_stride, n_q, n_kv, dim, stored, half, page_size,
    keeps_rows: constexpr, normed: constexpr, centred: constexpr, pairs: constexpr,
    kv_block: constexpr, together: constexpr, n_heads: constexpr, block: constexpr,
):  # fmt: skip
    """One program per token and `n_heads` heads of one kind: query heads first, then key heads, then value heads."""
    let_next_start()
    wait_for_previous()
    token, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * n_heads
    if token >= tl.load(counts):
        return
    heads, cols = first + tl.arange(0, n_heads), tl.arange(0, block)
    inside = cols < dim
    row_cos_sin = cos_sin + token * 2 * half
    if first < n_q:
        turned = rotated(
            q + token * q_stride + heads * dim, q_gain, eps, row_cos_sin, half, cols, dim, normed, pairs, inside
        )
        if together:
            turned = hadamard(turned, n_heads, block, together)
        at = ((token * n_q + heads) * dim)[:, None] + cols[None, :]
        tl.store(out + at, narrow(turned, out.dtype.element_ty), mask=inside[None, :])
        return
    slot = tl.load(slot_mapping + token).to(tl.int64)
    kv_head = (heads - n_q) % n_kv
    offset = ((slot // page_size * n_kv + kv_head) * page_size + slot % page_size) * stored
    if first < n_q + n_kv:
        turned = rotated(
            k + token * k_stride + kv_head * dim, k_gain, eps, row_cos_sin, half, cols, dim, normed, pairs, inside
        )
        if centred:
            turned -= tl.load((key_mean + kv_head * dim)[:, None] + cols[None, :], mask=inside[None, :], other=0.0)
        if together:
            turned = hadamard(turned, n_heads, block, together)
        store_heads(keys, key_scales, offset, turned, dim, cols, inside, kv_block, block)
        if keeps_rows:
            row_at = ((token * n_kv + kv_head) * dim)[:, None] + cols[None, :]
            tl.store(new_keys + row_at, narrow(turned, new_keys.dtype.element_ty), mask=inside[None, :])
    else:
        at = (v + token * v_stride + kv_head * dim)[:, None] + cols[None, :]
        copied = tl.load(at, mask=inside[None, :], other=0.0).to(tl.float32)
        if together:
            copied = hadamard(copied, n_heads, block, together)
        store_heads(values, value_scales, offset, copied, dim, cols, inside, kv_block, block)


def rope_and_cache(
    q: torch.Tensor,
    kv: Sequence[torch.Tensor],
    rotation: Rotation,
    store: torch.Tensor,
    slot_mapping: torch.Tensor,
    counts: torch.Tensor,
    dtype: torch.dtype,
    new_keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write the keys and values of live tokens, if any, to `store` (see `cuda_kv`); the queries for `attention`.

    The keys go to the rows of `new_keys` too.
    """
    (k, v), cos_sin, norms = [*kv, q, q][:2], rotation.cos_sin.data.values, rotation.norms
    q_gain, k_gain, eps = (norms.query.data, norms.key.data, norms.eps) if norms else (cos_sin, cos_sin, 0.0)
    together = cuda_kv.rotation_of(store)
    mean = rotation.key_mean.data if rotation.key_mean and together else None
    _, _, n_kv, page_size, stored = store.shape
    dim = cuda_kv.head_dim(store)
    n_tokens, n_q = q.shape[0], q.shape[1] // dim
    n_heads = gcd(n_q, n_kv, HEADS) if n_tokens > FEW else 1
    out = q.new_empty((n_tokens, q.shape[1]), dtype=dtype)
    rope_and_cache_kernel[(n_tokens, (n_q + len(kv) * n_kv) // n_heads)](
        out, q, k, v, store[0], store[-1], *cuda_kv.scales(store), out if new_keys is None else new_keys,
        cos_sin, q_gain, k_gain, cos_sin if mean is None else mean, slot_mapping, counts, eps,
        q.stride(0), k.stride(0), v.stride(0), n_q, n_kv, dim, stored, cos_sin.shape[1] // 2, page_size,
        new_keys is not None, norms is not None, mean is not None, rotation.style == "pairs",
        cuda_kv.block_of(store), together, n_heads, triton.next_power_of_2(dim),
        num_warps=1 if n_heads == 1 else 2, enable_fp_fusion=False,  # a code is a rounded product, rounded again
        **OVERLAP,
    )  # fmt: skip
    return out
