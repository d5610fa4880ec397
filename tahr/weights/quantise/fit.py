"""Finding the scale of a group of values: try some, keep the one whose codes leave the smallest squared error.

Groups are the columns of `[group, n]` arrays. For given codes the best scale is known (least squares), so a try is a
way of rounding: how far the largest value is stretched over the codes.
"""

from collections.abc import Callable, Iterable

import numpy as np

from tahr.weights.dequantise.bits import Floats
from tahr.weights.quantise.bits import inverse, whole

Levels = Callable[[Floats], Floats]  # scaled values -> the levels that codes stand for


def largest(x: Floats) -> Floats:
    """The value of each column that is furthest from zero, with its sign."""
    found: Floats = np.take_along_axis(x, np.abs(x).argmax(axis=0, keepdims=True), axis=0)[0]
    return found


def fit_scale(x: Floats, reach: Iterable[float], levels: Levels) -> Floats:
    """Scales with x close to scale * levels(x / scale); each try puts the largest value at one number of `reach`.

    Values count by their squares: large weights matter more.
    """
    weights = x * x
    weighted = weights * x
    per_level = inverse(largest(x))
    best = np.zeros(x.shape[1], np.float32)
    scale = np.zeros(x.shape[1], np.float32)
    for at in reach:
        level = levels(x * (np.float32(at) * per_level))
        match = (weighted * level).sum(axis=0)
        size = (weights * level * level).sum(axis=0)
        gain = match * match * inverse(size)  # share of the squares that this try explains
        better = gain > best
        best = np.where(better, gain, best)
        scale = np.where(better, match * inverse(size), scale)
    return scale


def fit_scale_and_offset(x: Floats, weights: Floats, highest: int, stretch: Iterable[float]) -> tuple[Floats, Floats]:
    """Scales and offsets, neither negative, with x close to scale * code - offset for codes from 0 to `highest`."""
    low = np.minimum(x.min(axis=0), 0)
    span = x.max(axis=0) - low
    sum_w = weights.sum(axis=0)
    sum_x = (weights * x).sum(axis=0)
    sum_xx = (weights * x * x).sum(axis=0)
    weighted = weights * x
    raised = x - low
    best = np.full(x.shape[1], np.inf, np.float32)
    scale = span / np.float32(highest)
    offset = -low
    for extra in (0.0, *stretch):
        codes = whole(raised * (np.float32(highest + extra) * inverse(span)), 0, highest)
        with_codes = weights * codes
        sum_l = with_codes.sum(axis=0)
        sum_ll = (with_codes * codes).sum(axis=0)
        sum_xl = (weighted * codes).sum(axis=0)
        slope, start = _line(sum_w, sum_x, sum_l, sum_ll, sum_xl)
        error = sum_xx + slope * (slope * sum_ll + 2 * (start * sum_l - sum_xl)) + start * (start * sum_w - 2 * sum_x)
        better = (error < best) & (sum_ll > 0)
        best = np.where(better, error, best)
        scale = np.where(better, slope, scale)
        offset = np.where(better, -start, offset)
    return scale, offset


def _line(sum_w: Floats, sum_x: Floats, sum_l: Floats, sum_ll: Floats, sum_xl: Floats) -> tuple[Floats, Floats]:
    """The weighted straight line through (code, value) that does not start above zero, nor falls."""
    spread = inverse(np.maximum(sum_w * sum_ll - sum_l * sum_l, 0))
    slope = (sum_w * sum_xl - sum_x * sum_l) * spread
    start = (sum_ll * sum_x - sum_l * sum_xl) * spread
    through_zero = (start > 0) | (spread == 0)
    slope = np.where(through_zero, sum_xl * inverse(sum_ll), slope)
    return np.maximum(slope, 0), np.where(through_zero, np.float32(0), start)
