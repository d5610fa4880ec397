"""Finds the token of a sample in its whole row, by searching for border values: for choices too wide to be listed.

Tokens are ordered by falling logit, then by rising id. A border is the logit at which the count or the weight of the
tokens from the best down reaches a goal. Each pass over the row narrows the interval of possible borders to a ninth.
"""

import triton
import triton.language as tl
from triton.language import constexpr

BLOCK: constexpr = constexpr(1024)  # tokens of a pass at a time
PROBES: constexpr = constexpr(8)  # borders tried in one pass
ALL_TIES: constexpr = constexpr(1 << 30)


@triton.jit
def sorted_key(values):
    """An integer that sorts as the logit does; -0 and 0 are equal."""
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def logit_of(key):
    """The logit of a key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def load_block(x, begin, masks, mask_row, n_vocab, n_words):
    """The next logits of a row; -inf where there is no token or the mask bans it."""
    tokens = begin + tl.arange(0, BLOCK)
    inside = tokens < n_vocab
    values = tl.load(x + tokens, mask=inside, other=float("-inf")).to(tl.float32)
    at = masks + tl.maximum(mask_row, 0).to(tl.int64) * n_words + tokens // 32
    word = tl.load(at, mask=tokens < tl.where(mask_row >= 0, n_vocab, 0), other=-1)
    return tl.where(((word >> (tokens % 32)) & 1) != 0, values, float("-inf"))


@triton.jit
def reach(x, masks, mask_row, n_vocab, n_words, best, inverse, probes, by_count):
    """The count or the weight of the tokens whose keys are at least each probe."""
    sums = tl.zeros((BLOCK, PROBES), tl.float32)
    for begin in range(0, n_vocab, BLOCK):
        values = load_block(x, begin, masks, mask_row, n_vocab, n_words)
        weights = tl.where(by_count, (values > float("-inf")).to(tl.float32), tl.exp((values - best) * inverse))
        above = sorted_key(values)[:, None].to(tl.int64) >= probes[None, :]
        sums += tl.where(above, weights[:, None], 0.0)
    return tl.sum(sums.to(tl.float64), 0)


@triton.jit
def border(x, masks, mask_row, n_vocab, n_words, best, inverse, goal, by_count, strict):
    """The border where a goal is reached (or, if strict, passed): its key, and the sum over all tokens before it."""
    low = sorted_key(tl.full((), -3.4028234663852886e38, tl.float32)).to(tl.int64)
    high = sorted_key(best).to(tl.int64) + 1
    before = tl.full((), 0.0, tl.float64)
    at = tl.arange(0, PROBES)
    while high - low > 1:
        step = tl.maximum((high - low) // (PROBES + 1), 1)
        sums = reach(x, masks, mask_row, n_vocab, n_words, best, inverse, low + step * (at + 1), by_count)
        reached = (low + step * (at + 1) < high) & tl.where(strict, sums > goal, sums >= goal)
        n_reached = tl.sum(reached.to(tl.int32), 0)
        next_high = low + step * (n_reached + 1)
        narrower = (n_reached < PROBES) & (next_high < high)
        before = tl.where(narrower, tl.sum(tl.where(at == n_reached, sums, 0.0), 0), before)
        high = tl.where(narrower, next_high, high)
        low = low + step * n_reached
    return low.to(tl.int32), before


@triton.jit
def nth_of_value(x, masks, mask_row, n_vocab, n_words, key, nth):
    """The id of the nth token (from 0) that has the logit of a key."""
    seen, found = 0, -1
    for begin in range(0, n_vocab, BLOCK):
        equal = sorted_key(load_block(x, begin, masks, mask_row, n_vocab, n_words)) == key
        counts = seen + tl.cumsum(equal.to(tl.int32), 0)
        hit = equal & (counts == nth + 1)
        found = tl.maximum(found, tl.max(tl.where(hit, begin + tl.arange(0, BLOCK), -1), 0))
        seen += tl.sum(equal.to(tl.int32), 0)
    return found


@triton.jit
def token_of_whole_row(
    x, masks, mask_row, n_vocab, n_words, best, inverse, top_k, min_depth, top_p, total, number,
):  # fmt: skip
    """Apply top-k, min-p and top-p to a row and draw: what is kept is all above a border and some ties at it.

    The borders of top-k, of top-p and of the draw are searched for in a loop, so that the search is compiled once.
    """
    cut = sorted_key(tl.full((), -3.4028234663852886e38, tl.float32))
    key, before, at = cut, tl.full((), 0.0, tl.float64), tl.arange(0, PROBES)
    ties, mass, goal = tl.full((), ALL_TIES, tl.int32), total, top_k.to(tl.float64)
    for stage in range(3):
        if stage == 1:
            least = sorted_key(best + min_depth)
            if (min_depth > float("-inf")) & (least > cut):
                cut, ties = least, tl.full((), ALL_TIES, tl.int32)
            if (top_k > 0) | (min_depth > float("-inf")):
                probes = cut.to(tl.int64) + tl.where(at == 0, 0, 1)
                sums = reach(x, masks, mask_row, n_vocab, n_words, best, inverse, probes, False)
                above = tl.sum(tl.where(at == 1, sums, 0.0), 0)
                partly = above + ties * tl.exp((logit_of(cut) - best) * inverse).to(tl.float64)
                mass = tl.where(ties == ALL_TIES, tl.sum(tl.where(at == 0, sums, 0.0), 0), partly)
        if stage > 0:
            goal = tl.where(stage == 1, top_p.to(tl.float64), number) * mass
        if (stage == 2) | ((stage == 0) & (top_k > 0)) | ((stage == 1) & (top_p < 1)):
            key, before = border(
                x, masks, mask_row, n_vocab, n_words, best, inverse, goal, stage == 0, stage == 2
            )  # fmt: skip
            if stage == 0:
                cut, ties = key, (top_k - before).to(tl.int32)
            if stage == 1:
                weight = tl.exp((logit_of(key) - best) * inverse).to(tl.float64)
                n_kept = tl.maximum(tl.ceil((goal - before) / weight).to(tl.int32), 1)
                ties = tl.where(key > cut, n_kept, tl.minimum(ties, n_kept))
                cut = tl.maximum(cut, key)
                mass = before + ties * weight
    weight = tl.exp((logit_of(key) - best) * inverse).to(tl.float64)
    nth = tl.maximum(tl.floor((goal - before) / weight).to(tl.int32), 0)
    nth = tl.where(key == cut, tl.minimum(nth, ties - 1), nth)
    token, turn = -1, 0
    while (token < 0) & (turn < 2):  # rounding may leave no such token: then the first of that value
        token = nth_of_value(x, masks, mask_row, n_vocab, n_words, key, tl.where(turn == 0, nth, 0))
        turn += 1
    return token
