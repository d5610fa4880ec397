"""A token of each row of logits, so that only the token leaves the device.

Tokens are counted up as the host does it: folded into lanes, column after column, so that both draw the same token but
for a random number that falls within rounding of the border between two.
"""

import torch
import triton
import triton.language as tl

LANES = 64
COLUMNS = 64  # of a tile


@triton.jit
def load_tile(x, begin, n_vocab, n_columns, lanes: tl.constexpr, block: tl.constexpr):
    """Logits of the columns from `begin` on [lanes, block], and whose they are; -inf where there is no token."""
    cols = begin + tl.arange(0, block)[None, :]
    tokens = tl.arange(0, lanes)[:, None] * n_columns + cols
    inside = (cols < n_columns) & (tokens < n_vocab)
    return tl.load(x + tokens, mask=inside, other=float("-inf")).to(tl.float32), tokens


@triton.jit
def best_of(x, n_vocab, n_columns, lanes: tl.constexpr, block: tl.constexpr):
    """The highest logit and its token, the lower id of equals; -1 where logits are not numbers."""
    best, at, n_spoiled = float("-inf"), 0, 0
    for begin in range(0, n_columns, block):
        values, tokens = load_tile(x, begin, n_vocab, n_columns, lanes, block)
        n_spoiled += tl.sum(tl.sum((values != values).to(tl.int32), 1), 0)
        top = tl.max(tl.max(values, 1), 0)
        here = tl.min(tl.min(tl.where(values == top, tokens, n_vocab), 1), 0)
        at = tl.where(top > best, here, tl.where(top == best, tl.minimum(at, here), at))
        best = tl.maximum(best, top)
    fine = (n_spoiled == 0) & (best > float("-inf")) & (best < float("inf"))
    return best, tl.where(fine, at, -1)


@triton.jit
def weights_of(values, best, heat):
    return tl.exp((values - best) * heat)


@triton.jit
def draw_kernel(
    out, logits, heats, chances, n_vocab, stride, n_columns, lanes: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """One program per row: its best token, and if it has a heat, the one its chance falls on."""
    row = tl.program_id(0)
    x = logits + row.to(tl.int64) * stride
    heat = tl.load(heats + row)
    best, token = best_of(x, n_vocab, n_columns, lanes, block)
    if (heat > 0) & (token >= 0):
        total = tl.full((), 0.0, tl.float64)
        for begin in range(0, n_columns, block):
            values, _ = load_tile(x, begin, n_vocab, n_columns, lanes, block)
            total += tl.sum(tl.sum(weights_of(values, best, heat).to(tl.float64), 0), 0)
        target = tl.load(chances + row) * total
        running, before = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
        found = -1
        for begin in range(0, n_columns, block):
            values, _ = load_tile(x, begin, n_vocab, n_columns, lanes, block)
            after = running + tl.sum(tl.sum(weights_of(values, best, heat).to(tl.float64), 0), 0)
            hit = (found < 0) & (target < after)
            before = tl.where(hit, running, before)
            found = tl.where(hit, begin, found)
            running = after
        values, _ = load_tile(x, tl.maximum(found, 0), n_vocab, n_columns, lanes, block)
        sums = before + tl.cumsum(tl.sum(weights_of(values, best, heat).to(tl.float64), 0), 0)
        column = tl.minimum(tl.maximum(found, 0) + tl.sum((sums <= target).to(tl.int32), 0), n_columns - 1)
        before = tl.max(tl.where(sums <= target, sums, before), 0)
        at = tl.arange(0, lanes) * n_columns + column
        values = tl.load(x + at, mask=at < n_vocab, other=float("-inf")).to(tl.float32)
        sums = before + tl.cumsum(weights_of(values, best, heat).to(tl.float64), 0)
        lane = tl.sum((sums <= target).to(tl.int32), 0)
        # Rounding may leave nothing behind the target: then the best token is as good as any.
        token = tl.where((found >= 0) & (lane < lanes), lane * n_columns + column, token)
    tl.store(out + row, token)


def draw(logits: torch.Tensor, n_vocab: int, heats: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """A token of each row among the first `n_vocab`: `heats` are inverse temperatures, 0 for the best token."""
    n_rows = len(logits)
    out = logits.new_empty(n_rows, dtype=torch.int32)
    n_columns = triton.cdiv(n_vocab, LANES)
    draw_kernel[(n_rows,)](
        out, logits, heats, chances, n_vocab, logits.stride(0), n_columns, LANES, COLUMNS, num_warps=8
    )
    return out
