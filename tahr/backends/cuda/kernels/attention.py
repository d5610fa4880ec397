"""Paged attention with an online softmax: query tiles for any step, split keys where every sequence decodes.

The query heads that share a key head are rows of one tile, so that each page is read once for all of them. Keys are
taken in tiles at absolute multiples of a fixed size, and a tile that a row does not see leaves it exactly as it was: by
query tiles alone, neither the cut of a prompt into steps nor the other sequences change a result. Splits change it in
its last bits, since there are as many as the card has room for.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from tahr.backends.cuda import kv as cuda_kv
from tahr.backends.cuda.kernels.linear import TYPES
from tahr.backends.cuda.kernels.rows import narrow, tanh

ROWS = 64  # rows (tokens times heads of a group) of a query tile
KEYS = 32  # keys of a tile
LEAST_ROWS = 16  # the smallest tile matrix units take
MOST_SPLITS = 32
N_PROGRAMS = 264  # two per multiprocessor of a large card: splitting further only adds work


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores are made: their factor, how far back they reach (0: everywhere), their soft limit (0: none)."""

    scale: float
    window: int
    softcap: float


@triton.jit
def load_heads(numbers, scales, place, dim, cols, mask, dtype: tl.constexpr, kv_block: tl.constexpr):
    """The heads that begin at `place`; with a `kv_block`, codes followed by the scales of so many of them each."""
    found = tl.load(numbers + place[:, None] + cols[None, :], mask=mask, other=0)
    if kv_block:
        scale = tl.load(scales + ((place + dim) // 2)[:, None] + cols[None, :] // kv_block, mask=mask, other=0.0)
        found = found.to(tl.float32) * scale.to(tl.float32)
    return found.to(dtype)


@triton.jit
def walk(
    q, keys, values, key_scales, value_scales, pages, kv_head, n_kv, page_size, dim, stored, positions, lowest,
    begin, end, scale, window, softcap, has_cap: tl.constexpr, dtype: tl.constexpr, kv_block: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """Attend q [block_m, block_d] at `positions` to keys begin..end: the weighted sum, its weight, its maximum.

    Keys before `lowest` are seen by no row and not read: their pages may be another sequence's by now.
    """
    cols = tl.arange(0, block_d)
    best = tl.full((block_m,), float("-inf"), tl.float32)
    weight = tl.zeros((block_m,), tl.float32)
    total = tl.zeros((block_m, block_d), tl.float32)
    for first in range(begin, end, block_n):
        at = first + tl.arange(0, block_n)
        inside = (at >= lowest) & (at < end)
        page = tl.load(pages + at // page_size, mask=inside, other=0).to(tl.int64)
        place = ((page * n_kv + kv_head) * page_size + at % page_size) * stored
        mask = inside[:, None] & (cols[None, :] < dim)
        k = load_heads(keys, key_scales, place, dim, cols, mask, dtype, kv_block)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if has_cap:
            scores = softcap * tanh(scores / softcap)
        seen = (at[None, :] <= positions[:, None]) & (at[None, :] < end)
        seen = seen & ((window == 0) | (at[None, :] > positions[:, None] - window))
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        # A row that has seen nothing yet has no maximum; zero in its place keeps infinities out of the exponents.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p, fade = tl.exp(scores - base[:, None]), tl.exp(best - base)
        v = load_heads(values, value_scales, place, dim, cols, mask, dtype, kv_block)
        total = total * fade[:, None] + tl.dot(p.to(dtype), v, input_precision="ieee")
        weight = weight * fade + tl.sum(p, 1)
        best = higher
    return total, weight, best


@triton.jit
def average(total, weight):
    """The weighted sums over their weights; rows that saw nothing (they fill a tile up) stay zero."""
    return total / tl.where(weight == 0, 1.0, weight)[:, None]


# Compiled once for every size of pages and tables: another compilation might add in another order.
@triton.jit(do_not_specialize=["page_table", "starts", "positions", "counts", "window", "table_stride", "page_size"])
def tiles_kernel(
    out, q, keys, values, key_scales, value_scales, page_table, starts, positions, counts, scale, window, softcap,
    table_stride, n_q, n_kv, dim, stored, page_size, group, has_cap: tl.constexpr, dtype: tl.constexpr,
    kv_block: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One program per sequence, key head and tile of its queries."""
    seq, tile, kv_head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if seq >= tl.load(counts + 2):
        return
    start = tl.load(starts + seq)
    n_tokens = tl.load(starts + seq + 1) - start
    rows = tile * block_m + tl.arange(0, block_m)
    if tile * block_m >= n_tokens * group:
        return
    alive, cols = rows < n_tokens * group, tl.arange(0, block_d)
    token, head = (start + rows // group).to(tl.int64), kv_head * group + rows % group
    spot = (token * n_q + head)[:, None] * dim + cols[None, :]
    mask = alive[:, None] & (cols[None, :] < dim)
    where = tl.load(positions + token, mask=alive, other=-1)
    end = tl.max(where, 0) + 1
    earliest = tl.load(positions + start + tile * block_m // group)
    lowest = tl.where(window > 0, tl.maximum(earliest - window + 1, 0), 0)
    total, weight, _ = walk(
        tl.load(q + spot, mask=mask, other=0.0).to(dtype), keys, values, key_scales, value_scales,
        page_table + seq.to(tl.int64) * table_stride, kv_head, n_kv, page_size, dim, stored, where,
        lowest, lowest // block_n * block_n, end, scale, window, softcap,
        has_cap, dtype, kv_block, block_m, block_n, block_d,
    )  # fmt: skip
    tl.store(out + spot, narrow(average(total, weight), out.dtype.element_ty), mask=mask)


@triton.jit
def decode_kernel(
    out, sums, weights, maxima, q, keys, values, key_scales, value_scales, page_table, starts, lengths, counts,
    scale, window, softcap, table_stride, n_q, n_kv, dim, stored, page_size, group, has_cap: tl.constexpr,
    dtype: tl.constexpr, kv_block: tl.constexpr, n_splits: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One program per sequence, key head and split of its keys; a lone split finishes the result itself."""
    seq, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    alive = seq < tl.load(counts + 2)
    length = tl.where(alive, tl.load(lengths + seq), 0)
    token = tl.where(alive, tl.load(starts + seq), seq).to(tl.int64)
    used = tl.where(alive, group, 0)
    rows, cols = tl.arange(0, block_m), tl.arange(0, block_d)
    heads = token * n_q + kv_head * group + rows
    spot = heads[:, None] * dim + cols[None, :]
    mask = (rows[:, None] < group) & (cols[None, :] < dim)
    lowest = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    floor = lowest // block_n
    share = tl.cdiv(tl.cdiv(length, block_n) - floor, n_splits)
    begin = (floor + split * share) * block_n
    total, weight, best = walk(
        tl.load(q + spot, mask=mask & (rows[:, None] < used), other=0.0).to(dtype), keys, values,
        key_scales, value_scales, page_table + seq.to(tl.int64) * table_stride, kv_head, n_kv, page_size, dim, stored,
        tl.zeros((block_m,), tl.int32) + length - 1, lowest, begin, tl.minimum(begin + share * block_n, length),
        scale, window, softcap, has_cap, dtype, kv_block, block_m, block_n, block_d,
    )  # fmt: skip
    if n_splits == 1:
        tl.store(out + spot, narrow(average(total, weight), out.dtype.element_ty), mask=mask)
    else:
        part = heads * n_splits + split
        tl.store(sums + part[:, None] * dim + cols[None, :], total, mask=mask)
        tl.store(weights + part, weight, mask=rows < group)
        tl.store(maxima + part, best, mask=rows < group)


@triton.jit
def join_kernel(out, sums, weights, maxima, dim, n_splits: tl.constexpr, block_d: tl.constexpr):
    """One program per query head: bring the splits to a common maximum and add them."""
    head = tl.program_id(0).to(tl.int64)
    parts, cols = head * n_splits + tl.arange(0, n_splits), tl.arange(0, block_d)
    maximum = tl.load(maxima + parts)
    best = tl.max(maximum, 0)
    fade = tl.exp(maximum - tl.where(best == float("-inf"), 0.0, best))
    weight = tl.sum(tl.load(weights + parts) * fade, 0)
    part = tl.load(sums + parts[:, None] * dim + cols[None, :], mask=cols[None, :] < dim, other=0.0)
    result = tl.sum(part * fade[:, None], 0) / tl.where(weight == 0, 1.0, weight)
    tl.store(out + head * dim + cols, narrow(result, out.dtype.element_ty), mask=cols < dim)


def attend_tiles(
    q: torch.Tensor,
    store: torch.Tensor,
    pages: torch.Tensor,
    inputs: Any,
    n_seqs: int,
    most_tokens: int,
    how: Scoring,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Attention of up to `n_seqs` sequences that advance by up to `most_tokens`; products of factors in `dtype`."""
    _, _, n_kv, page_size, stored = store.shape
    dim = cuda_kv.head_dim(store)
    n_q = q.shape[1] // dim
    group, out = n_q // n_kv, torch.zeros_like(q)  # rows that are padding stay zero
    tiles_kernel[(n_seqs, triton.cdiv(most_tokens * group, ROWS), n_kv)](
        out, q, store[0], store[1], *cuda_kv.scales(store), pages, inputs.query_start, inputs.positions, inputs.counts,
        how.scale, how.window, how.softcap, pages.stride(0), n_q, n_kv, dim, stored, page_size, group,
        how.softcap > 0, TYPES[dtype], cuda_kv.block_of(store), ROWS, KEYS, block_d(dim), num_warps=4,
    )  # fmt: skip
    return out


def attend_decode(
    q: torch.Tensor, store: torch.Tensor, pages: torch.Tensor, inputs: Any, how: Scoring, dtype: torch.dtype
) -> torch.Tensor:
    """Attention of a step in which every row of q is one sequence's newest token, or padding."""
    _, _, n_kv, page_size, stored = store.shape
    dim = cuda_kv.head_dim(store)
    n_seqs, n_q = q.shape[0], q.shape[1] // dim
    group, out = n_q // n_kv, torch.empty_like(q)
    n_splits = splits(n_seqs * n_kv, pages.shape[1] * page_size)
    sums = q.new_empty((n_seqs * n_q, n_splits, dim), dtype=torch.float32)
    weights, maxima = (q.new_empty((n_seqs * n_q, n_splits), dtype=torch.float32) for _ in range(2))
    decode_kernel[(n_seqs, n_kv, n_splits)](
        out, sums, weights, maxima, q, store[0], store[1], *cuda_kv.scales(store), pages, inputs.query_start,
        inputs.seq_lens, inputs.counts, how.scale, how.window, how.softcap, pages.stride(0), n_q, n_kv, dim,
        stored, page_size, group, how.softcap > 0, TYPES[dtype], cuda_kv.block_of(store), n_splits,
        max(LEAST_ROWS, triton.next_power_of_2(group)), KEYS, block_d(dim), num_warps=4,
    )  # fmt: skip
    if n_splits > 1:
        join_kernel[(n_seqs * n_q,)](out, sums, weights, maxima, dim, n_splits, block_d(dim), num_warps=1)
    return out


def product_type(math: torch.dtype, stored: torch.dtype) -> torch.dtype:
    """What queries, keys and values are multiplied in: the type of the store where rows are rounded anyway."""
    return math if math == torch.float32 or stored == torch.int8 else stored


def block_d(dim: int) -> int:
    """Columns of a tile that holds a head."""
    size: int = max(LEAST_ROWS, triton.next_power_of_2(dim))
    return size


def splits(n_pairs: int, n_keys: int) -> int:
    """How many programs share the keys of one (sequence, key head) pair: a power of two that fills the card."""
    wanted = min(N_PROGRAMS // max(1, n_pairs), -(-n_keys // KEYS), MOST_SPLITS)
    return 1 << max(0, wanted.bit_length() - 1)
