"""Samples from rows of logits on the device: greedy, temperature, top-k, min-p and top-p, with edits and masks.

A row of the vocabulary is read once, by several programs (`scan_kernel`), which leave behind the best logit of every
group of tokens. One program per sample (`choose_kernel`) then reads only the groups with candidates: tokens at or above
a floor. Where there are too many of them it searches the whole row for the border values (`search.py`).
Everything is split by the vocabulary alone, so a sample gives the same token in any batch.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.cuda.kernels.search import token_of_whole_row

GROUP = 64  # tokens whose best logit is known; also the lanes a row is folded into, see `LogitRows.draw`
TILE_GROUPS = 128  # groups a program scans
CANDIDATES = 1024  # longest list of candidates: beyond it the whole row is searched
FIRST_GROUPS = 512  # groups taken for top-p alone: almost always the choice lies within

# Fields of a sample in the int32 array that is sent to the device: [N_FIELDS, n]
FIELDS = (
    *("key_low", "key_high", "counter", "source", "kind", "top_k", "mask_row", "inverse", "min_depth", "top_p"),
    "slot",
)
GREEDY, DRAW_FROM_ALL, TRUNCATED, ON_HOST = range(4)  # kinds


class RowSizes(NamedTuple):
    """Samples of one vocabulary: the numbers that both kernels take, in their order."""

    n: int
    stride: int  # distance of two rows of logits
    n_vocab: int
    n_groups: int
    n_tiles: int
    n_words: int  # words of a mask

    @property
    def choose_blocks(self) -> tuple[int, ...]:
        """The sizes that `choose_kernel` is compiled for."""
        powers = triton.next_power_of_2(self.n_tiles), triton.next_power_of_2(self.n_groups)
        return (*SCAN_BLOCKS, *powers, CANDIDATES, FIRST_GROUPS)


SCAN_BLOCKS = (GROUP, TILE_GROUPS)  # sizes of this kernel and of `scan_kernel`
SCAN_WARPS, CHOOSE_WARPS = 4, 8


def row_sizes(n: int, stride: int, n_vocab: int) -> RowSizes:
    n_groups = -(-n_vocab // GROUP)
    return RowSizes(n, stride, n_vocab, n_groups, -(-n_groups // TILE_GROUPS), -(-n_vocab // 32))


def launches(n_vocab: int, width: int) -> list[tuple[Any, list[Any], int]]:
    """The kernels with what they are launched with for rows of `width` f32 logits, and by how many warps.

    Types stand for tensors.
    """
    f32, i32, sizes = tl.float32, tl.int32, row_sizes(1, width, n_vocab)
    scanned = [f32, i32, f32, i32, f32]  # best, best_at, totals, n_broken, group_best
    return [
        (choose_kernel, [i32, i32, *scanned, f32, i32, i32, i32, f32, i32, *sizes, *sizes.choose_blocks], CHOOSE_WARPS),
        *(
            (scan_kernel, [*scanned, i32, f32, i32, *sizes, *SCAN_BLOCKS, has_masks], SCAN_WARPS)
            for has_masks in (False, True)
        ),
    ]


@triton.jit
def field(rows, n, index: constexpr):
    return tl.load(rows + index * n + tl.program_id(0))


@triton.jit
def float_field(rows, n, index: constexpr):
    return field(rows, n, index).to(tl.float32, bitcast=True)


@triton.jit
def load_logits(x, tokens, inside, masks, mask_row, n_vocab, n_words):
    """Logits as f32, -inf where there is no token or the mask of the row (a negative one: none) bans it."""
    values = tl.load(x + tokens, mask=inside, other=float("-inf")).to(tl.float32)
    masked = inside & (tokens < tl.where(mask_row >= 0, n_vocab, 0))
    word = tl.load(masks + tl.maximum(mask_row, 0).to(tl.int64) * n_words + tokens // 32, mask=masked, other=-1)
    return tl.where(((word >> (tokens % 32)) & 1) != 0, values, float("-inf"))


@triton.jit
def load_lines(x, first, end, masks, mask_row, n_words, n: constexpr, has_masks: constexpr):
    """n logits from each token of `first` on as `load_logits` gives them, those from `end` on -inf.

    A word of a mask is loaded once for 32 tokens. Without `has_masks` no row has one.
    """
    if has_masks:
        lines: constexpr = first.shape[0]
        parts, bits = tl.arange(0, n // 32), tl.arange(0, 32)
        tokens = first[:, None, None] + (parts * 32)[None, :, None] + bits[None, None, :]
        values = tl.load(x + tokens, mask=tokens < end[:, None, None], other=float("-inf")).to(tl.float32)
        at = (first // 32)[:, None] + parts[None, :]
        words = masks + tl.maximum(mask_row, 0).to(tl.int64) * n_words + at
        n_known = tl.where(mask_row >= 0, n_words, 0)
        low = tl.load(words, mask=at < n_known, other=-1).to(tl.uint32, bitcast=True).to(tl.uint64)
        high = tl.load(words + 1, mask=at + 1 < n_known, other=-1).to(tl.uint32, bitcast=True).to(tl.uint64)
        word = (((high << 32) | low) >> (first % 32).to(tl.uint64)[:, None]).to(tl.uint32)
        allowed = ((word[:, :, None] >> bits.to(tl.uint32)[None, None, :]) & 1) != 0
        found = tl.reshape(tl.where(allowed, values, float("-inf")), (lines, n))
    else:
        tokens = first[:, None] + tl.arange(0, n)[None, :]
        found = tl.load(x + tokens, mask=tokens < end[:, None], other=float("-inf")).to(tl.float32)
    return found


@triton.jit
def uniform(rows, n):
    """The random number of the draw: `backends/sampling/uniform.py` with k = 2 * counter + 1."""
    low = field(rows, n, 0).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = field(rows, n, 1).to(tl.uint32, bitcast=True).to(tl.uint64)
    k = field(rows, n, 2).to(tl.uint64) * 2 + 2
    x = ((high << 32) | low) + k * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = x ^ (x >> 31)
    return (x >> 11).to(tl.float64) * 1.1102230246251565e-16


# ---- the first pass --------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["n"])  # one compiled kernel for any number of samples
def scan_kernel(
    best, best_at, totals, n_broken, group_best, rows, logits, masks, n, stride, n_vocab, n_groups, n_tiles, n_words,
    group: constexpr, tile_groups: constexpr, has_masks: constexpr,
):  # fmt: skip
    """One program per sample and tile: its best logit and token, the sum of its weights, whether all are numbers."""
    tile = tl.program_id(1)
    kind, mask_row, inverse = field(rows, n, 4), field(rows, n, 6), float_field(rows, n, 7)
    out = tl.program_id(0) * n_tiles + tile
    x = logits + field(rows, n, 3).to(tl.int64) * stride
    if kind == 1:  # columns of the folded row, in the order in which they are drawn from
        line = tl.arange(0, group) * n_groups
        first, end = line + tile * tile_groups, tl.minimum(line + n_groups, n_vocab)
        values = load_lines(x, first, end, masks, mask_row, n_words, tile_groups, has_masks)
        tokens = first[:, None] + tl.arange(0, tile_groups)[None, :]
        top = tl.max(tl.max(values, 0), 0)
        total = tl.sum(tl.sum(tl.exp((values - tl.where(top == float("-inf"), 0.0, top)) * inverse), 0), 0)
        tl.store(totals + out, total)
        tl.store(best_at + out, tl.min(tl.min(tl.where(values == top, tokens, n_vocab), 0), 0))
        tl.store(n_broken + out, is_broken(total))
        tl.store(best + out, top)
    elif kind != 3:
        groups = tile * tile_groups + tl.arange(0, tile_groups)
        end = tl.zeros_like(groups) + n_vocab
        values = load_lines(x, groups * group, end, masks, mask_row, n_words, group, has_masks)
        tokens = groups[:, None] * group + tl.arange(0, group)[None, :]
        tops = tl.max(values, 1)
        top = tl.max(tops, 0)
        if kind == 2:
            tl.store(group_best + tl.program_id(0).to(tl.int64) * n_groups + groups, tops, mask=groups < n_groups)
            total = tl.sum(tl.sum(tl.exp((values - tl.where(top == float("-inf"), 0.0, top)) * inverse), 1), 0)
            tl.store(totals + out, total)
            tl.store(n_broken + out, is_broken(total))
        else:
            broken = (values != values) | (values == float("inf"))
            tl.store(n_broken + out, tl.sum(tl.sum(broken.to(tl.int32), 1), 0))
        tl.store(best_at + out, tl.min(tl.min(tl.where(values == top, tokens, n_vocab), 1), 0))
        tl.store(best + out, top)


@triton.jit
def is_broken(total):
    """Whether some logit is not a number or infinite: then the sum of weights is not a number either."""
    return (total != total).to(tl.int32)


# ---- drawing from all tokens -------------------------------------------------------------------------------------


@triton.jit
def draw_from_all(
    x, tile_weights, best, best_token, inverse, number, masks, mask_row, n_vocab, n_groups, n_words,
    group: constexpr, tile_groups: constexpr,
):  # fmt: skip
    """The token on which the random number falls: first its tile, then its column, then its lane."""
    sums = tl.cumsum(tile_weights, 0)
    target = number * tl.sum(tile_weights, 0)
    tile = tl.sum((sums <= target).to(tl.int32), 0)
    before = tl.max(tl.where(sums <= target, sums, 0.0), 0)
    columns = tile * tile_groups + tl.arange(0, tile_groups)[None, :]
    tokens = tl.arange(0, group)[:, None] * n_groups + columns
    values = load_logits(x, tokens, (columns < n_groups) & (tokens < n_vocab), masks, mask_row, n_vocab, n_words)
    sums = before + tl.cumsum(tl.sum(tl.exp((values - best) * inverse), 0).to(tl.float64), 0)
    column = tile * tile_groups + tl.sum((sums <= target).to(tl.int32), 0)
    before = tl.max(tl.where(sums <= target, sums, before), 0)
    tokens = tl.arange(0, group) * n_groups + column
    inside = tokens < tl.where(column < n_groups, n_vocab, 0)
    values = load_logits(x, tokens, inside, masks, mask_row, n_vocab, n_words)
    sums = before + tl.cumsum(tl.exp((values - best) * inverse).to(tl.float64), 0)
    lane = tl.sum((sums <= target).to(tl.int32), 0)
    # Rounding may leave nothing behind the target: then the best token is as good as any.
    return tl.where((column < n_groups) & (lane < group), lane * n_groups + column, best_token)


# ---- drawing from candidates -------------------------------------------------------------------------------------


@triton.jit
def group_floor(tops, wanted, best):
    """A value that the best logits of at least `wanted` groups reach, and not many more; lowest with fewer groups."""
    finite = tops > float("-inf")
    low = tl.min(tl.where(finite, tops, best), 0)
    enough = tl.sum(finite.to(tl.int32), 0) >= wanted
    high, n_low, turn = best, tl.where(enough, wanted + wanted, 0), 0
    while (n_low > wanted + wanted // 8 + 4) & (turn < 40):
        middle = low + (high - low) * 0.5
        n_reaching = tl.sum((tops >= middle).to(tl.int32), 0)
        n_low = tl.where(n_reaching >= wanted, n_reaching, n_low)
        low = tl.where(n_reaching >= wanted, middle, low)
        high = tl.where(n_reaching >= wanted, high, middle)
        turn += 1
    return tl.where(enough, low, -3.4028234663852886e38)


@triton.jit
def gather_candidates(
    values_out, ids_out, list_out, tops, floor, x, masks, mask_row, n_vocab, n_words,
    group: constexpr, n_groups_block: constexpr, capacity: constexpr, step: constexpr,
):  # fmt: skip
    """Write down the tokens at or above a floor in the order of their ids; how many, if the capacity holds them."""
    chosen = tops >= floor
    n_chosen = tl.sum(chosen.to(tl.int32), 0)
    tl.store(list_out + tl.cumsum(chosen.to(tl.int32), 0) - 1, tl.arange(0, n_groups_block), mask=chosen)
    tl.debug_barrier()
    n_found, begin = 0, 0
    while (begin < n_chosen) & (n_found <= capacity):
        at = begin + tl.arange(0, step)
        groups = tl.load(list_out + at, mask=at < n_chosen, other=0)
        tokens = groups[:, None] * group + tl.arange(0, group)[None, :]
        inside = (at < n_chosen)[:, None] & (tokens < n_vocab)
        values = tl.reshape(load_logits(x, tokens, inside, masks, mask_row, n_vocab, n_words), (step * group,))
        tokens = tl.reshape(tokens, (step * group,))
        kept = values >= floor
        places = n_found + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(values_out + places, values, mask=kept & (places < capacity))
        tl.store(ids_out + places, tokens, mask=kept & (places < capacity))
        n_found += tl.sum(kept.to(tl.int32), 0)
        begin += step
    tl.debug_barrier()
    return n_found


@triton.jit
def draw_from_candidates(
    values_in, ids_in, n_found, best, inverse, top_k, min_depth, top_p, total, is_open, number,
    capacity: constexpr, step: constexpr,
):  # fmt: skip
    """Rank the candidates by comparing each with each, cut, and draw; -1 if tokens beyond them would count too."""
    at = tl.arange(0, capacity)
    values = tl.load(values_in + at, mask=at < n_found, other=float("-inf"))
    weights = tl.where(at < n_found, tl.exp((values - best) * inverse), 0.0)
    ranks = tl.zeros((capacity,), tl.int32)
    before = tl.zeros((capacity,), tl.float64)
    for begin in range(0, n_found, step):
        others = begin + tl.arange(0, step)
        their = tl.load(values_in + others, mask=others < n_found, other=float("-inf"))
        weight = tl.where(others < n_found, tl.exp((their - best) * inverse), 0.0)
        earlier = (their[None, :] == values[:, None]) & (others[None, :] < at[:, None])  # ties: the lower id is first
        ahead = (their[None, :] > values[:, None]) | earlier
        ranks += tl.sum(ahead.to(tl.int32), 1)
        before += tl.sum(tl.where(ahead, weight[None, :], 0.0), 1).to(tl.float64)
    alive = (at < n_found) & (ranks < tl.where(top_k == 0, capacity, top_k)) & (values >= best + min_depth)
    listed = tl.sum(tl.where(alive, weights, 0.0).to(tl.float64), 0)
    mass = tl.where(is_open != 0, total, listed)
    sure = (is_open == 0) | (listed >= top_p * mass)
    alive = alive & (before < tl.where(top_p >= 1, float("inf"), top_p * mass))
    target = number * tl.sum(tl.where(alive, weights, 0.0).to(tl.float64), 0)
    rank = tl.max(tl.where(alive & (before <= target), ranks, 0), 0)
    ids = tl.load(ids_in + at, mask=at < n_found, other=0)
    return tl.where(sure, tl.sum(tl.where((at < n_found) & (ranks == rank), ids, 0), 0), -1)


# ---- one sample -------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["n"])
def choose_kernel(
    sampled, last_tokens, best, best_at, totals, n_broken, group_best, values_out, ids_out, list_out, rows, logits,
    masks,
    n, stride, n_vocab, n_groups, n_tiles, n_words,
    group: constexpr, tile_groups: constexpr, tiles: constexpr, groups_block: constexpr,
    capacity: constexpr, first_groups: constexpr,
):  # fmt: skip
    """One program per sample: joins what its tiles found, then takes the best token or draws."""
    row = tl.program_id(0)
    kind, top_k, mask_row = field(rows, n, 4), field(rows, n, 5), field(rows, n, 6)
    inverse, min_depth, top_p = float_field(rows, n, 7), float_field(rows, n, 8), float_field(rows, n, 9)
    at = tl.arange(0, tiles)
    here = at < tl.where(kind == 3, 0, n_tiles)
    tops = tl.load(best + row * n_tiles + at, mask=here, other=float("-inf"))
    top = tl.max(tops, 0)
    tokens = tl.load(best_at + row * n_tiles + at, mask=here, other=n_vocab)
    token = tl.min(tl.where(tops == top, tokens, n_vocab), 0)
    broken = tl.sum(tl.load(n_broken + row * n_tiles + at, mask=here, other=0), 0)
    token = tl.where(broken > 0, -1, tl.where(top == float("-inf"), -2, token))
    x = logits + field(rows, n, 3).to(tl.int64) * stride
    if (token >= 0) & ((kind == 1) | (kind == 2)):
        weights = tl.load(totals + row * n_tiles + at, mask=here, other=0.0) * tl.exp((tops - top) * inverse)
        tile_weights = tl.where(tops == float("-inf"), 0.0, weights).to(tl.float64)
        number = uniform(rows, n)
        if kind == 1:
            token = draw_from_all(x, tile_weights, top, token, inverse, number, masks, mask_row, n_vocab, n_groups,
                                  n_words, group, tile_groups)  # fmt: skip
        else:
            total = tl.sum(tile_weights, 0)
            groups = tl.arange(0, groups_block)
            bests = tl.load(
                group_best + row.to(tl.int64) * n_groups + groups, mask=groups < n_groups, other=float("-inf")
            )
            has_min_p = min_depth > float("-inf")
            floor = -3.4028234663852886e38
            if (top_k > 0) | (has_min_p == 0):
                floor = group_floor(bests, tl.where(top_k > 0, top_k, first_groups), top)
            floor = tl.maximum(floor, top + min_depth)
            # Where no candidate can be missing, the choice is closed: only the k best, or only those that min-p keeps.
            is_open = ((top_k == 0) & (has_min_p == 0)).to(tl.int32)
            place = row.to(tl.int64)
            n_found = gather_candidates(
                values_out + place * capacity, ids_out + place * capacity, list_out + place * n_groups, bests, floor, x,
                masks, mask_row, n_vocab, n_words, group, groups_block, capacity, 32,
            )  # fmt: skip
            found = -1
            if n_found <= capacity:
                found = draw_from_candidates(
                    values_out + place * capacity, ids_out + place * capacity, n_found, top, inverse, top_k, min_depth,
                    top_p, total, is_open, number, capacity, 16,
                )  # fmt: skip
            if found < 0:
                found = token_of_whole_row(
                    x, masks, mask_row, n_vocab, n_words, top, inverse, top_k, min_depth, top_p, total, number,
                )  # fmt: skip
            token = found
    if kind != 3:
        tl.store(sampled + row, token)
        tl.store(last_tokens + field(rows, n, 10), token)


# ---- edits -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["n_edits"])
def edit_kernel(logits, saved, sources, ids, before, penalty, after, stride, n_edits, block: constexpr):
    """Replace single logits and keep what was there."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    here = at < n_edits
    place = tl.load(sources + at, mask=here, other=0).to(tl.int64) * stride + tl.load(ids + at, mask=here, other=0)
    old = tl.load(logits + place, mask=here, other=0.0)
    tl.store(saved + at, old, mask=here)
    add = tl.load(before + at, mask=here, other=0.0)
    rate = tl.load(penalty + at, mask=here, other=1.0)
    last = tl.load(after + at, mask=here, other=0.0)
    value = old.to(tl.float32) + add
    value = tl.where(value > 0, tl.div_rn(value, rate), value * rate) + last
    banned = (add == float("-inf")) | (last == float("-inf"))
    tl.store(logits + place, tl.where(banned, float("-inf"), value).to(logits.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["n_edits"])
def restore_kernel(logits, saved, sources, ids, stride, n_edits, block: constexpr):
    """Put back what `edit_kernel` replaced."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    here = at < n_edits
    place = tl.load(sources + at, mask=here, other=0).to(tl.int64) * stride + tl.load(ids + at, mask=here, other=0)
    tl.store(logits + place, tl.load(saved + at, mask=here, other=0.0), mask=here)
