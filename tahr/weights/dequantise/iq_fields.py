"""Fields that the IQ formats share."""

import numpy as np
from numpy.typing import NDArray

from tahr.weights.dequantise.bits import Bytes, Floats


def odd(scales: NDArray[np.integer]) -> Floats:
    """Scales 1, 3, 5, ... from their numbers."""
    odd: Floats = np.float32(1) + 2 * scales
    return odd


def with_high_bits(low: Bytes, high: NDArray[np.integer]) -> NDArray[np.integer]:
    """Indices of codewords, the bits above eight of which were stored apart."""
    return low | high.astype(np.uint16) << 8
