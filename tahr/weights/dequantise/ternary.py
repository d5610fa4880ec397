"""Dequantisers of the ternary formats."""

import numpy as np

from tahr.weights.dequantise.bits import Bytes, Floats, halves, less, unpack


def tq1_0(blocks: Bytes) -> Floats:
    # 32 bytes of five trits, 16 bytes of five, 4 bytes of four.
    first = _trits(blocks[:, :32], 5)
    second = _trits(blocks[:, 32:48], 5)
    third = _trits(blocks[:, 48:52], 4)
    scale = halves(blocks[:, 52:])
    codes: Floats = np.concatenate([first, second, third], axis=1)
    return scale * codes


def _trits(packed: Bytes, n_trits: int) -> Floats:
    # A byte is a fraction of 256 in base 3: multiplying (modulo 256) by 3^k brings trit k to the front.
    powers = np.array([3**k for k in range(n_trits)], np.uint8)
    front = packed[:, None, :] * powers[:, None]
    trits = front.astype(np.uint16) * 3 >> 8
    codes = trits.reshape(len(packed), -1)
    return less(codes, 1)


def tq2_0(blocks: Bytes) -> Floats:
    codes = unpack(blocks[:, :64], 2, 32)
    scale = halves(blocks[:, 64:])
    return scale * less(codes, 1)
