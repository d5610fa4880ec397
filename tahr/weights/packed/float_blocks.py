"""8-bit floats as blocks of 128 columns, so that a group's scale is repeated in each of its blocks."""

import numpy as np

from tahr.weights.formats import FORMATS
from tahr.weights.packed.groups import Bytes, Floats
from tahr.weights.tensor import HostTensor

FLOAT_BLOCK = 128


def float_blocks(name: str, codes: Bytes, scales: Floats, group: int) -> HostTensor:
    """e4m3 floats [n_rows, n_cols] with a scale for every `group` columns: FP8_128 blocks, or dense f16 if none fit."""
    n_rows, n_cols = codes.shape
    if n_cols % FLOAT_BLOCK or group % FLOAT_BLOCK:
        values = FORMATS["F8_E4M3"].dequantise(codes.reshape(-1, 1)).reshape(codes.shape)
        dense = (values * scales[:, np.arange(n_cols) // group]).astype(np.float16)
        return HostTensor(name, FORMATS["F16"], (n_rows, n_cols), dense.reshape(-1).view(np.uint8))
    form = FORMATS["FP8_128"]
    n_blocks = n_cols // FLOAT_BLOCK
    blocks = np.empty((n_rows, n_blocks, form.block_bytes), np.uint8)
    of_blocks = scales[:, np.arange(n_blocks) * FLOAT_BLOCK // group].astype("<f4")
    blocks[:, :, :4] = np.ascontiguousarray(of_blocks).view(np.uint8).reshape(n_rows, n_blocks, 4)
    blocks[:, :, 4:] = codes.reshape(n_rows, n_blocks, FLOAT_BLOCK)
    return HostTensor(name, form, (n_rows, n_cols), blocks.reshape(-1))
