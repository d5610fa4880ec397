"""Low-rank adapters: rows grouped by adapter meet both of its factors, in tiles of `LORA_TILE` rows.

What a kernel must know of a tile lies where its number says. A record is int32 numbers: the slot, the first row that
its adapter has behind each linear and how many (see `SpareRows`), from ROWS on the rows of the step (-1: none), from
SCALES on the bits of what these are scaled by. `factors` holds four int64 numbers for every tile of each linear: the
addresses of a and b, the rank, the bits of the scale. So a kernel waits for memory twice before it multiplies, and most
of its time is such waiting. A row's sums never depend on the other rows of its tile.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.api import LORA_TILE
from tahr.backends.cuda.kernels.common.card import shared_bytes
from tahr.backends.cuda.kernels.common.dependent import OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rows import narrow
from tahr.backends.cuda.kernels.linear import TYPES

ENTRY = 4  # int64 numbers for one tile of a linear
ROWS, SCALES, RECORD = 4, 4 + LORA_TILE, 4 + 2 * LORA_TILE  # int32 numbers, sixteen bytes apart
BLOCK_N = 256  # columns of the output that a program makes
MAX_TARGETS = 3  # linears whose adapters one kernel adds
SPLIT_COLS = 1024  # columns of x that one program of `shrink_kernel` takes at once
FEWEST_PROGRAMS = (
    8  # programs that share the tiles of a step: a grid is as large as the most tiles need, and mostly there are few
)
_entry, _tile, _record = constexpr(ENTRY), constexpr(LORA_TILE), constexpr(RECORD)
_rows, _scales = constexpr(ROWS), constexpr(SCALES)
_keep = constexpr("evict_last")  # sums that every linear reads stay in the cache while matrices pass through it


class TileTables(NamedTuple):
    """The tiles of one round on the device."""

    n: torch.Tensor  # number of tiles, one number
    records: torch.Tensor  # [most, RECORD]
    factors: torch.Tensor  # [n_linears, most, ENTRY]: those from n on have rank 0


class LoraCall(NamedTuple):
    """The adapters of linears whose outputs are columns of one matrix."""

    tiles: TileTables
    first: int  # first of the linears, which follow each other in `tiles.factors`
    most_tiles: int
    heights: Sequence[int]  # heights of the linears, at most MAX_TARGETS
    most_rank: int
    dtype: torch.dtype  # type of the factors


@triton.jit
def shrink_tile(
    low, x, factors, records, tile, target, x_stride, n_cols, most_tiles, table_tiles, n_targets: constexpr,
    most_rank: constexpr, dtype: constexpr, block_k: constexpr,
):  # fmt: skip
    """The rows of one tile over the columns of this program. Everything but x is asked for before x is there."""
    places, at = tl.arange(0, _tile), factors + (target * table_tiles + tile).to(tl.int64) * _entry
    record = records + tile * _record + places
    rows, rank = tl.load(record + _rows), tl.load(at + 2).to(tl.int32)
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
        tl.store(low + place[:, None] * most_rank + ranks[None, :], total, mask=rows[:, None] >= 0)


@triton.jit
def shrink_kernel(
    low, x, factors, records, n_tiles, x_stride, n_cols, most_tiles, table_tiles, n_targets: constexpr,
    most_rank: constexpr, dtype: constexpr, block_k: constexpr,
):  # fmt: skip
    """low[split, place in its tile, target] = a x over the columns of one split."""
    let_next_start()
    target, n = tl.program_id(1) % n_targets, tl.load(n_tiles)
    # The first tile does not wait for their number: one that is not there has rank 0.
    shrink_tile(low, x, factors, records, tl.program_id(0), target, x_stride, n_cols, most_tiles, table_tiles,
                n_targets, most_rank, dtype, block_k)  # fmt: skip
    for tile in range(tl.program_id(0) + tl.num_programs(0), n, tl.num_programs(0)):
        shrink_tile(low, x, factors, records, tile, target, x_stride, n_cols, most_tiles, table_tiles,
                    n_targets, most_rank, dtype, block_k)  # fmt: skip


@triton.jit
def sums_of(low, tile, target, most_tiles, ranks, mask, n_targets: constexpr, most_rank: constexpr,
            n_splits: constexpr):  # fmt: skip
    """Sums of `shrink_kernel` for the rows of a tile, the splits added in order."""
    lows = tl.zeros((_tile, _tile), tl.float32)
    for split in tl.static_range(n_splits):
        place = ((split * most_tiles + tile) * _tile + tl.arange(0, _tile)).to(tl.int64) * n_targets + target
        lows += tl.load(low + place[:, None] * most_rank + ranks[None, :], mask=mask, other=0.0)
    return lows


@triton.jit
def expand_tile(
    out, low, factors, records, tile, target, block, begin, height, n_out, out_stride, most_tiles, table_tiles,
    n_targets: constexpr, most_rank: constexpr, n_splits: constexpr, dtype: constexpr,
    block_n: constexpr,
):  # fmt: skip
    """The rows of one tile and the columns of this program. Everything that no kernel makes is asked for first."""
    at, record = factors + (target * table_tiles + tile).to(tl.int64) * _entry, records + tile * _record
    rows = tl.load(record + _rows + tl.arange(0, _tile), eviction_policy=_keep)
    rank = tl.load(at + 2, eviction_policy=_keep).to(tl.int32)
    scale = tl.load(record + _scales + tl.arange(0, _tile), eviction_policy=_keep).to(tl.float32, bitcast=True)
    scale *= tl.load(at + 3, eviction_policy=_keep).to(tl.int32).to(tl.float32, bitcast=True)
    run = tl.load(record + 1, eviction_policy=_keep) * n_targets + tl.load(record + 2, eviction_policy=_keep) * target
    outs, live = block * block_n + tl.arange(0, block_n), rows[:, None] >= 0
    b_at = tl.load(at + 1, eviction_policy=_keep).to(tl.pointer_type(dtype)) + outs.to(tl.int64)[:, None] * rank
    inside, row_at = outs[:, None] < height, out + rows.to(tl.int64)[:, None] * out_stride
    out_at, mask = row_at + (begin + outs)[None, :], live & (outs[None, :] < height)
    ranks = tl.arange(0, _tile)
    b = tl.load(b_at + ranks[None, :], mask=inside & (ranks[None, :] < rank), other=0.0)
    wait_for_previous()
    if rank > 0:
        old, total = tl.load(out_at, mask=mask, other=0.0).to(tl.float32), tl.zeros((_tile, block_n), tl.float32)
        for first_rank in tl.static_range(0, most_rank, _tile):
            ranks = first_rank + tl.arange(0, _tile)
            if first_rank < rank:
                if first_rank > 0:
                    b = tl.load(b_at + ranks[None, :], mask=inside & (ranks[None, :] < rank), other=0.0)
                wanted = live & (ranks[None, :] < rank)
                if n_splits == 0:
                    lows = tl.load(row_at + (n_out + run + ranks)[None, :], mask=wanted, other=0.0).to(tl.float32)
                else:
                    lows = sums_of(low, tile, target, most_tiles, ranks, wanted, n_targets, most_rank, n_splits)
                    lows *= scale[:, None]
                total += tl.dot(lows.to(dtype), tl.trans(b), input_precision="ieee")
        if n_splits == 0:
            total *= scale[:, None]
        total += old
        tl.store(out_at, narrow(total, out.dtype.element_ty), mask=mask)


@triton.jit
def expand_kernel(
    out, low, factors, records, n_tiles, n_out, out_stride, most_tiles, table_tiles, height0, height1, height2,
    n_targets: constexpr, most_rank: constexpr, n_splits: constexpr, dtype: constexpr,
    block_n: constexpr,
):  # fmt: skip
    """out[row, columns of target] += scale * b sums. The sums are those of `shrink_kernel`, or with no splits columns
    of `out` from n_out on, behind each other as the rows of a `SpareRows`."""
    let_next_start()
    n = tl.load(n_tiles, eviction_policy=_keep)
    n0, n1, index = tl.cdiv(height0, block_n), tl.cdiv(height1, block_n), tl.program_id(1)
    target = (index >= n0).to(tl.int32) + (index >= n0 + n1).to(tl.int32)
    block = index - tl.where(target == 0, 0, tl.where(target == 1, n0, n0 + n1))
    begin = tl.where(target == 0, 0, tl.where(target == 1, height0, height0 + height1))
    height = tl.where(target == 0, height0, tl.where(target == 1, height1, height2))
    expand_tile(out, low, factors, records, tl.program_id(0), target, block, begin, height, n_out, out_stride,
                most_tiles, table_tiles, n_targets, most_rank, n_splits, dtype, block_n)  # fmt: skip
    for tile in range(tl.program_id(0) + tl.num_programs(0), n, tl.num_programs(0)):
        expand_tile(out, low, factors, records, tile, target, block, begin, height, n_out, out_stride,
                    most_tiles, table_tiles, n_targets, most_rank, n_splits, dtype, block_n)  # fmt: skip


class ShrunkRows(NamedTuple):
    """Rows that have met the first factor of their adapters, to be added to columns of an output."""

    call: LoraCall
    low: torch.Tensor  # [n_splits, most_tiles, LORA_TILE, n_targets, most_rank]


def splits(n_cols: int, dtype: torch.dtype, device: torch.device) -> tuple[int, int]:
    """The columns of x that a program of `shrink_kernel` takes, and how many programs share them.

    Both factors go through shared memory: smaller cards take half as many columns of f32 numbers.
    """
    fits = 2 * LORA_TILE * SPLIT_COLS * dtype.itemsize <= shared_bytes(device)
    block_k = min(SPLIT_COLS if fits else SPLIT_COLS // 2, max(16, triton.next_power_of_2(n_cols)))
    return block_k, triton.cdiv(n_cols, block_k)


def empty_rows(x: torch.Tensor, call: LoraCall) -> ShrunkRows:
    """Memory for what `shrink` makes of x."""
    shape = (splits(x.shape[1], call.dtype, x.device)[1], call.most_tiles, LORA_TILE, len(call.heights), call.most_rank)
    return ShrunkRows(call, x.new_empty(shape, dtype=torch.float32))


def shrink(x: torch.Tensor, rows: ShrunkRows) -> None:
    """Let rows of x meet the first factors."""
    call, low = rows
    tiles, n_targets, n_cols = call.tiles, len(call.heights), x.shape[1]
    block_k, n_splits = splits(n_cols, call.dtype, x.device)
    shrink_kernel[(n_programs(call), n_targets * call.most_rank // LORA_TILE, n_splits)](
        low, x, tiles.factors[call.first :], tiles.records, tiles.n, x.stride(0), n_cols, call.most_tiles,
        len(tiles.records), n_targets, call.most_rank, TYPES[call.dtype], block_k, num_warps=4, **OVERLAP,
    )  # fmt: skip


def expand(out: torch.Tensor, rows: ShrunkRows) -> None:
    """Add to rows of `out` what the second factors make of shrunk ones."""
    launch_expand(out, rows.low, len(rows.low), rows.call)


def expand_behind(out: torch.Tensor, call: LoraCall) -> None:
    """Expand where the sums with the first factors are the columns of `out` behind those of the linears."""
    launch_expand(out, out, 0, call)


def launch_expand(out: torch.Tensor, low: torch.Tensor, n_splits: int, call: LoraCall) -> None:
    tiles, heights = call.tiles, [*call.heights, 0, 0][:MAX_TARGETS]
    expand_kernel[(n_programs(call), sum(triton.cdiv(height, BLOCK_N) for height in heights))](
        out, low, tiles.factors[call.first :], tiles.records, tiles.n, sum(heights), out.stride(0), call.most_tiles,
        len(tiles.records), *heights, len(call.heights), call.most_rank, n_splits, TYPES[call.dtype], BLOCK_N,
        num_warps=4, **OVERLAP,
    )  # fmt: skip


def n_programs(call: LoraCall) -> int:
    return min(call.most_tiles, max(FEWEST_PROGRAMS, call.most_tiles // 4))
