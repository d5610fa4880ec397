"""Ternary checkpoints: four codes of 0, 1 and 2 (for -1, 0 and 1) per byte, and one factor per matrix."""

import numpy as np

from tahr.weights.formats import FORMATS
from tahr.weights.packed.groups import Bytes
from tahr.weights.packed.parts import Parts, damaged
from tahr.weights.tensor import HostTensor

BLOCK = 256  # values of a TQ2_0 block


def ternary(name: str, parts: Parts, divides: bool) -> HostTensor:
    """A matrix of packed codes [n_rows / 4, n_cols] as TQ2_0; `divides`: the factor is stored inverted."""
    stored = parts["weight"]
    factor = parts.get("weight_scale")
    if factor is None or factor.shape not in ((), (1,)) or len(stored.shape) != 2:
        raise damaged(name, "it is not a matrix with one factor")
    scale = float(factor.dense().reshape(-1)[0])
    if not np.isfinite(scale) or (divides and scale == 0):
        raise damaged(name, f"its factor is {scale}")
    packed = stored.data.reshape(stored.shape)
    scale = 1 / scale if divides else scale
    codes = np.concatenate([packed >> 2 * i & 3 for i in range(4)])
    if codes.max(initial=0) > 2:
        raise damaged(name, "a code stands for none of -1, 0 and 1")
    if codes.shape[1] % BLOCK or not 0 < abs(scale) < 65504:
        values = ((codes.astype(np.float32) - 1) * np.float32(scale)).reshape(-1).view(np.uint8)
        return HostTensor(name, FORMATS["F32"], codes.shape, values)
    return HostTensor(name, FORMATS["TQ2_0"], codes.shape, blocks(codes, scale))


def blocks(codes: Bytes, scale: float) -> Bytes:
    """Two halves of 128 codes: a byte holds those of four runs of 32, the first in its lowest bits."""
    runs = codes.reshape(-1, 2, 4, 32)
    packed = (runs[:, :, 0] | runs[:, :, 1] << 2 | runs[:, :, 2] << 4 | runs[:, :, 3] << 6).reshape(len(runs), 64)
    factor = np.tile(np.array([scale], np.float16).view(np.uint8), (len(runs), 1))
    return np.concatenate([packed, factor], axis=1).reshape(-1)
