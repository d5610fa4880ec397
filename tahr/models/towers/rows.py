"""The rows a tower reads, from the patches of an image."""

import numpy as np

from tahr.backends.api import Floats, Ints
from tahr.models.config.record import ChatVisionConfig, VisionConfig


def input_rows(patches: Floats, n_high: int, n_wide: int, cfg: VisionConfig) -> Floats:
    """Rows of pixels, and a row of zeros for the class token; or beside the pixels each patch's shares of positions."""
    if not cfg.resized:
        n_more = cfg.n_positions - n_high * n_wide
        return np.concatenate([patches, np.zeros((n_more, patches.shape[1]), np.float32)])
    side = round(cfg.n_positions**0.5)
    across = shares(n_wide, side)
    down = shares(n_high, side)
    both = np.einsum("ya,xb->yxab", down, across).reshape(n_high * n_wide, side * side)
    return np.concatenate([patches, both], axis=1)


def shares(n: int, n_stored: int) -> Floats:
    """How much of each of `n_stored` neighbours goes into each of n, when they are resized with a linear filter that
    widens where there are fewer: [n, n_stored]."""
    scale = n_stored / n
    reach = max(scale, 1.0)
    centres = (np.arange(n) + 0.5) * scale
    places = np.arange(n_stored) + 0.5
    weights = np.maximum(0.0, 1 - np.abs(places - centres[:, None]) / reach)
    # Neighbours that the filter only touches do not count.
    first = np.maximum((centres - reach + 0.5).astype(int), 0)
    last = np.minimum((centres + reach + 0.5).astype(int), n_stored)
    inside = (np.arange(n_stored) >= first[:, None]) & (np.arange(n_stored) < last[:, None])
    kept = np.where(inside, weights, 0.0)
    normed: Floats = (kept / kept.sum(axis=1, keepdims=True)).astype(np.float32)
    return normed


def merged_rows(patches: Floats, n_high: int, n_wide: int, cfg: ChatVisionConfig) -> Floats:
    """Rows of pixels, square by square, and beside them each patch's shares of positions, or behind them that of the
    class token, as the tower has them."""
    if cfg.has_class:
        return np.concatenate([patches, np.zeros((1, patches.shape[1]), np.float32)])
    if cfg.side or not cfg.n_positions:
        return patches
    side = round(cfg.n_positions**0.5)
    across = corner_shares(n_wide, side)
    down = corner_shares(n_high, side)
    high, wide = places_of(n_high, n_wide, cfg.merge)
    both = np.einsum("na,nb->nab", down[high], across[wide]).reshape(len(high), -1)
    return np.concatenate([patches, both], axis=1)


def places_of(n_high: int, n_wide: int, merge: int) -> Ints:
    """The line and the column of each patch, square by square: [2, n]."""
    grid = np.indices((n_high, n_wide), np.int32)
    squares = grid.reshape(2, n_high // merge, merge, n_wide // merge, merge).transpose(0, 1, 3, 2, 4)
    places: Ints = np.ascontiguousarray(squares).reshape(2, -1)
    return places


def corner_shares(n: int, n_stored: int) -> Floats:
    """How much of each of `n_stored` neighbours goes into each of n, of which the first and the last are those of the
    ends: [n, n_stored]."""
    last = n_stored - 1
    at = np.linspace(0, last, n, dtype=np.float32)
    first = at.astype(np.int32)
    behind = at - first
    rows = np.arange(n)
    weights = np.zeros((n, n_stored), np.float32)
    weights[rows, first] = 1 - behind
    weights[rows, np.minimum(first + 1, last)] += behind
    return weights


def windows_of(n_high: int, n_wide: int, side: int) -> tuple[Ints, Ints]:
    """The squares of an image window by window, and how many each window has; those at the end may be smaller."""
    lines, columns = np.divmod(np.arange(n_high * n_wide, dtype=np.int32), n_wide)
    of_square = lines // side * n_wide + columns // side
    order: Ints = np.argsort(of_square, kind="stable").astype(np.int32)
    _, n_squares = np.unique(of_square, return_counts=True)
    return order, n_squares.astype(np.int32)
