"""Low-rank adapters: rows grouped by adapter meet both of its factors, in tiles of `LORA_TILE` rows.

A record is five int32 numbers: record i of a round holds tile i (slot, first, n) and entry i (row, bits of its scale).
A table holds four int64 numbers for each slot of each linear: the addresses of a and b, the rank, the scale's bits. A
row's sums never depend on the other rows of its tile.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tahr.backends.api import LORA_TILE, MAX_ADAPTERS
from tahr.backends.cuda.kernels.dependent import OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.linear import TYPES
from tahr.backends.cuda.kernels.rows import narrow

RECORD = 5  # int32 numbers
ENTRY = 4  # int64 numbers of a table for one slot
BLOCK_N = 128  # columns of the output that a program makes
SPLIT_COLS = 512  # columns of x that one program of `shrink_kernel` takes at once
FEWEST_PROGRAMS = (
    8  # that share the tiles of a step: a grid is as large as the most tiles need, and mostly there are few
)
_record, _entry, _tile = tl.constexpr(RECORD), tl.constexpr(ENTRY), tl.constexpr(LORA_TILE)
_slots = tl.constexpr(MAX_ADAPTERS + 1)


class LoraCall(NamedTuple):
    """The adapters of linears whose outputs are columns of one matrix."""

    records: torch.Tensor  # of one round
    n_tiles: torch.Tensor  # of that round, one number
    most_tiles: int
    table: torch.Tensor  # of the first linear; the others' follow it
    heights: Sequence[int]  # of the linears, at most three
    most_rank: int
    dtype: torch.dtype  # of the factors


@triton.jit
def find_tile(table, records, tile, target):
    """Of a tile: the place of its adapter in the table, the rank (0: nothing to do), entries and rows."""
    tile_at = records + tile * _record
    at = table + (target * _slots + tl.load(tile_at)).to(tl.int64) * _entry
    rank = tl.load(at + 2).to(tl.int32)
    places = tl.arange(0, _tile)
    live = places < tl.where(rank > 0, tl.load(tile_at + 2), 0)
    entries = (tl.load(tile_at + 1) + places).to(tl.int64)
    rows = tl.load(records + entries * _record + 3, mask=live, other=0).to(tl.int64)
    return at, rank, live, entries, rows


@triton.jit
def shrink_kernel(
    low, x, table, records, n_tiles, x_stride, n_cols, n_entries, n_targets: tl.constexpr, most_rank: tl.constexpr,
    dtype: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """low[split, entry, target] = scale * a x over the columns of one split.

    Everything but x is there before the kernels that make x have finished.
    """
    let_next_start()
    target, first_rank = tl.program_id(1) % n_targets, tl.program_id(1) // n_targets * _tile
    ranks, cols = first_rank + tl.arange(0, _tile), tl.program_id(2) * block_k + tl.arange(0, block_k)
    inside = cols[None, :] < n_cols
    for tile in range(tl.program_id(0), tl.load(n_tiles), tl.num_programs(0)):
        at, rank, live, entries, rows = find_tile(table, records, tile, target)
        scale = tl.load(records + entries * _record + 4, mask=live, other=0).to(tl.float32, bitcast=True)
        scale *= tl.load(at + 3).to(tl.int32).to(tl.float32, bitcast=True)
        a_at = tl.load(at).to(tl.pointer_type(dtype)) + ranks.to(tl.int64)[:, None] * n_cols + cols[None, :]
        factors = tl.load(a_at, mask=inside & (ranks[:, None] < rank), other=0.0)
        wait_for_previous()
        if first_rank < rank:
            xs = tl.load(x + rows[:, None] * x_stride + cols[None, :], mask=inside & live[:, None], other=0.0)
            total = tl.dot(xs.to(dtype), tl.trans(factors), input_precision="ieee")
            place = (tl.program_id(2) * n_entries + entries) * n_targets + target
            tl.store(low + place[:, None] * most_rank + ranks[None, :], total * scale[:, None], mask=live[:, None])
    wait_for_previous()  # those without a tile too: or a later kernel could overtake an earlier one


@triton.jit
def expand_kernel(
    out, low, table, records, n_tiles, out_stride, n_entries, height0, height1, height2, n_targets: tl.constexpr,
    most_rank: tl.constexpr, n_splits: tl.constexpr, dtype: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """out[row, columns of target] += b low, the splits added in order."""
    let_next_start()
    target = tl.program_id(2)
    height = tl.where(target == 0, height0, tl.where(target == 1, height1, height2))
    begin = tl.where(target == 0, 0, tl.where(target == 1, height0, height0 + height1))
    outs = tl.program_id(1) * block_n + tl.arange(0, block_n)
    last = tl.where(tl.program_id(1) * block_n < height, tl.load(n_tiles), 0)
    for tile in range(tl.program_id(0), last, tl.num_programs(0)):
        at, rank, live, entries, rows = find_tile(table, records, tile, target)
        b = tl.load(at + 1).to(tl.pointer_type(dtype)) + outs.to(tl.int64)[:, None] * rank
        total = tl.zeros((_tile, block_n), tl.float32)
        for first_rank in tl.static_range(0, most_rank, _tile):
            ranks = first_rank + tl.arange(0, _tile)
            factors = tl.load(b + ranks[None, :], mask=(outs[:, None] < height) & (ranks[None, :] < rank), other=0.0)
            wait_for_previous()
            if first_rank < rank:
                lows = tl.zeros((_tile, _tile), tl.float32)
                for split in tl.static_range(n_splits):
                    place = (split * n_entries + entries) * n_targets + target
                    low_at = low + place[:, None] * most_rank + ranks[None, :]
                    lows += tl.load(low_at, mask=live[:, None] & (ranks[None, :] < rank), other=0.0)
                total += tl.dot(lows.to(dtype), tl.trans(factors), input_precision="ieee")
        if rank > 0:
            out_at = out + rows[:, None] * out_stride + (begin + outs)[None, :]
            mask = live[:, None] & (outs[None, :] < height)
            total += tl.load(out_at, mask=mask, other=0.0).to(tl.float32)
            tl.store(out_at, narrow(total, out.dtype.element_ty), mask=mask)
    wait_for_previous()


class ShrunkRows(NamedTuple):
    """Rows that have met the first factor of their adapters, to be added to columns of an output."""

    call: LoraCall
    low: torch.Tensor  # [n_splits, n_entries, n_targets, most_rank]


def splits(call: LoraCall, n_cols: int) -> tuple[int, int]:
    """The columns of x that a program of `shrink_kernel` takes, and how many programs share them."""
    block_k = min(SPLIT_COLS, max(16, triton.next_power_of_2(n_cols)))
    return block_k, triton.cdiv(n_cols, block_k)


def room(x: torch.Tensor, call: LoraCall) -> ShrunkRows:
    """Memory for what `shrink` makes of x."""
    shape = (splits(call, x.shape[1])[1], len(call.records), len(call.heights), call.most_rank)
    return ShrunkRows(call, x.new_empty(shape, dtype=torch.float32))


def shrink(x: torch.Tensor, rows: ShrunkRows) -> None:
    """Let rows of x meet the first factors."""
    call, low = rows
    n_targets, n_cols = len(call.heights), x.shape[1]
    block_k, n_splits = splits(call, n_cols)
    shrink_kernel[(n_programs(call), n_targets * call.most_rank // LORA_TILE, n_splits)](
        low, x, call.table, call.records, call.n_tiles, x.stride(0), n_cols, low.shape[1],
        n_targets, call.most_rank, TYPES[call.dtype], block_k, num_warps=4, **OVERLAP,
    )  # fmt: skip


def expand(out: torch.Tensor, rows: ShrunkRows) -> None:
    """Add to rows of `out` what the second factors make of shrunk ones."""
    call, low = rows
    heights = [*call.heights, 0, 0][:3]
    n_splits, n_entries, n_targets, most_rank = low.shape
    expand_kernel[(n_programs(call), triton.cdiv(max(heights), BLOCK_N), n_targets)](
        out, low, call.table, call.records, call.n_tiles, out.stride(0), n_entries, *heights,
        n_targets, most_rank, n_splits, TYPES[call.dtype], BLOCK_N, num_warps=4, **OVERLAP,
    )  # fmt: skip


def n_programs(call: LoraCall) -> int:
    return min(call.most_tiles, max(FEWEST_PROGRAMS, call.most_tiles // 4))
