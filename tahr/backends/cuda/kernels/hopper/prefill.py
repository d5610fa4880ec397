"""Attention of prompts, the fastest way a Hopper card has.

A producer warp has the copy engine fetch tiles of keys and values: those of earlier steps from their pages, new ones
from the rows of the step. Two warp groups have half the query rows of a tile each, and multiply the values of one tile
while they find the weights of the next.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language import constexpr

from tahr.backends.cuda.kernels.common.attention_kernels import sequence_of
from tahr.backends.cuda.kernels.common.dependent import let_next_start, wait_for_previous

# the second name ends with Triton 3.8
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared

LOG2_E = constexpr(1.4426950408889634)
HALF = constexpr(64)  # query rows of a warp group
BLOCK_M, N_STAGES = 128, 2  # measured on an H200


@gluon.jit
def fetch(
    keys, values, key_pages, value_pages, ring, pages, kv_head, n_kv, start, n_old, n_tokens, n_tiles,
    page_size: constexpr, dim: constexpr, block_n: constexpr, n_stages: constexpr,
):  # fmt: skip
    """The producer: tiles of keys and values into the ring, as its places become free.

    The last tile that has old keys comes from pages too: the new keys behind them were written before this kernel.
    """
    key_ring, value_ring, key_ready, value_ready, key_free, value_free = ring
    sides = (
        (keys, key_pages, key_ring, key_ready, key_free),
        (values, value_pages, value_ring, value_ready, value_free),
    )
    n_paged = (n_old + block_n - 1) // block_n
    for j in range(n_paged):
        at, phase = j % n_stages, (j // n_stages) & 1
        heads = ()
        for i in gl.static_range(block_n // page_size):
            page = gl.load(pages + j * (block_n // page_size) + i)
            heads = heads + ((page * n_kv + kv_head) * page_size,)  # type: ignore[assignment]  # noqa: RUF005
        for side in gl.static_range(2):
            new, paged, places, ready, free = sides[side]
            mbarrier.wait(free.index(at), phase ^ 1)
            mbarrier.expect(ready.index(at), new.block_type.nbytes)
            for i in gl.static_range(block_n // page_size):
                into = places.index(at).slice(i * page_size, page_size)
                load_tile(paged, [heads[i], 0], ready.index(at), into)
    for j in range(n_paged, n_tiles):
        at, phase = j % n_stages, (j // n_stages) & 1
        row = start + gl.minimum(j * block_n - n_old, n_tokens - block_n)  # rows behind the sequence are another's
        for side in gl.static_range(2):
            new, paged, places, ready, free = sides[side]
            mbarrier.wait(free.index(at), phase ^ 1)
            mbarrier.expect(ready.index(at), new.block_type.nbytes)
            load_tile(new, [row, kv_head * dim], ready.index(at), places.index(at))


@gluon.jit
def weigh(scores, best, weight, positions, j, length, unit, masked: constexpr):
    """The weights of tile j of keys, what sums so far decay by, and the new maximum and weight, in powers of two."""
    if masked:
        block_n: constexpr = scores.shape[1]
        at = gl.minimum(j * block_n, length - block_n) + gl.arange(0, block_n, gl.SliceLayout(0, scores.type.layout))
        seen = (at[None, :] <= positions[:, None]) & (at >= j * block_n)[None, :]
        scores = gl.where(seen, scores, float("-inf"))
    higher = gl.maximum(best, gl.max(scores, 1) * unit)
    p, decay = gl.exp2(scores * unit - higher[:, None]), gl.exp2(best - higher)
    return p, decay, higher, weight * decay + gl.sum(p, 1)


@gluon.jit
def advance(
    j, total, p, best, weight, queries, ring, positions, length, unit, masked: constexpr, n_stages: constexpr,
    score_layout: constexpr,
):  # fmt: skip
    """The weights of tile j of keys, while the values of the tile before are added with theirs, which are p."""
    key_ring, value_ring, key_ready, value_ready, key_free, value_free = ring
    at, before = j % n_stages, (j - 1) % n_stages
    block_n: constexpr = key_ring.shape[1]
    zeros = gl.zeros([HALF, block_n], gl.float32, score_layout)
    mbarrier.wait(key_ready.index(at), (j // n_stages) & 1)
    scores = warpgroup_mma(queries, key_ring.index(at).permute((1, 0)), zeros, use_acc=False, is_async=True)
    mbarrier.wait(value_ready.index(before), ((j - 1) // n_stages) & 1)
    total = warpgroup_mma(p, value_ring.index(before), total, is_async=True)
    scores = warpgroup_mma_wait(1, deps=(scores,))
    mbarrier.arrive(key_free.index(at), count=1)
    weights, decay, best, weight = weigh(scores, best, weight, positions, j, length, unit, masked)
    total = warpgroup_mma_wait(0, deps=(total,))
    mbarrier.arrive(value_free.index(before), count=1)
    total = total * gl.convert_layout(decay, gl.SliceLayout(1, total.type.layout))[:, None]
    return total, gl.convert_layout(weights.to(p.dtype), p.type.layout), best, weight


@gluon.jit
def attend_half(
    half: constexpr, out, q, query_tile, ring, start, kv_head, tile, n_old, n_tokens, n_whole, n_tiles, unit,
    n_q: constexpr, group: constexpr, dim: constexpr, block_m: constexpr, block_n: constexpr,
    n_stages: constexpr,
):  # fmt: skip
    """A warp group: its rows of the tile against `n_tiles` tiles of keys, the first `n_whole` of which they all see."""
    score_layout: constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block_n, 16])
    out_layout: constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, dim, 16])
    row_layout: constexpr = gl.BlockedLayout([1, 8], [256 // dim, dim // 8], [4, 1], [1, 0])
    dtype: constexpr = q.dtype.element_ty
    key_ring, value_ring, key_ready, value_ready, key_free, _ = ring
    rows = tile * block_m + half * HALF + gl.arange(0, HALF, gl.SliceLayout(1, row_layout))
    cols = gl.arange(0, dim, gl.SliceLayout(0, row_layout))
    token = (start + rows // group).to(gl.int64)
    offset = (token * n_q + kv_head * group + rows % group)[:, None] * dim + cols[None, :]
    alive = rows[:, None] < n_tokens * group
    queries = query_tile.index(half)
    queries.store(gl.load(q + offset, mask=alive, other=0.0))
    fence_async_shared()
    length = n_old + n_tokens
    positions = n_old + (tile * block_m + half * HALF + gl.arange(0, HALF, gl.SliceLayout(1, score_layout))) // group
    total = gl.zeros([HALF, dim], gl.float32, out_layout)
    best = gl.full([HALF], -1e30, gl.float32, gl.SliceLayout(1, score_layout))  # finite: its differences are numbers
    weight = gl.full([HALF], 0.0, gl.float32, gl.SliceLayout(1, score_layout))
    mbarrier.wait(key_ready.index(0), 0)
    zeros = gl.zeros([HALF, block_n], gl.float32, score_layout)
    scores = warpgroup_mma(queries, key_ring.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(key_free.index(0), count=1)
    p, _, best, weight = weigh(scores, best, weight, positions, 0, length, unit, True)
    p = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, out_layout, 2))
    for j in range(1, n_whole):
        total, p, best, weight = advance(
            j, total, p, best, weight, queries, ring, positions, length, unit, False, n_stages, score_layout
        )
    for j in range(gl.maximum(n_whole, 1), n_tiles):
        total, p, best, weight = advance(
            j, total, p, best, weight, queries, ring, positions, length, unit, True, n_stages, score_layout
        )
    last = n_tiles - 1
    mbarrier.wait(value_ready.index(last % n_stages), (last // n_stages) & 1)
    total = warpgroup_mma(p, value_ring.index(last % n_stages), total, is_async=True)
    total = warpgroup_mma_wait(0, deps=(total,))
    total = total / gl.convert_layout(weight, gl.SliceLayout(1, out_layout))[:, None]
    gl.store(out + offset, gl.convert_layout(total.to(dtype), row_layout), mask=alive)


@gluon.jit
def barriers(n_arrivals: constexpr, n_stages: constexpr):
    """A barrier per place of a ring."""
    made = gl.allocate_shared_memory(gl.int64, [n_stages, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(n_stages):
        mbarrier.init(made.index(i), count=n_arrivals)
    return made


@gluon.jit(do_not_specialize=["page_table", "query_start", "positions", "counts", "table_stride"])
def prompt_kernel(
    out, q, keys, values, key_pages, value_pages, page_table, query_start, positions, counts, scale, table_stride,
    n_q: constexpr, n_kv: constexpr, group: constexpr, page_size: constexpr, dim: constexpr,
    block_m: constexpr, block_n: constexpr, n_stages: constexpr,
):  # fmt: skip
    """One program per tile of a sequence's query rows and key head, the tiles with most keys first.

    `prefill_kernel` has the sequences with fewer than `block_n` tokens. Keys and values are descriptors of the step's
    rows, and of the pages.
    """
    let_next_start()
    wait_for_previous()  # waits even without work: the next kernel takes it that all before have finished
    kv_head, n_seqs = gl.program_id(1), gl.load(counts + 2)
    if n_seqs == 0:
        return
    seq, tile = sequence_of(gl.num_programs(0) - 1 - gl.program_id(0), query_start, n_seqs, group, block_m, block_n)
    start = gl.load(query_start + seq)
    n_tokens = gl.load(query_start + seq + 1) - start
    if (tile * block_m >= n_tokens * group) | (n_tokens < block_n):
        return
    n_old, pages = gl.load(positions + start), page_table + seq.to(gl.int64) * table_stride
    end = n_old + gl.minimum((tile * block_m + block_m - 1) // group + 1, n_tokens)  # end of the keys that any row sees
    n_tiles, n_whole = (end + block_n - 1) // block_n, (n_old + tile * block_m // group + 1) // block_n
    dtype: constexpr = q.dtype.element_ty
    layout: constexpr = gl.NVMMASharedLayout.get_default_for([64, dim], dtype)
    query_tile = gl.allocate_shared_memory(dtype, [2, 64, dim], layout)
    key_ring = gl.allocate_shared_memory(dtype, [n_stages, block_n, dim], keys.layout)
    value_ring = gl.allocate_shared_memory(dtype, [n_stages, block_n, dim], values.layout)
    key_ready, value_ready = barriers(1, n_stages), barriers(1, n_stages)
    key_free, value_free = barriers(2, n_stages), barriers(2, n_stages)
    fence_async_shared()
    ring = (key_ring, value_ring, key_ready, value_ready, key_free, value_free)
    unit = scale * LOG2_E
    gl.warp_specialize([
        (attend_half, (0, out, q, query_tile, ring, start, kv_head, tile, n_old, n_tokens, n_whole, n_tiles,
                       unit, n_q, group, dim, block_m, block_n, n_stages)),
        (attend_half, (1, out, q, query_tile, ring, start, kv_head, tile, n_old, n_tokens, n_whole, n_tiles,
                       unit, n_q, group, dim, block_m, block_n, n_stages)),
        (fetch, (keys, values, key_pages, value_pages, ring, pages, kv_head, n_kv, start, n_old, n_tokens, n_tiles,
                 page_size, dim, block_n, n_stages)),
    ], [4, 1], [240, 24])  # fmt: skip


def descriptor(rows: torch.Tensor, dim: int, n_rows: int) -> TensorDescriptor:
    """Rows as the copy engine takes them, `n_rows` of one head at a time."""
    kind = gl.bfloat16 if rows.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([n_rows, dim], kind)
    return TensorDescriptor.from_tensor(rows, [n_rows, dim], layout)
