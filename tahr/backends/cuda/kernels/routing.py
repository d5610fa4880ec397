"""Which experts the rows of a step go to, and the tiles of assignments that share an expert, in a kernel each."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tahr.backends.api import Routing
from tahr.backends.cuda.kernels.dependent import OVERLAP, let_next_start, wait_for_previous


class TileLayout(NamedTuple):
    """Assignments sorted by expert, cut into tiles that share one."""

    order: torch.Tensor
    experts: torch.Tensor  # of tiles; as many as there are experts: the tile is empty
    begins: torch.Tensor
    ends: torch.Tensor


MOST_LAID_OUT = 4096  # assignments that one program lays out; torch's kernels are faster for more
CELLS = 8192  # of a table of assignments by experts that it looks at at a time


@triton.jit
def choose_kernel(
    shares, experts, scores, bias, score_stride, n_experts, n_active: tl.constexpr, sigmoid: tl.constexpr,
    has_bias: tl.constexpr, block: tl.constexpr,
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


@triton.jit(do_not_specialize=["n", "n_tiles"])
def lay_out_kernel(
    order, tile_experts, tile_begins, tile_ends, chosen, n, n_tiles, n_experts, tile_size: tl.constexpr,
    chunk: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program: count the assignments of every expert, then write them in its order and cut them into tiles."""
    let_next_start()
    wait_for_previous()
    expert = tl.arange(0, block)
    counts = tl.zeros((block,), tl.int32)
    for first in range(0, n, chunk):
        at = first + tl.arange(0, chunk)
        some = tl.load(chosen + at, mask=at < n, other=-1)
        counts += tl.sum((some[:, None] == expert[None, :]).to(tl.int32), 0)
    ends = tl.cumsum(counts, 0)
    n_own = (counts + tile_size - 1) // tile_size
    last_tile = tl.cumsum(n_own, 0)
    for tile in range(0, n_tiles, chunk):
        at = tile + tl.arange(0, chunk)
        of = tl.sum(((last_tile[None, :] <= at[:, None]) & (expert < n_experts)[None, :]).to(tl.int32), 1)
        mine = of[:, None] == expert[None, :]
        begin = tl.sum(tl.where(mine, (ends - counts - (last_tile - n_own) * tile_size)[None, :], 0), 1)
        tl.store(tile_experts + at, of, mask=at < n_tiles)
        tl.store(tile_begins + at, begin + at * tile_size, mask=at < n_tiles)
        tl.store(tile_ends + at, tl.sum(tl.where(mine, ends[None, :], 0), 1), mask=at < n_tiles)
    free = ends - counts  # where each expert's next assignment goes
    for first in range(0, n, chunk):
        at = first + tl.arange(0, chunk)
        some = tl.load(chosen + at, mask=at < n, other=-1)
        mine = (some[:, None] == expert[None, :]).to(tl.int32)
        place = tl.sum(mine * (free[None, :] + tl.cumsum(mine, 0) - 1), 1)
        tl.store(order + place, at, mask=at < n)
        free += tl.sum(mine, 0)


def lay_out(chosen: torch.Tensor, n_experts: int, n_tiles: int, tile_size: int) -> TileLayout:
    """A moderate number of assignments in tiles."""
    tiles = TileLayout(torch.empty_like(chosen), *(chosen.new_empty(n_tiles) for _ in range(3)))
    block = triton.next_power_of_2(n_experts)
    lay_out_kernel[(1,)](
        *tiles, chosen, len(chosen), n_tiles, n_experts, tile_size, max(16, CELLS // block), block,
        num_warps=8, **OVERLAP,
    )  # fmt: skip
    return tiles
