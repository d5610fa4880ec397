"""Decode attention with head norms, rope and the cache write in the same kernel.

The new key and value of a sequence never come back from the cache: the program that has the last of its keys begins
its softmax with them. All other keys were written in earlier steps, as were the page tables and lengths of this one,
so programs may ask for them while the kernels that make the queries still run.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.api import Rotation
from tahr.backends.cuda.kernels.attention import DECODE_WARPS, LEAST_ROWS, AttentionCall, block_d, combine, cut_keys
from tahr.backends.cuda.kernels.common.attention_kernels import average, begun, per_head, places
from tahr.backends.cuda.kernels.common.decode_kernels import DECODE_COUNTS, shares
from tahr.backends.cuda.kernels.common.dependent import OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rope_kv import rotated
from tahr.backends.cuda.kernels.common.rows import narrow, tanh
from tahr.backends.cuda.kernels.linear import TYPES


@triton.jit
def capped(scores, softcap, has_cap: constexpr):
    return softcap * tanh(scores / softcap) if has_cap else scores


@triton.jit
def load_tile(keys, values, offset, first, lowest, end, cols, dim: constexpr, block_n: constexpr):
    """Keys and values from `first` on, whose heads begin at `offset`, as they are stored; zeros outside lowest..end."""
    at, place = first + tl.arange(0, block_n), offset[:, None] + cols[None, :]
    mask = ((at >= lowest) & (at < end))[:, None] & (cols[None, :] < dim)
    return tl.load(keys + place, mask=mask, other=0.0), tl.load(values + place, mask=mask, other=0.0)


@triton.jit
def attend_tile(
    q, k, v, first, lowest, end, newest, total, weight, best, scale, softcap, slope, has_slopes: constexpr,
    has_cap: constexpr, dtype: constexpr, block_n: constexpr,
):  # fmt: skip
    """A tile of keys and values added to the running softmax of queries at position `newest`."""
    at = first + tl.arange(0, block_n)
    scores = capped(tl.dot(q, tl.trans(k.to(dtype)), input_precision="ieee") * scale, softcap, has_cap)
    if has_slopes:
        scores += slope[:, None] * (at - newest)[None, :]
    scores = tl.where(((at >= lowest) & (at < end))[None, :], scores, float("-inf"))
    higher = tl.maximum(best, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # finite for rows that have seen nothing yet
    p, decay = tl.exp(scores - base[:, None]), tl.exp(best - base)
    total = total * decay[:, None] + tl.dot(p.to(dtype), v.to(dtype), input_precision="ieee")
    return total, weight * decay + tl.sum(p, 1), higher


@triton.jit
def attend_rest(
    q, total, weight, best, keys, values, pages, coming, begin, lowest, end, newest, kv_head, cols, scale, softcap,
    slope, has_slopes: constexpr, has_cap: constexpr, dtype: constexpr, n_kv: constexpr, dim: constexpr,
    page_size: constexpr, block_n: constexpr,
):  # fmt: skip
    """All tiles from `begin` on, whose heads begin at `coming`."""
    for first in range(begin, end, block_n):
        k, v = load_tile(keys, values, coming, first, lowest, end, cols, dim, block_n)
        coming = places(pages, first + block_n, lowest, end, kv_head, n_kv, page_size, dim, block_n)
        total, weight, best = attend_tile(
            q, k, v, first, lowest, end, newest, total, weight, best, scale, softcap, slope, has_slopes, has_cap, dtype,
            block_n,
        )  # fmt: skip
    return total, weight, best


@triton.jit
def store_newest(
    k, v, keys, values, gain, eps, cos_sin, half: constexpr, slot, kv_head, cols, inside, normed: constexpr,
    pairs: constexpr, n_kv: constexpr, dim: constexpr, page_size: constexpr, block_d: constexpr,
):  # fmt: skip
    """Write the new key and value of one head to its slot; both as they are stored."""
    heads = rotated(k + tl.arange(0, 1), gain, eps, cos_sin, half, cols, dim, normed, pairs, inside)
    key = tl.reshape(narrow(heads, keys.dtype.element_ty), (block_d,))
    value = narrow(tl.load(v + cols, mask=inside, other=0.0).to(tl.float32), values.dtype.element_ty)
    place = ((slot // page_size * n_kv + kv_head) * page_size + slot % page_size) * dim + cols
    tl.store(keys + place, key, mask=inside)
    tl.store(values + place, value, mask=inside)
    return key, value


@triton.jit
def attend_newest(q, key, value, weight, best, scale, softcap, has_cap: constexpr):
    """The running softmax of queries that have seen at most a sink, with one key and value added."""
    score = tl.sum(q.to(tl.float32) * key.to(tl.float32)[None, :], 1)
    score = capped(score * scale, softcap, has_cap)
    higher = tl.maximum(best, score)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    p = tl.exp(score - base)
    return p[:, None] * value.to(tl.float32)[None, :], weight * tl.exp(best - base) + p, higher


@triton.jit
def store_part(sums, weights, maxima, total, weight, best, parts, cols, live, dim: constexpr):
    """Store a split's sums, for the kernel that adds splits up."""
    mask = live[:, None] & (cols < dim)[None, :]
    tl.store(sums + parts[:, None] * dim + cols[None, :], total, mask=mask)
    tl.store(weights + parts, weight, mask=live)
    tl.store(maxima + parts, best, mask=live)


