"""Paged attention of sequences with one query each: their keys shared out over programs, whose sums are added up."""

import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.cuda.kernels.common.attention_kernels import LOG2_E, attend, attend_pages, average, begun, per_head
from tahr.backends.cuda.kernels.common.dependent import let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rows import narrow


@triton.jit
def shares(length, lowest, n_splits, block_n: constexpr, least: constexpr):
    """Which tile of keys is the first, how many tiles a split has, and how many splits have some.

    Splits are about as long as each other; with several, each has `least` tiles, but for the last.
    """
    floor = lowest // block_n
    n_tiles = tl.cdiv(length, block_n) - floor
    share = tl.cdiv(n_tiles, tl.maximum(tl.minimum(n_tiles // least, n_splits), 1))
    return floor, share, tl.maximum(tl.cdiv(n_tiles, tl.maximum(share, 1)), 1)


@triton.jit
def attend_whole(
    q, total, weight, best, keys, values, pages, kv_head, n_kv, page_size, stored, positions, lowest, begin, end,
    scale, softcap, slope, has_slopes: constexpr, has_cap: constexpr, dtype: constexpr, block_n: constexpr,
    block_d: constexpr,
):  # fmt: skip
    """Keys begin..end of queries that see all of them from `lowest` on: whole tiles first, which need no mask."""
    whole = tl.cdiv(tl.maximum(lowest, begin), block_n) * block_n
    rest = tl.maximum(end // block_n * block_n, whole)
    total, weight, best = attend_pages(
        q, total, weight, best, keys, values, pages, kv_head, n_kv, page_size, stored, positions, lowest, end,
        0, 0, whole, (rest - whole) // block_n, scale, 0, softcap, slope, has_slopes, False, False, has_cap,
        dtype, block_n, block_d,
    )  # fmt: skip
    return attend_pages(
        q, total, weight, best, keys, values, pages, kv_head, n_kv, page_size, stored, positions, lowest, end,
        (whole - begin) // block_n, begin, rest, tl.cdiv(end - rest, block_n), scale, 0, softcap, slope, has_slopes,
        True, False, has_cap, dtype, block_n, block_d,
    )  # fmt: skip


DECODE_COUNTS = ["page_table", "order", "query_start", "seq_lens", "counts", "window", "table_stride", "n_splits"]


@triton.jit(do_not_specialize=DECODE_COUNTS)
def decode_kernel(
    out, sums, weights, maxima, q, keys, values, key_scales, value_scales, page_table, order, query_start, seq_lens,
    counts, scale, window, softcap, sinks, slopes, table_stride, n_splits, n_q: constexpr, n_kv: constexpr,
    dim: constexpr, stored: constexpr, page_size: constexpr, group: constexpr, has_sinks: constexpr,
    has_slopes: constexpr, mixed: constexpr, has_cap: constexpr, dtype: constexpr, plain: constexpr,
    kv_block: constexpr, together: constexpr, least: constexpr,
    block_m: constexpr, block_n: constexpr, block_d: constexpr,
):  # fmt: skip
    """One program per sequence with one query, key head and split of its keys; a lone split writes the result itself.

    In a `mixed` step the other sequences are left to the prefill kernel; else rows of padding become zero. Of a `plain`
    store every tile of keys is read as it is.
    """
    let_next_start()
    kv_head, seq, split = tl.program_id(0), tl.load(order + tl.program_id(1)), tl.program_id(2)
    alive = seq < tl.load(counts + 2)
    token = tl.where(alive, tl.load(query_start + seq), seq)
    if mixed:  # noqa: SIM102  (decided when the kernel is compiled)
        if (alive == 0) | (tl.load(query_start + seq + 1) - token != 1):
            # One program does so even if nobody decodes: the next kernel takes it that all before have finished.
            if kv_head + tl.program_id(1) + split == 0:
                wait_for_previous()
            return
    length = tl.where(alive, tl.load(seq_lens + seq), 0)
    lowest = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    floor, share, n_live = shares(length, lowest, n_splits, block_n, least)
    if split >= n_live:
        return
    wait_for_previous()  # late enough: the step's inputs were there before its first kernel
    used = tl.where(alive, group, 0)
    rows, cols = tl.arange(0, block_m), tl.arange(0, block_d)
    head = kv_head * group + rows
    real_head = kv_head * group + tl.minimum(rows, group - 1)  # rows that fill the tile up have none of their own
    offset = (token.to(tl.int64) * n_q + head)[:, None] * dim + cols[None, :]
    mask = (rows[:, None] < group) & (cols[None, :] < dim)
    begin, pages = (floor + split * share) * block_n, page_table + seq.to(tl.int64) * table_stride
    end, newest = tl.minimum(begin + share * block_n, length), tl.zeros((block_m,), tl.int32) + length - 1
    queries = tl.load(q + offset, mask=mask & (rows[:, None] < used), other=0.0).to(dtype)
    slope = per_head(slopes, real_head, has_slopes)
    total, weight, best = begun(per_head(sinks, real_head, has_sinks), has_sinks & (split == 0), block_d)
    if plain:
        best = tl.maximum(best * LOG2_E, -1e30)  # finite, in powers of two
        total, weight, best = attend_whole(
            queries, total, weight, best, keys, values, pages, kv_head, n_kv, page_size, stored, newest, lowest, begin,
            end, scale, softcap, slope, has_slopes, has_cap, dtype, block_n, block_d,
        )  # fmt: skip
        best = best / LOG2_E
    else:
        total, weight, best = attend(
            queries, total, weight, best, keys, values, key_scales, value_scales, pages, kv_head, n_kv, page_size, dim,
            stored, newest, lowest, begin, end, scale, window, softcap, slope, has_slopes, has_cap, True, False, dtype,
            kv_block, stored & -stored, block_n, block_d,
        )  # fmt: skip
    if n_live == 1:
        tl.store(out + offset, narrow(average(total, weight, together), out.dtype.element_ty), mask=mask)
    else:
        part = (seq.to(tl.int64) * n_q + head) * n_splits + split
        tl.store(sums + part[:, None] * dim + cols[None, :], total, mask=mask)
        tl.store(weights + part, weight, mask=rows < group)
        tl.store(maxima + part, best, mask=rows < group)


@triton.jit(do_not_specialize=["query_start", "seq_lens", "counts", "window", "n_splits"])
def combine_kernel(
    out, sums, weights, maxima, query_start, seq_lens, counts, window, n_splits, n_q, dim, n_heads: constexpr,
    mixed: constexpr, together: constexpr, least: constexpr, block_n: constexpr, most: constexpr,
    at_once: constexpr, block_h: constexpr, block_d: constexpr,
):  # fmt: skip
    """One program per sequence and `n_heads` query heads: bring the splits, `most` at most, to a common maximum and add
    them up.

    The sums of `at_once` splits are asked for together.
    """
    let_next_start()
    seq, rows = tl.program_id(0), tl.arange(0, block_h)
    alive = seq < tl.load(counts + 2)
    token = tl.load(query_start + seq).to(tl.int64)
    length = tl.load(seq_lens + seq)
    if mixed:
        alive = alive & (tl.load(query_start + seq + 1) - token == 1)
    wait_for_previous()  # late enough: the step's inputs were there before its first kernel
    lowest = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    _, _, n_live = shares(length, lowest, n_splits, block_n, least)
    if (alive == 0) | (n_live == 1):
        return
    index, cols, used = tl.arange(0, most), tl.arange(0, block_d), rows < n_heads
    head, inside = tl.program_id(1) * n_heads + rows, used[:, None] & (cols[None, :] < dim)
    first, live = (seq.to(tl.int64) * n_q + head) * n_splits, used[:, None] & (index < n_live)[None, :]
    maximum = tl.load(maxima + first[:, None] + index[None, :], mask=live, other=float("-inf"))
    given = tl.load(weights + first[:, None] + index[None, :], mask=live, other=0.0)
    best = tl.max(maximum, 1)
    best = tl.where(best == float("-inf"), 0.0, best)
    weight = tl.sum(given * tl.exp(maximum - best[:, None]), 1)
    result = tl.zeros((block_h, block_d), tl.float32)
    for begin in range(0, n_live, at_once):
        for i in tl.static_range(at_once):  # ordered: sums over another dimension would change places of lanes
            at = begin + i
            decay = tl.exp(tl.load(maxima + first + at, mask=used & (at < n_live), other=float("-inf")) - best)
            place = (first + at)[:, None] * dim + cols[None, :]
            result += decay[:, None] * tl.load(sums + place, mask=inside & (at < n_live), other=0.0)
    place = (token * n_q + head)[:, None] * dim + cols[None, :]
    tl.store(out + place, narrow(average(result, weight, together), out.dtype.element_ty), mask=inside)
