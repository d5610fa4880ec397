"""The kernels of paged attention with an online softmax.

The query heads that share a key head are rows of one tile, so that each page is read once for all of them. Keys are
taken in tiles at absolute multiples of a fixed size, and a tile that a row does not see leaves the row exactly as it
was. `exact_kernel` therefore gives the same bits however a prompt is cut into steps and whatever other sequences are in
the step. `prefill_kernel` and `decode_kernel` are faster and change results in their last bits.
"""

import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.cuda.kernels.common.dependent import let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rope_kv import hadamard
from tahr.backends.cuda.kernels.common.rows import narrow, tanh

LOG2_E = constexpr(1.4426950408889634)


@triton.jit
def load_heads(
    numbers, scales, offset, dim, inside, dtype: constexpr, kv_block: constexpr, run: constexpr,
    block_d: constexpr,
):  # fmt: skip
    """The heads that begin at `offset`, zeros outside; with a `kv_block`, codes followed by the scales of so many each.

    Heads begin at multiples of `run` codes. Triton 3.6 would fetch more of them at once, wherever they begin.
    """
    cols = tl.arange(0, block_d)
    at, mask = numbers + offset[:, None] + cols[None, :], inside[:, None] & (cols[None, :] < dim)
    if kv_block:
        n: constexpr = offset.shape[0]
        n_blocks: constexpr = block_d // kv_block
        codes, blocks = tl.load(tl.max_contiguous(at, (1, run)), mask=mask, other=0), tl.arange(0, n_blocks)
        place = scales + ((offset + dim) // 2)[:, None] + blocks[None, :]
        real = inside[:, None] & (blocks[None, :] < dim // kv_block)
        scale = tl.load(tl.max_contiguous(place, (1, (run + 1) // 2)), mask=real, other=0.0)
        exact = tl.reshape(codes.to(tl.float32), (n, n_blocks, kv_block)) * scale.to(tl.float32)[:, :, None]
        found = tl.reshape(exact, (n, block_d))
    else:
        found = tl.load(at, mask=mask, other=0.0)
    return found.to(dtype)


@triton.jit
def places(pages, first, lowest, end, kv_head, n_kv, page_size, stored, block_n: constexpr):
    """Where the heads of a tile of keys begin, of those within lowest..end.

    A loop asks for those of its next tile: loads that waited for these numbers could not be begun ahead.
    """
    at = first + tl.arange(0, block_n)
    page = tl.load(pages + at // page_size, mask=(at >= lowest) & (at < end), other=0).to(tl.int64)
    return ((page * n_kv + kv_head) * page_size + at % page_size) * stored


@triton.jit
def attend(
    q, total, weight, best, keys, values, key_scales, value_scales, pages, kv_head, n_kv, page_size, dim, stored,
    positions, lowest, begin, end, scale, window, softcap, slope, has_slope: constexpr, has_cap: constexpr,
    causal: constexpr, chunked: constexpr, dtype: constexpr, kv_block: constexpr, run: constexpr,
    block_n: constexpr, block_d: constexpr,
):  # fmt: skip
    """Attend q [rows, block_d] at `positions` to keys begin..end: the weighted sum, its weight, its maximum.

    These go on from what is given. Keys before `lowest` are seen by no row and not read: their pages may be another
    sequence's by now.
    """
    coming = places(pages, begin, lowest, end, kv_head, n_kv, page_size, stored, block_n)
    for first in range(begin, end, block_n):
        at, offset = first + tl.arange(0, block_n), coming
        coming = places(pages, first + block_n, lowest, end, kv_head, n_kv, page_size, stored, block_n)
        inside = (at >= lowest) & (at < end)
        k = load_heads(keys, key_scales, offset, dim, inside, dtype, kv_block, run, block_d)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if has_cap:
            scores = softcap * tanh(scores / softcap)
        if has_slope:
            scores += slope[:, None] * (at[None, :] - positions[:, None])
        seen = (at[None, :] < end) & ((window == 0) | (at[None, :] > positions[:, None] - window))
        if chunked:
            seen = seen & (at[None, :] // window == positions[:, None] // window)
        if causal:
            seen = seen & (at[None, :] <= positions[:, None])
        else:
            seen = seen & ((window == 0) | (at[None, :] < positions[:, None] + window))
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        # A row that has seen nothing yet has no maximum; zero in its place keeps infinities out of the exponents.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p, decay = tl.exp(scores - base[:, None]), tl.exp(best - base)
        v = load_heads(values, value_scales, offset, dim, inside, dtype, kv_block, run, block_d)
        total = total * decay[:, None] + tl.dot(p.to(dtype), v, input_precision="ieee")
        weight = weight * decay + tl.sum(p, 1)
        best = higher
    return total, weight, best


@triton.jit
def per_head(numbers, heads, given: constexpr):
    """The number of each head; zeros where there are none."""
    if given:
        return tl.load(numbers + heads)
    return tl.zeros_like(heads).to(tl.float32)


@triton.jit
def begun(sink, has_sink, block_d: constexpr):
    """A softmax that has seen nothing, or a sink: a score without a value."""
    best = tl.where(has_sink, sink, float("-inf"))
    weight = tl.where(has_sink, tl.full(sink.shape, 1.0, tl.float32), 0.0)
    return tl.zeros((sink.shape[0], block_d), tl.float32), weight, best


@triton.jit
def average(total, weight, together: constexpr):
    """The weighted sums [n, width] over their weights; rows that saw nothing (they fill a tile up) stay zero.

    Values that were rotated before they were stored, `together` numbers at a time, are rotated back.
    """
    means = total / tl.where(weight == 0, 1.0, weight)[:, None]
    if together:
        means = hadamard(means, means.shape[0], means.shape[1], together)
    return means


@triton.jit
def first_tile(seq, query_start, group, block_m: constexpr, least: constexpr):
    """Where the tiles of a sequence begin: behind enough for all before it, without adding up their lengths.

    That is one for each of them beside their whole ones; where shorter sequences than `least` tokens need none, no more
    than so long ones there can be.
    """
    start = tl.load(query_start + seq)
    return start * group // block_m + (tl.minimum(seq, start // least) if least else seq)


@triton.jit
def sequence_of(tile, query_start, n_seqs, group, block_m: constexpr, least: constexpr):
    """Which sequence a tile of query rows belongs to, and the tile's number within it.

    Some tiles belong to nobody: their number is beyond the sequence's rows.
    """
    low, high = n_seqs * 0, n_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if first_tile(middle, query_start, group, block_m, least) <= tile:
            low = middle
        else:
            high = middle
    return low, tile - first_tile(low, query_start, group, block_m, least)


# Compiled once for every size of pages and tables: another compilation might add in another order.
@triton.jit(
    do_not_specialize=[
        *("page_table", "query_start", "positions", "seq_lens", "counts", "window", "table_stride", "page_size")
    ]
)
def exact_kernel(
    out, q, keys, values, key_scales, value_scales, page_table, query_start, positions, seq_lens, counts, scale, window,
    softcap, sinks, slopes, table_stride, n_q, n_kv, dim, stored, page_size, group, has_sinks: constexpr,
    has_slopes: constexpr, has_cap: constexpr, causal: constexpr, chunked: constexpr, dtype: constexpr,
    kv_block: constexpr, together: constexpr, block_m: constexpr, block_n: constexpr, block_d: constexpr,
):  # fmt: skip
    """One program per tile of a sequence's query rows and key head."""
    kv_head, n_seqs = tl.program_id(1), tl.load(counts + 2)
    if n_seqs == 0:
        return
    seq, tile = sequence_of(tl.program_id(0), query_start, n_seqs, group, block_m, 0)
    start = tl.load(query_start + seq)
    n_tokens = tl.load(query_start + seq + 1) - start
    rows = tile * block_m + tl.arange(0, block_m)
    if tile * block_m >= n_tokens * group:
        return
    alive, cols = rows < n_tokens * group, tl.arange(0, block_d)
    token, head = (start + rows // group).to(tl.int64), kv_head * group + rows % group
    offset = (token * n_q + head)[:, None] * dim + cols[None, :]
    mask = alive[:, None] & (cols[None, :] < dim)
    position = tl.load(positions + token, mask=alive, other=-1)
    end = tl.max(position, 0) + 1 if causal else tl.load(seq_lens + seq)
    earliest = tl.load(positions + start + tile * block_m // group)
    lowest = tl.where(window > 0, tl.maximum(earliest - window + 1, 0), 0)
    total, weight, best = begun(per_head(sinks, head, has_sinks), has_sinks, block_d)
    total, weight, _ = attend(
        tl.load(q + offset, mask=mask, other=0.0).to(dtype), total, weight, best, keys, values,
        key_scales, value_scales, page_table + seq.to(tl.int64) * table_stride, kv_head, n_kv, page_size, dim, stored,
        position, lowest, lowest // block_n * block_n, end, scale, window, softcap,
        per_head(slopes, head, has_slopes), has_slopes,
        has_cap, causal, chunked, dtype, kv_block, 1, block_n, block_d,
    )  # fmt: skip
    tl.store(out + offset, narrow(average(total, weight, together), out.dtype.element_ty), mask=mask)


@triton.jit
def paged_tile(keys, values, offset, first, lowest, end, masked: constexpr, block_n: constexpr, block_d: constexpr):
    """Keys and values of a tile from its places; masked, zeros outside lowest..end."""
    at, place = first + tl.arange(0, block_n), offset[:, None] + tl.arange(0, block_d)[None, :]
    if masked:
        inside = ((at >= lowest) & (at < end))[:, None]
        return tl.load(keys + place, mask=inside, other=0.0), tl.load(values + place, mask=inside, other=0.0)
    return tl.load(keys + place), tl.load(values + place)


@triton.jit
def row_tile(numbers, row, stride, kv_head, block_n: constexpr, block_d: constexpr):
    """Keys or values of a tile from the rows of the step, `row` the first of them."""
    at = tl.arange(0, block_n)[:, None] * stride + tl.arange(0, block_d)[None, :]
    return tl.load(numbers + row.to(tl.int64) * stride + kv_head * block_d + at)


@triton.jit
def attend_tile(
    q, k, v, positions, lowest, end, first, total, weight, best, scale, window, softcap, slope,
    has_slopes: constexpr, masked: constexpr, has_window: constexpr, has_cap: constexpr,
    dtype: constexpr, block_n: constexpr,
):  # fmt: skip
    """One tile of keys added to the running softmax, in powers of two. Unmasked, every row sees every key of it."""
    at = first + tl.arange(0, block_n)
    scores = tl.dot(q, tl.trans(k.to(dtype)))
    unit = scale * LOG2_E  # unit of scores, which stay as they are where nothing else happens to them
    if has_cap:
        scores = softcap * LOG2_E * tanh(scores * (scale / softcap))
    elif has_slopes:
        scores = scores * unit
    if has_slopes:
        scores += (slope * LOG2_E)[:, None] * (at[None, :] - positions[:, None])
    if has_cap | has_slopes:
        unit = 1.0
    if masked:
        seen = (at[None, :] <= positions[:, None]) & ((at >= lowest) & (at < end))[None, :]
        if has_window:
            seen = seen & (at[None, :] > positions[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(best, tl.max(scores, 1) * unit)
    p, decay = tl.exp2(scores * unit - higher[:, None]), tl.exp2(best - higher)
    weight = weight * decay + tl.sum(p, 1)
    total = tl.dot(p.to(dtype), v.to(dtype), total * decay[:, None])
    return total, weight, higher


@triton.jit
def begun_finite(sinks, heads, has_sinks: constexpr, block_m: constexpr, block_d: constexpr):
    """`begun` in powers of two, with a finite minimum: a row that has seen nothing yet decays by 1 instead of becoming
    NaN, and what it added is zero."""
    best = tl.full((block_m,), -1e30, tl.float32)
    weight = tl.zeros((block_m,), tl.float32)
    if has_sinks:
        best = per_head(sinks, heads, True) * LOG2_E
        weight += 1.0
    return tl.zeros((block_m, block_d), tl.float32), weight, best


@triton.jit
def attend_pages(
    q, total, weight, best, keys, values, pages, kv_head, n_kv, page_size, stored, positions, lowest, end,
    n_between, between, begin, n, scale, window, softcap, slope, has_slopes: constexpr, masked: constexpr,
    has_window: constexpr, has_cap: constexpr, dtype: constexpr, block_n: constexpr, block_d: constexpr,
):  # fmt: skip
    """Tiles of keys from their pages: `n_between` from `between` on, then n from `begin` on."""
    coming = tl.where(n_between > 0, between, begin)
    offset = places(pages, coming, lowest, end, kv_head, n_kv, page_size, stored, block_n)
    for i in range(n_between + n):
        first, found = coming, offset
        coming = tl.where(i + 1 < n_between, first + block_n, begin + (i + 1 - n_between) * block_n)
        offset = places(pages, coming, lowest, end, kv_head, n_kv, page_size, stored, block_n)
        k, v = paged_tile(keys, values, found, first, lowest, end, masked, block_n, block_d)
        total, weight, best = attend_tile(
            q, k, v, positions, lowest, end, first, total, weight, best, scale, window, softcap, slope,
            has_slopes, masked, has_window, has_cap, dtype, block_n,
        )  # fmt: skip
    return total, weight, best


@triton.jit
def attend_rows(
    q, total, weight, best, new_keys, new_values, row, key_stride, value_stride, kv_head, positions, lowest, end,
    begin, stop, scale, window, softcap, slope, has_slopes: constexpr, has_window: constexpr,
    has_cap: constexpr, dtype: constexpr, block_n: constexpr, block_d: constexpr,
):  # fmt: skip
    """Tiles of the keys begin..stop, which every row sees, from the rows of the step; key 0 would be that at `row`."""
    for first in range(begin, stop, block_n):
        k = row_tile(new_keys, row + first, key_stride, kv_head, block_n, block_d)
        v = row_tile(new_values, row + first, value_stride, kv_head, block_n, block_d)
        total, weight, best = attend_tile(
            q, k, v, positions, lowest, end, first, total, weight, best, scale, window, softcap, slope,
            has_slopes, False, has_window, has_cap, dtype, block_n,
        )  # fmt: skip
    return total, weight, best


@triton.jit
def clear_padding(out, n_live, n_rows, kv_head, n_q: constexpr, group: constexpr, block_d: constexpr):
    """The rows behind the live ones become zero, shared by the programs of a key head."""
    first, n_programs, cols = n_live + tl.program_id(0), tl.num_programs(0), tl.arange(0, block_d)
    for i in range(tl.cdiv(n_rows - first, n_programs) * group):
        row = (first + i // group * n_programs).to(tl.int64)
        at = out + (row * n_q + kv_head * group + i % group) * block_d
        tl.store(at + cols, tl.zeros((block_d,), out.dtype.element_ty))


@triton.jit
def is_anothers(n_tokens, skips_decodes: constexpr, least_prompt: constexpr):
    """Whether another kernel has a sequence: one that decodes, or has `least_prompt` tokens (0: no such kernel)."""
    return (skips_decodes & (n_tokens == 1)) | ((least_prompt > 0) & (n_tokens >= least_prompt))


PREFILL_COUNTS = ["page_table", "query_start", "positions", "counts", "window", "table_stride", "n_rows"]


@triton.jit(do_not_specialize=PREFILL_COUNTS)
def prefill_kernel(
    out, q, keys, values, new_keys, new_values, page_table, query_start, positions, counts, scale, window, softcap,
    sinks, slopes, table_stride, n_rows, key_stride, value_stride, n_q: constexpr, n_kv: constexpr,
    stored: constexpr, page_size: constexpr, group: constexpr, has_sinks: constexpr,
    has_slopes: constexpr, skips_decodes: constexpr, least_prompt: constexpr, has_rows: constexpr,
    has_window: constexpr, has_cap: constexpr, dtype: constexpr, block_m: constexpr,
    block_n: constexpr, block_d: constexpr,
):  # fmt: skip
    """One program per tile of a sequence's query rows and key head, the tiles with most keys first.

    Whole tiles of keys that are new in this step are read from its rows, which takes a third less time than to find
    them in their pages.
    """
    let_next_start()
    wait_for_previous()
    kv_head, n_seqs = tl.program_id(1), tl.load(counts + 2)
    clear_padding(out, tl.load(counts), n_rows, kv_head, n_q, group, block_d)
    if n_seqs == 0:
        return
    seq, tile = sequence_of(tl.num_programs(0) - 1 - tl.program_id(0), query_start, n_seqs, group, block_m, 0)
    start = tl.load(query_start + seq)
    n_tokens = tl.load(query_start + seq + 1) - start
    if (tile * block_m >= n_tokens * group) | is_anothers(n_tokens, skips_decodes, least_prompt):
        return
    rows, cols = tile * block_m + tl.arange(0, block_m), tl.arange(0, block_d)
    alive = rows < n_tokens * group
    token = (start + rows // group).to(tl.int64)
    offset = (token * n_q + kv_head * group + rows % group)[:, None] * block_d + cols[None, :]
    queries = tl.load(q + offset, mask=alive[:, None], other=0.0).to(dtype)
    position = tl.load(positions + token, mask=alive, other=0)
    end = tl.max(position, 0) + 1
    earliest = tl.load(positions + start + tile * block_m // group)
    pages = page_table + seq.to(tl.int64) * table_stride
    lowest = tl.where(window > 0, tl.maximum(earliest - window + 1, 0), 0) if has_window else 0
    heads = kv_head * group + rows % group
    slope = per_head(slopes, heads, has_slopes)
    total, weight, best = begun_finite(sinks, heads, has_sinks, block_m, block_d)
    n_whole = 0 if has_window else (earliest + 1) // block_n * block_n  # keys that every row sees
    # Keys are new from here on, and whole tiles of them come from rows; one tile between may be partly new.
    n_old = tl.load(positions + start) if has_rows else n_whole
    paged_end = tl.minimum(n_old // block_n * block_n, n_whole)
    rows_begin = tl.minimum(tl.cdiv(n_old, block_n) * block_n, n_whole)
    total, weight, best = attend_pages(
        queries, total, weight, best, keys, values, pages, kv_head, n_kv, page_size, stored, position, lowest, end,
        0, 0, 0, paged_end // block_n, scale, window, softcap, slope, has_slopes, False, has_window, has_cap,
        dtype, block_n, block_d,
    )  # fmt: skip
    if has_rows:
        total, weight, best = attend_rows(
            queries, total, weight, best, new_keys, new_values, start - n_old, key_stride, value_stride, kv_head,
            position, lowest, end, rows_begin, n_whole, scale, window, softcap, slope, has_slopes, has_window, has_cap,
            dtype, block_n, block_d,
        )  # fmt: skip
    last = tl.maximum(n_whole, lowest // block_n * block_n)
    total, weight, _ = attend_pages(
        queries, total, weight, best, keys, values, pages, kv_head, n_kv, page_size, stored, position, lowest, end,
        (rows_begin - paged_end) // block_n, paged_end, last, tl.cdiv(end - last, block_n), scale, window, softcap,
        slope, has_slopes, True, has_window, has_cap, dtype, block_n, block_d,
    )  # fmt: skip
    tl.store(out + offset, narrow(average(total, weight, 0), out.dtype.element_ty), mask=alive[:, None])