@triton.jit(do_not_specialize=[*DECODE_COUNTS, "slot_mapping"])
def rope_decode_kernel(
    out, sums, weights, maxima, q, k, v, keys, values, cos_sin, q_gain, k_gain, page_table, slot_mapping, order,
    seq_lens, counts, eps, scale, window, softcap, sinks, slopes, table_stride, q_stride, k_stride, v_stride, n_splits,
    n_q: constexpr, n_kv: constexpr, dim: constexpr, half: constexpr, page_size: constexpr,
    group: constexpr, has_sinks: constexpr, has_slopes: constexpr, has_cap: constexpr,
    normed: constexpr, pairs: constexpr, dtype: constexpr, least: constexpr,
    block_m: constexpr, block_n: constexpr, block_d: constexpr,
):  # fmt: skip
    """One program per sequence, key head and split of its keys; a lone split writes the result itself.

    Row s of q, k and v is the newest token of sequence s; rows of padding become zero. A program asks for its first
    tile before it waits for the kernels before it.
    """
    let_next_start()
    kv_head, seq, split = tl.program_id(0), tl.load(order + tl.program_id(1)), tl.program_id(2)
    alive = seq < tl.load(counts + 2)
    length = tl.where(alive, tl.load(seq_lens + seq), 0)
    lowest = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    floor, share, n_live = shares(length, lowest, n_splits, block_n, least)
    if split >= n_live:
        return
    token, cols = seq.to(tl.int64), tl.arange(0, block_d)
    begin = (floor + split * share) * block_n
    end = tl.minimum(begin + share * block_n, length - 1)
    pages = page_table + token * table_stride
    first = places(pages, begin, lowest, end, kv_head, n_kv, page_size, dim, block_n)
    coming = places(pages, begin + block_n, lowest, end, kv_head, n_kv, page_size, dim, block_n)
    own_k, own_v = load_tile(keys, values, first, begin, lowest, end, cols, dim, block_n)
    wait_for_previous()
    rows, inside = tl.arange(0, block_m), cols < dim
    head = kv_head * group + tl.minimum(rows, group - 1)  # rows that fill the tile up repeat the last head
    turns, at = cos_sin + token * 2 * half, q + token * q_stride + head * dim
    queries = rotated(at, q_gain, eps, turns, half, cols, dim, normed, pairs, inside)
    queries = narrow(queries, out.dtype.element_ty).to(dtype)
    slope = per_head(slopes, head, has_slopes)
    total, weight, best = begun(per_head(sinks, head, has_sinks), has_sinks & (split == 0), block_d)
    if alive & (split == n_live - 1):
        key, value = store_newest(
            k + token * k_stride + kv_head * dim, v + token * v_stride + kv_head * dim, keys, values, k_gain, eps,
            turns, half, tl.load(slot_mapping + token).to(tl.int64), kv_head, cols, inside,
            normed, pairs, n_kv, dim, page_size, block_d,
        )  # fmt: skip
        total, weight, best = attend_newest(queries, key, value, weight, best, scale, softcap, has_cap)
    total, weight, best = attend_tile(
        queries, own_k, own_v, begin, lowest, end, length - 1, total, weight, best, scale, softcap, slope,
        has_slopes, has_cap, dtype, block_n,
    )  # fmt: skip
    total, weight, best = attend_rest(
        queries, total, weight, best, keys, values, pages, coming, begin + block_n, lowest, end, length - 1, kv_head,
        cols, scale, softcap, slope, has_slopes, has_cap, dtype, n_kv, dim, page_size, block_n,
    )  # fmt: skip
    heads, live = token * n_q + kv_head * group + rows, rows < group
    if n_live == 1:
        means, mask = narrow(average(total, weight, 0), out.dtype.element_ty), live[:, None] & inside[None, :]
        tl.store(out + heads[:, None] * dim + cols[None, :], means, mask=mask)
    else:
        store_part(sums, weights, maxima, total, weight, best, heads * n_splits + split, cols, live, dim)


def rope_decode(
    call: AttentionCall, kv: Sequence[torch.Tensor], rotation: Rotation, slots: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Rope, cache write and attention of a step in which every row is one sequence's newest token, or padding."""
    (k, v), cos_sin, norms, q, spec = kv, rotation.cos_sin.data.values, rotation.norms, call.q, call.spec
    q_gain, k_gain, eps = (norms.query.data, norms.key.data, norms.eps) if norms else (cos_sin, cos_sin, 0.0)
    store, pages, inputs, n_seqs = call.store, call.pages, call.inputs, len(q)
    out, cut = q.new_empty((n_seqs, q.shape[1]), dtype=dtype), cut_keys(call, n_seqs)
    rope_decode_kernel[(call.n_kv, n_seqs, cut.n_splits)](
        out, *cut.parts, q, k, v, store[0], store[1], cos_sin, q_gain, k_gain, pages, slots, inputs.order,
        call.seq_lens, inputs.counts, eps, spec.scale, spec.window, spec.softcap, *call.per_head, pages.stride(0),
        q.stride(0), k.stride(0), v.stride(0), cut.n_splits, call.n_q, call.n_kv, call.dim, cos_sin.shape[1] // 2,
        call.page_size, call.group, *call.has_per_head, spec.softcap > 0, norms is not None, rotation.style == "pairs",
        TYPES[call.dtype], cut.kind.least, max(LEAST_ROWS, triton.next_power_of_2(call.group)), cut.keys,
        block_d(call.dim), num_warps=DECODE_WARPS, num_stages=cut.kind.n_stages, **OVERLAP,
    )  # fmt: skip
    combine(call, cut, out, mixed=False)
    return out
