"""Low-rank adapters: rows grouped by adapter meet both of its factors, in tiles of `LORA_TILE` rows.

What a kernel must know of a tile lies where its number says. A record is int32 numbers: the slot, from ROWS on the rows
(-1: none), from SCALES on the bits of what these are scaled by. `factors` holds four int64 numbers for every tile of
each linear: the addresses of a and b, the rank, the bits of the scale. So a kernel waits for memory twice before it
multiplies, and most of its time is such waiting. A row's sums never depend on the other rows of its tile.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tahr.backends.api import LORA_TILE
from tahr.backends.cuda.kernels.dependent import OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.linear import TYPES
from tahr.backends.cuda.kernels.rows import narrow

ENTRY = 4  # int64 numbers for one tile of a linear
ROWS, SCALES, RECORD = 4, 4 + LORA_TILE, 4 + 2 * LORA_TILE  # int32 numbers, sixteen bytes apart
BLOCK_N = 256  # columns of the output that a program makes
SPLIT_COLS = 1024  # columns of x that one program of `shrink_kernel` takes at once
FEWEST_PROGRAMS = (
    8  # that share the tiles of a step: a grid is as large as the most tiles need, and mostly there are few
)
_entry, _tile, _record = tl.constexpr(ENTRY), tl.constexpr(LORA_TILE), tl.constexpr(RECORD)
_rows, _scales = tl.constexpr(ROWS), tl.constexpr(SCALES)


class TileTables(NamedTuple):
    """The tiles of one round on the device."""

    n: torch.Tensor  # how many, one number
    records: torch.Tensor  # [most, RECORD]
    factors: torch.Tensor  # [n_linears, most, ENTRY]: those from n on have rank 0


class LoraCall(NamedTuple):
    """The adapters of linears whose outputs are columns of one matrix."""

    tiles: TileTables
    first: int  # of the linears, which follow each other in `tiles.factors`
    most_tiles: int
    heights: Sequence[int]  # of the linears, at most three
    most_rank: int
    dtype: torch.dtype  # of the factors


@triton.jit
def shrink_tile(
    low, x, factors, records, tile, target, x_stride, n_cols, most_tiles, table_tiles, n_targets: tl.constexpr,
    most_rank: tl.constexpr, dtype: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """The rows of one tile over the columns of this program. Everything but x is asked for before x is there."""
    places, at = tl.arange(0, _tile), factors + (target * table_tiles + tile).to(tl.int64) * _entry
    record = records + tile * _record + places
    rows, rank = tl.load(record + _rows), tl.load(at + 2).to(tl.int32)
    scale = tl.load(record + _scales).to(tl.float32, bitcast=True)
    scale *= tl.load(at + 3).to(tl.int32).to(tl.float32, bitcast=True)
    first_rank = tl.program_id(1) // n_targets * _tile
    ranks, cols = first_rank + tl.arange(0, _tile), tl.program_id(2) * block_k + tl.arange(0, block_k)
    a_at = tl.load(at).to(tl.pointer_type(dtype)) + ranks.to(tl.int64)[:, None] * n_cols + cols[None, :]
    a = tl.load(a_at, mask=(cols[None, :] < n_cols) & (ranks[:, None] < rank), other=0.0)
    wait_for_previous()
    if first_rank < rank:
        x_at = x + rows.to(tl.int64)[:, None] * x_stride + cols[None, :]
        xs = tl.load(x_at, mask=(cols[None, :] < n_cols) & (rows[:, None] >= 0), other=0.0)
        total = tl.dot(xs.to(dtype), tl.trans(a), input_precision="ieee")
        place = ((tl.program_id(2) * most_tiles + tile) * _tile + places).to(tl.int64) * n_targets + target
        tl.store(low + place[:, None] * most_rank + ranks[None, :], total * scale[:, None], mask=rows[:, None] >= 0)


@triton.jit
def shrink_kernel(
    low, x, factors, records, n_tiles, x_stride, n_cols, most_tiles, table_tiles, n_targets: tl.constexpr,
    most_rank: tl.constexpr, dtype: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """low[split, place in its tile, target] = scale * a x over the columns of one split."""
    let_next_start()
    target, n = tl.program_id(1) % n_targets, tl.load(n_tiles)
    # The first tile does not wait for their number: one that is not there has rank 0.
    shrink_tile(low, x, factors, records, tl.program_id(0), target, x_stride, n_cols, most_tiles, table_tiles,
                n_targets, most_rank, dtype, block_k)  # fmt: skip
    for tile in range(tl.program_id(0) + tl.num_programs(0), n, tl.num_programs(0)):
        shrink_tile(low, x, factors, records, tile, target, x_stride, n_cols, most_tiles, table_tiles,
                    n_targets, most_rank, dtype, block_k)  # fmt: skip


@triton.jit
def expand_tile(
    out, low, factors, records, tile, target, begin, height, out_stride, most_tiles, table_tiles,
    n_targets: tl.constexpr, most_rank: tl.constexpr, n_splits: tl.constexpr, dtype: tl.constexpr,
    block_n: tl.constexpr,
):  # fmt: skip
    """The rows of one tile and the columns of this program; the splits are added in order."""
    places, at = tl.arange(0, _tile), factors + (target * table_tiles + tile).to(tl.int64) * _entry
    rows, rank = tl.load(records + tile * _record + _rows + places), tl.load(at + 2).to(tl.int32)
    outs = tl.program_id(1) * block_n + tl.arange(0, block_n)
    b_at = tl.load(at + 1).to(tl.pointer_type(dtype)) + outs.to(tl.int64)[:, None] * rank
    total = tl.zeros((_tile, block_n), tl.float32)
    for first_rank in tl.static_range(0, most_rank, _tile):
        ranks = first_rank + tl.arange(0, _tile)
        b = tl.load(b_at + ranks[None, :], mask=(outs[:, None] < height) & (ranks[None, :] < rank), other=0.0)
        wait_for_previous()
        if first_rank < rank:
            lows = tl.zeros((_tile, _tile), tl.float32)
            for split in tl.static_range(n_splits):
                place = ((split * most_tiles + tile) * _tile + places).to(tl.int64) * n_targets + target
                low_at = low + place[:, None] * most_rank + ranks[None, :]
                lows += tl.load(low_at, mask=(rows[:, None] >= 0) & (ranks[None, :] < rank), other=0.0)
            total += tl.dot(lows.to(dtype), tl.trans(b), input_precision="ieee")
    if rank > 0:
        out_at = out + rows.to(tl.int64)[:, None] * out_stride + (begin + outs)[None, :]
        mask = (rows[:, None] >= 0) & (outs[None, :] < height)
        total += tl.load(out_at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_at, narrow(total, out.dtype.element_ty), mask=mask)


@triton.jit
def expand_kernel(
    out, low, factors, records, n_tiles, out_stride, most_tiles, table_tiles, height0, height1, height2,
    n_targets: tl.constexpr, most_rank: tl.constexpr, n_splits: tl.constexpr, dtype: tl.constexpr,
    block_n: tl.constexpr,
):  # fmt: skip
    """out[row, columns of target] += b low."""
    let_next_start()
    target, n = tl.program_id(2), tl.load(n_tiles)
    height = tl.where(target == 0, height0, tl.where(target == 1, height1, height2))
    begin = tl.where(target == 0, 0, tl.where(target == 1, height0, height0 + height1))
    if tl.program_id(1) * block_n < height:
        expand_tile(out, low, factors, records, tl.program_id(0), target, begin, height, out_stride, most_tiles,
                    table_tiles, n_targets, most_rank, n_splits, dtype, block_n)  # fmt: skip
        for tile in range(tl.program_id(0) + tl.num_programs(0), n, tl.num_programs(0)):
            expand_tile(out, low, factors, records, tile, target, begin, height, out_stride, most_tiles,
                        table_tiles, n_targets, most_rank, n_splits, dtype, block_n)  # fmt: skip
    wait_for_previous()  # those without columns too: or a later kernel could overtake an earlier one


class ShrunkRows(NamedTuple):
    """Rows that have met the first factor of their adapters, to be added to columns of an output."""

    call: LoraCall
    low: torch.Tensor  # [n_splits, most_tiles, LORA_TILE, n_targets, most_rank]


def splits(n_cols: int) -> tuple[int, int]:
    """The columns of x that a program of `shrink_kernel` takes, and how many programs share them."""
    block_k = min(SPLIT_COLS, max(16, triton.next_power_of_2(n_cols)))
    return block_k, triton.cdiv(n_cols, block_k)


def room(x: torch.Tensor, call: LoraCall) -> ShrunkRows:
    """Memory for what `shrink` makes of x."""
    shape = (splits(x.shape[1])[1], call.most_tiles, LORA_TILE, len(call.heights), call.most_rank)
    return ShrunkRows(call, x.new_empty(shape, dtype=torch.float32))


def shrink(x: torch.Tensor, rows: ShrunkRows) -> None:
    """Let rows of x meet the first factors."""
    call, low = rows
    tiles, n_targets, n_cols = call.tiles, len(call.heights), x.shape[1]
    block_k, n_splits = splits(n_cols)
    shrink_kernel[(n_programs(call), n_targets * call.most_rank // LORA_TILE, n_splits)](
        low, x, tiles.factors[call.first :], tiles.records, tiles.n, x.stride(0), n_cols, call.most_tiles,
        len(tiles.records), n_targets, call.most_rank, TYPES[call.dtype], block_k, num_warps=4, **OVERLAP,
    )  # fmt: skip


def expand(out: torch.Tensor, rows: ShrunkRows) -> None:
    """Add to rows of `out` what the second factors make of shrunk ones."""
    call, low = rows
    tiles, heights, n_targets = call.tiles, [*call.heights, 0, 0][:3], len(call.heights)
    expand_kernel[(n_programs(call), triton.cdiv(max(heights), BLOCK_N), n_targets)](
        out, low, tiles.factors[call.first :], tiles.records, tiles.n, out.stride(0), call.most_tiles,
        len(tiles.records), *heights, n_targets, call.most_rank, len(low), TYPES[call.dtype], BLOCK_N, num_warps=4,
        **OVERLAP,
    )  # fmt: skip


def n_programs(call: LoraCall) -> int:
    return min(call.most_tiles, max(FEWEST_PROGRAMS, call.most_tiles // 4))
