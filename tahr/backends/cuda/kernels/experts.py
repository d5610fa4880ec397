"""Experts: assignments of tokens sorted by expert, then one product per tile of assignments that share an expert.

One or two rows meet the matrices of their experts without tiles, as vectors.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language import constexpr
from triton.tools.tensor_descriptor import TensorDescriptor

from tahr.backends.api import Activation, Routing
from tahr.backends.cuda.kernels.common.card import is_large
from tahr.backends.cuda.kernels.common.dependent import ENABLED, OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rows import BLOCK, gated, narrow
from tahr.backends.cuda.kernels.linear import FEW, TYPES, VECTOR_COLS, VECTOR_VALUES, load_weights
from tahr.backends.cuda.kernels.narrow_linear import described
from tahr.backends.cuda.kernels.routing import TileLayout, choose_best, lay_out


class ExpertTile(NamedTuple):
    """Weight rows and columns that a program takes at a time, and how Triton schedules them."""

    n: int
    k: int
    n_warps: int = 4
    n_stages: int = 3

    @property
    def schedule(self) -> dict[str, Any]:
        return {"num_warps": self.n_warps, "num_stages": self.n_stages, **OVERLAP}


# Tiles by the assignments in one, measured on an H200.
TILES = {FEW: ExpertTile(32, 128, 4, 4), 32: ExpertTile(64, 128), 64: ExpertTile(128, 64, 8, 4),
         128: ExpertTile(128, 64, 8)}  # fmt: skip
SMALL_CARD_TILES = {FEW: TILES[FEW], 64: ExpertTile(64, 64)}
# Tiles of down products, which sum once where the others sum a gate and an up matrix.
WIDE_DOWN = {32: ExpertTile(128, 128), 128: ExpertTile(256, 64, 8)}
EXACT = ExpertTile(32, 32)  # tile of f32
# Assignments of an expert, on average, up to which tiles have so many.
SIZES = {4: FEW, 24: 32, 96: 64, 1 << 31: 128}


@dataclass(frozen=True, slots=True)
class Assignments:
    """Which experts rows go to: assignment r * n_active + j is the j-th choice of row r."""

    shares: torch.Tensor  # [n_rows, n_active]
    renormalise: bool
    scale: float
    scales_input: bool
    tiles: TileLayout
    tile_size: int


def assign(scores: torch.Tensor, routing: Routing, tile_size: int) -> Assignments:
    """Choose experts and lay the choices out in tiles, all on the device; shapes depend on the scores' shape alone."""
    shares, experts = choose(scores, routing)
    n_experts, n = scores.shape[1], experts.numel()
    tiles = lay_out(experts.reshape(-1), n_experts, min(n, n_experts + n // tile_size), tile_size)
    return Assignments(*weighed(shares, experts, routing), tiles, tile_size)


def weighed(shares: torch.Tensor, experts: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, bool, float, bool]:
    """The shares, whether they are still to be renormalised, their scale, and whether they scale what experts read."""
    how = (routing.renormalise and not routing.jitter, routing.scale, routing.scales_input)
    if routing.factors is None:
        return shares, *how
    whole = shares.sum(dim=1, keepdim=True) if routing.renormalise else 1.0
    return shares / whole * routing.factors.data[experts], False, *how[1:]


def choose(scores: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """The shares and the experts of every row, best first; ties go to the lower index."""
    if routing.jitter:
        return mix_sparsely(scores.float(), routing)
    if not routing.n_groups:
        return choose_best(scores, routing)
    p = torch.sigmoid(scores.float()) if routing.sigmoid else torch.softmax(scores.float(), dim=1)
    ranks = in_best_groups(p if routing.bias is None else p + routing.bias.data, routing)
    chosen = torch.sort(ranks, dim=1, descending=True, stable=True)[1][:, : routing.n_active]
    return torch.gather(p, 1, chosen), chosen


def mix_sparsely(scores: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts one after the other, each against those that are nearly as good."""
    left, shares, chosen = scores.clone(), [], []
    for _ in range(routing.n_active):
        top, best = left.max(dim=1, keepdim=True)
        near = (top - scores) / torch.maximum(scores.abs(), top) <= 2 * routing.jitter
        shares.append(1 / torch.exp(left - top).masked_fill(~near, 0.0).sum(dim=1, keepdim=True))
        chosen.append(best)
        left = left.scatter(1, best, float("-inf"))
    return torch.cat(shares, dim=1), torch.cat(chosen, dim=1)


def in_best_groups(ranks: torch.Tensor, routing: Routing) -> torch.Tensor:
    """The ranks, but for those of experts outside a row's best groups, which become -inf."""
    groups = ranks.view(len(ranks), routing.n_groups, -1)
    worth = torch.sort(groups, dim=2, descending=True)[0][:, :, : routing.group_top].sum(dim=2)
    best = torch.sort(worth, dim=1, descending=True, stable=True)[1][:, : routing.n_best_groups]
    is_best = torch.zeros_like(worth, dtype=torch.bool).scatter(1, best, True)
    return groups.masked_fill(~is_best[:, :, None], float("-inf")).view_as(ranks)


def tile_size_for(scores: torch.Tensor, routing: Routing, deterministic: bool) -> int:
    """Small tiles while few rows share an expert. Larger tiles run another matrix instruction, so with them results
    depend on the number of rows."""
    n_rows, n_experts = scores.shape
    wanted = next(size for most, size in SIZES.items() if n_rows * routing.n_active <= most * n_experts)
    sizes = tiles_on(scores.device)
    return FEW if deterministic else next((size for size in sizes if size >= wanted), max(sizes))


def tiles_on(device: torch.device) -> dict[int, ExpertTile]:
    return TILES if is_large(device) else SMALL_CARD_TILES


def tiles_for(dtype: torch.dtype, tile_size: int, device: torch.device) -> tuple[ExpertTile, ExpertTile]:
    """How programs cut the gate and up matrices of experts, and the down matrices."""
    if dtype == torch.float32:
        return EXACT, EXACT
    tile = tiles_on(device)[tile_size]
    return tile, WIDE_DOWN.get(tile_size, tile) if is_large(device) else tile


@triton.jit
def place_of(program, n_out, block_n: constexpr):
    """The tile of assignments of a program, and its first weight row. Programs that follow each other share the rows
    of their tile, which are then read from memory once."""
    n_blocks = tl.cdiv(n_out, block_n)
    return program // n_blocks, program % n_blocks * block_n


@triton.jit
def tile_rows(order, tile_begins, tile_ends, tile, block_m: constexpr):
    at = tl.load(tile_begins + tile) + tl.arange(0, block_m)
    alive = at < tl.load(tile_ends + tile)
    return tl.load(order + at, mask=alive, other=0).to(tl.int64), alive


@triton.jit
def weight_tile(w, expert, first, begin, n_out, n_cols, travels: constexpr, block_n: constexpr, block_k: constexpr):
    """Columns begin.. of an expert's weight rows first..; what lies outside of the matrix is not used."""
    if travels:
        found = w.load([(expert * n_out + first).to(tl.int32), begin])
    else:
        outs, cols = first + tl.arange(0, block_n), begin + tl.arange(0, block_k)
        mask = (outs[:, None] < n_out) & (cols[None, :] < n_cols)
        found = tl.load(w + (expert * n_out + outs)[:, None] * n_cols + cols[None, :], mask=mask, other=0.0)
    return found


@triton.jit
def gated_kernel(
    out, x, gate, up, gate_bias, up_bias, shares, order, tile_experts, tile_begins, tile_ends, n_experts, n_active,
    n_out, n_cols, x_stride, share_stride, has_bias: constexpr, scales: constexpr, act: constexpr,
    dtype: constexpr, travels: constexpr, block_m: constexpr, block_n: constexpr, block_k: constexpr,
):  # fmt: skip
    """act(x @ gate.T) * (x @ up.T) of every assignment's expert."""
    let_next_start()
    wait_for_previous()
    tile, first = place_of(tl.program_id(0), n_out, block_n)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert >= n_experts:
        return
    row, alive = tile_rows(order, tile_begins, tile_ends, tile, block_m)
    outs = first + tl.arange(0, block_n)
    g, u = tl.zeros((block_m, block_n), tl.float32), tl.zeros((block_m, block_n), tl.float32)
    for begin in range(0, n_cols, block_k):
        cols = begin + tl.arange(0, block_k)
        inside = (cols[None, :] < n_cols) & alive[:, None]
        xs = tl.load(x + (row // n_active)[:, None] * x_stride + cols[None, :], mask=inside, other=0.0).to(dtype)
        gs = weight_tile(gate, expert, first, begin, n_out, n_cols, travels, block_n, block_k).to(dtype)
        us = weight_tile(up, expert, first, begin, n_out, n_cols, travels, block_n, block_k).to(dtype)
        g = tl.dot(xs, tl.trans(gs), g, input_precision="ieee")
        u = tl.dot(xs, tl.trans(us), u, input_precision="ieee")
    if has_bias:
        g += tl.load(gate_bias + expert * n_out + outs, mask=outs < n_out, other=0.0)[None, :]
        u += tl.load(up_bias + expert * n_out + outs, mask=outs < n_out, other=0.0)[None, :]
    if scales:
        share = tl.load(shares + row // n_active * share_stride + row % n_active)
        g, u = g * share[:, None], u * share[:, None]
    result = narrow(gated(g, u, act), out.dtype.element_ty)
    tl.store(out + row[:, None] * n_out + outs[None, :], result, mask=alive[:, None] & (outs[None, :] < n_out))


@triton.jit
def down_kernel(
    out, x, down, bias, order, tile_experts, tile_begins, tile_ends, n_experts, n_out, n_cols, has_bias: constexpr,
    dtype: constexpr, travels: constexpr, block_m: constexpr, block_n: constexpr, block_k: constexpr,
):  # fmt: skip
    """x @ down.T of every assignment's expert."""
    let_next_start()
    wait_for_previous()
    tile, first = place_of(tl.program_id(0), n_out, block_n)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert >= n_experts:
        return
    row, alive = tile_rows(order, tile_begins, tile_ends, tile, block_m)
    outs = first + tl.arange(0, block_n)
    total = tl.zeros((block_m, block_n), tl.float32)
    for begin in range(0, n_cols, block_k):
        cols = begin + tl.arange(0, block_k)
        inside = (cols[None, :] < n_cols) & alive[:, None]
        xs = tl.load(x + row[:, None] * n_cols + cols[None, :], mask=inside, other=0.0).to(dtype)
        ws = weight_tile(down, expert, first, begin, n_out, n_cols, travels, block_n, block_k).to(dtype)
        total = tl.dot(xs, tl.trans(ws), total, input_precision="ieee")
    if has_bias:
        total += tl.load(bias + expert * n_out + outs, mask=outs < n_out, other=0.0)[None, :]
    result = narrow(total, out.dtype.element_ty)
    tl.store(out + row[:, None] * n_out + outs[None, :], result, mask=alive[:, None] & (outs[None, :] < n_out))


@triton.jit
def weigh_kernel(out, parts, shares, width, share_stride, n_active, scale, renormalise: constexpr, block: constexpr):
    """The sum of a row's parts by their shares, in order."""
    let_next_start()
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    whole = 0.0
    for i in range(n_active):
        whole += tl.load(shares + row * share_stride + i)
    total = tl.zeros((block,), tl.float32)
    for i in range(n_active):
        share = tl.load(shares + row * share_stride + i)
        if renormalise:
            share = share / whole
        part = tl.load(parts + (row * n_active + i) * width + cols, mask=cols < width, other=0.0)
        total += share * part.to(tl.float32)
    tl.store(out + row * width + cols, total * scale, mask=cols < width)


def weighted(parts: torch.Tensor, chosen: Assignments) -> torch.Tensor:
    """The parts [n_rows, n_active, width] of every row as one."""
    if chosen.scales_input:
        return parts.sum(dim=1, dtype=torch.float32)
    n_rows, n_active, width = parts.shape
    out, shares = parts.new_empty((n_rows, width), dtype=torch.float32), chosen.shares
    grid = (n_rows, triton.cdiv(width, BLOCK))
    weigh_kernel[grid](
        out, parts, shares, width, shares.stride(0), n_active, chosen.scale, chosen.renormalise, BLOCK, **OVERLAP
    )
    return out


@dataclass(frozen=True, slots=True)
class ExpertStacks:
    """The stacked matrices of all experts, [n_experts, n_out, n_cols] each."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    act: Activation
    biases: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None  # biases of gate, up and down

    @property
    def matrices(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.gate, self.up, self.down


def can_travel(stack: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the copy engine brings tiles of the stack as they are multiplied."""
    is_whole = stack.dtype == dtype != torch.float32 and stack.is_contiguous() and stack.data_ptr() % 16 == 0
    return ENABLED and stack.is_cuda and is_whole and stack.shape[-1] * stack.element_size() % 16 == 0


def stack_of(stack: torch.Tensor, tile: ExpertTile, travels: bool) -> torch.Tensor | TensorDescriptor:
    """The matrices of a stack above each other, as kernels take them."""
    return described(stack.view(-1, stack.shape[-1]), tile.n, tile.k) if travels else stack


def run_experts(x: torch.Tensor, chosen: Assignments, stacks: ExpertStacks, dtype: torch.dtype) -> torch.Tensor:
    """Every row through its experts, summed by share, in f32; products of factors in `dtype`."""
    n_experts, n_ffn, n_cols = stacks.gate.shape
    n_rows, n_active = chosen.shares.shape
    tiles, n_tiles, n_out = (*chosen.tiles, n_experts), len(chosen.tiles.experts), stacks.down.shape[1]
    tile, wide = tiles_for(dtype, chosen.tile_size, x.device)
    travels = chosen.tile_size > FEW and all(can_travel(w, dtype) for w in stacks.matrices)
    gate, up, down = (stack_of(w, t, travels) for w, t in zip(stacks.matrices, (tile, tile, wide), strict=True))
    has_bias, biases = stacks.biases is not None, stacks.biases or (x, x, x)  # any memory stands for no biases
    inner = x.new_empty((n_rows * n_active, n_ffn), dtype=dtype)
    gated_kernel[(n_tiles * triton.cdiv(n_ffn, tile.n),)](
        inner, x, gate, up, *biases[:2], chosen.shares, *tiles, n_active, n_ffn, n_cols, x.stride(0),
        chosen.shares.stride(0), has_bias, chosen.scales_input, stacks.act, TYPES[dtype], travels, chosen.tile_size,
        tile.n, tile.k, **tile.schedule,
    )  # fmt: skip
    outer = x.new_empty((n_rows, n_active, n_out), dtype=dtype if chosen.tile_size > FEW else torch.float32)
    down_kernel[(n_tiles * triton.cdiv(n_out, wide.n),)](
        outer, inner, down, biases[2], *tiles, n_out, n_ffn, has_bias, TYPES[dtype], travels, chosen.tile_size,
        wide.n, wide.k, **wide.schedule,
    )  # fmt: skip
    return weighted(outer, chosen)


@triton.jit
def expert_gate_kernel(
    out, x, gate, up, gate_bias, up_bias, shares, experts, n_out, x_stride, n_active: constexpr,
    n_cols: constexpr, has_bias: constexpr, scales: constexpr, act: constexpr, dtype: constexpr,
    block_n: constexpr, block_k: constexpr,
):  # fmt: skip
    """act(x @ gate.T) * (x @ up.T) of one assignment's expert for some weight rows."""
    let_next_start()
    chosen, outs = tl.program_id(1).to(tl.int64), tl.program_id(0) * block_n + tl.arange(0, block_n)
    wait_for_previous()
    expert = tl.load(experts + chosen).to(tl.int64)
    g, u = tl.zeros((block_n,), tl.float32), tl.zeros((block_n,), tl.float32)
    for begin in tl.static_range(0, n_cols, block_k):
        cols = begin + tl.arange(0, block_k)
        gs = load_weights(gate + expert * n_out * n_cols, outs, n_out, begin, n_cols, block_k)
        us = load_weights(up + expert * n_out * n_cols, outs, n_out, begin, n_cols, block_k)
        row = tl.load(x + chosen // n_active * x_stride + cols, mask=cols < n_cols, other=0.0)
        row = row.to(dtype).to(tl.float32)[None, :]
        g += tl.sum(gs.to(tl.float32) * row, 1)
        u += tl.sum(us.to(tl.float32) * row, 1)
    inside = outs < n_out
    if has_bias:
        g += tl.load(gate_bias + expert * n_out + outs, mask=inside, other=0.0)
        u += tl.load(up_bias + expert * n_out + outs, mask=inside, other=0.0)
    if scales:
        share = tl.load(shares + chosen)
        g, u = g * share, u * share
    tl.store(out + chosen * n_out + outs, narrow(gated(g, u, act), out.dtype.element_ty), mask=inside)


@triton.jit
def expert_down_kernel(
    out, x, down, bias, shares, experts, n_out, scale, n_active: constexpr, n_cols: constexpr,
    has_bias: constexpr, scaled: constexpr, renormalise: constexpr, block_n: constexpr,
    block_k: constexpr,
):  # fmt: skip
    """The sum of a row's x @ down.T by the shares of its experts, in order, for some weight rows; `scaled` ones have
    no shares any more."""
    let_next_start()
    index, outs = tl.program_id(1).to(tl.int64), tl.program_id(0) * block_n + tl.arange(0, block_n)
    wait_for_previous()
    total, whole = tl.zeros((block_n,), tl.float32), 0.0
    for i in tl.static_range(n_active):
        chosen = index * n_active + i
        expert = tl.load(experts + chosen).to(tl.int64)
        part = tl.zeros((block_n,), tl.float32)
        for begin in tl.static_range(0, n_cols, block_k):
            cols = begin + tl.arange(0, block_k)
            ws = load_weights(down + expert * n_out * n_cols, outs, n_out, begin, n_cols, block_k)
            row = tl.load(x + chosen * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
            part += tl.sum(ws.to(tl.float32) * row[None, :], 1)
        if has_bias:
            part += tl.load(bias + expert * n_out + outs, mask=outs < n_out, other=0.0)
        if not scaled:
            share = tl.load(shares + chosen)
            part, whole = part * share, whole + share
        total += part
    if renormalise:
        total = total / whole
    tl.store(out + index * n_out + outs, total * scale, mask=outs < n_out)


def run_few(
    x: torch.Tensor, scores: torch.Tensor, routing: Routing, stacks: ExpertStacks, dtype: torch.dtype
) -> torch.Tensor:
    """Run one or two rows, whose experts are hardly ever shared."""
    shares, experts = choose(scores, routing)
    shares, renormalise, scale, scales_input = weighed(shares, experts, routing)
    _, n_ffn, n_cols = stacks.gate.shape
    (n_rows, n_active), n_out = experts.shape, stacks.down.shape[1]
    has_bias, biases = stacks.biases is not None, stacks.biases or (x, x, x)  # any memory stands for no biases
    inner = x.new_empty((n_rows * n_active, n_ffn), dtype=dtype)
    block_k = min(VECTOR_COLS, triton.next_power_of_2(n_cols))
    block_n = max(2, VECTOR_VALUES // block_k // 2)
    expert_gate_kernel[(triton.cdiv(n_ffn, block_n), n_rows * n_active)](
        inner, x, stacks.gate, stacks.up, *biases[:2], shares, experts, n_ffn, x.stride(0), n_active, n_cols, has_bias,
        scales_input, stacks.act, TYPES[dtype], block_n, block_k, num_warps=4, **OVERLAP,
    )  # fmt: skip
    out = x.new_empty((n_rows, n_out), dtype=torch.float32)
    block_k = min(VECTOR_COLS, triton.next_power_of_2(n_ffn))
    block_n = max(2, VECTOR_VALUES // block_k // 2)
    expert_down_kernel[(triton.cdiv(n_out, block_n), n_rows)](
        out, inner, stacks.down, biases[2], shares, experts, n_out, 1.0 if scales_input else scale, n_active, n_ffn,
        has_bias, scales_input, renormalise and not scales_input, block_n, block_k, num_warps=4, **OVERLAP,
    )  # fmt: skip
    return out
