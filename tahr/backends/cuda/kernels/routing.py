"""Which experts the rows of a step go to, and the tiles of assignments that share an expert."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.api import Routing
from tahr.backends.cuda.kernels.common.dependent import OVERLAP, let_next_start, wait_for_previous


class TileLayout(NamedTuple):
    """Assignments sorted by expert, cut into tiles that share one."""

    order: torch.Tensor
    experts: torch.Tensor  # expert of each tile; the number of experts marks an empty tile
    begins: torch.Tensor
    ends: torch.Tensor


RANKED = 256  # assignments of a program that only counts
CELLS = 8192  # cells of a table of assignments by experts that a program looks at


@triton.jit
def choose_kernel(
    shares, experts, scores, bias, score_stride, n_experts, n_active: constexpr, sigmoid: constexpr,
    has_bias: constexpr, block: constexpr,
):  # fmt: skip
    """The best experts of one row, best first, and what they count; ties go to the lower index."""
    let_next_start()
    wait_for_previous()
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    inside = cols < n_experts
    score = tl.load(scores + row * score_stride + cols, mask=inside, other=float("-inf")).to(tl.float32)
    if sigmoid:
        p = tl.sigmoid(score)
    else:
        p = tl.exp(score - tl.max(score, 0))
        p = p / tl.sum(p, 0)
    ranks = p + tl.load(bias + cols, mask=inside, other=0.0) if has_bias else p
    ranks = tl.where(inside, ranks, float("-inf"))
    for i in tl.static_range(n_active):
        first = tl.min(tl.where(ranks == tl.max(ranks, 0), cols, block), 0)
        best = tl.minimum(first, n_experts - 1)  # scores that are no numbers choose an expert too
        tl.store(shares + row * n_active + i, tl.sum(tl.where(cols == best, p, 0.0), 0))
        tl.store(experts + row * n_active + i, best)
        ranks = tl.where(cols == best, float("-inf"), ranks)


def choose_best(scores: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """The shares and the experts of every row [n_rows, n_active], best first."""
    n_rows, n_experts = scores.shape
    shares = scores.new_empty((n_rows, routing.n_active), dtype=torch.float32)
    experts = scores.new_empty((n_rows, routing.n_active), dtype=torch.int32)
    block = triton.next_power_of_2(n_experts)
    choose_kernel[(n_rows,)](
        shares, experts, scores, scores if routing.bias is None else routing.bias.data, scores.stride(0), n_experts,
        routing.n_active, routing.sigmoid, routing.bias is not None, block, num_warps=1 if block <= 256 else 4,
        **OVERLAP,
    )  # fmt: skip
    return shares, experts


@triton.jit(do_not_specialize=["n"])
def rank_kernel(ranks, counts, chosen, n, block: constexpr):
    """The place of each assignment among those of its expert, in any order: no row depends on its neighbours."""
    let_next_start()
    wait_for_previous()
    at = tl.program_id(0) * block + tl.arange(0, block)
    expert = tl.load(chosen + at, mask=at < n, other=0)
    rank = tl.atomic_add(counts + expert, 1, mask=at < n, sem="relaxed")
    tl.store(ranks + at, rank, mask=at < n)


@triton.jit(do_not_specialize=["n", "n_tiles"])
def lay_out_kernel(
    order, tile_experts, tile_begins, tile_ends, chosen, ranks, counts, n, n_tiles, n_experts,
    tile_size: constexpr, chunk: constexpr, block: constexpr,
):  # fmt: skip
    """Write `chunk` assignments to their places, and say of as many tiles what they hold."""
    let_next_start()
    wait_for_previous()
    at, expert = tl.program_id(0) * chunk + tl.arange(0, chunk), tl.arange(0, block)
    count = tl.load(counts + expert, mask=expert < n_experts, other=0)
    ends, n_own = tl.cumsum(count, 0), (count + tile_size - 1) // tile_size
    last_tile = tl.cumsum(n_own, 0)
    of = tl.sum(((last_tile[None, :] <= at[:, None]) & (expert < n_experts)[None, :]).to(tl.int32), 1)
    mine = of[:, None] == expert[None, :]
    begin = tl.sum(tl.where(mine, (ends - count - (last_tile - n_own) * tile_size)[None, :], 0), 1)
    tl.store(tile_experts + at, of, mask=at < n_tiles)
    tl.store(tile_begins + at, begin + at * tile_size, mask=at < n_tiles)
    tl.store(tile_ends + at, tl.sum(tl.where(mine, ends[None, :], 0), 1), mask=at < n_tiles)
    some = tl.load(chosen + at, mask=at < n, other=-1)
    first = tl.sum(tl.where(some[:, None] == expert[None, :], (ends - count)[None, :], 0), 1)
    tl.store(order + first + tl.load(ranks + at, mask=at < n, other=0), at, mask=at < n)


def lay_out(chosen: torch.Tensor, n_experts: int, n_tiles: int, tile_size: int) -> TileLayout:
    """Assignments in tiles."""
    chosen, n = chosen.to(torch.int32), len(chosen)
    tiles = TileLayout(torch.empty_like(chosen), *(chosen.new_empty(n_tiles) for _ in range(3)))
    ranks, counts = torch.empty_like(chosen), chosen.new_zeros(n_experts)
    rank_kernel[(triton.cdiv(n, RANKED),)](ranks, counts, chosen, n, RANKED, **OVERLAP)
    block = triton.next_power_of_2(n_experts)
    chunk = max(16, CELLS // block)
    lay_out_kernel[(triton.cdiv(max(n, n_tiles), chunk),)](
        *tiles, chosen, ranks, counts, n, n_tiles, n_experts, tile_size, chunk, block, **OVERLAP
    )
    return tiles
