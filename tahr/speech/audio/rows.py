"""The rows that an encoder of recordings reads, of log-mel frames."""

import numpy as np

from tahr.speech.audio.limits import Samples

N_SIDE = 5  # frames of a row
STEP = 2  # frames between two rows


def input_rows(frames: Samples) -> Samples:
    """A row for every other of `frames` [n_frames, n_bins]: that frame, two before it and two behind, side by side,
    with zeros beyond the ends; then 1 in the first row, 0 in others."""
    n_frames, n_bins = frames.shape
    before = N_SIDE // 2
    padded = np.zeros((n_frames + 2 * before, n_bins), np.float32)
    padded[before:-before] = frames
    rows = np.lib.stride_tricks.sliding_window_view(padded.reshape(-1), N_SIDE * n_bins)[:: STEP * n_bins]
    is_first = np.zeros((n_frames // STEP, 1), np.float32)
    is_first[0] = 1
    found: Samples = np.concatenate([rows[: n_frames // STEP], is_first], axis=1)
    return found
