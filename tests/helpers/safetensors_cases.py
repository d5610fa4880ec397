"""Tensors of every kind that a safetensors file holds."""

import numpy as np

VALUES = np.array([[0.5, -1.0, 2.0], [3.0, 0.25, -8.0]], np.float32)


BF16 = (VALUES.view(np.uint32) >> 16).astype("<u2")


TENSORS = {
    "a": ("F32", (2, 3), VALUES.astype("<f4").tobytes()),
    "b": ("F16", (2, 3), VALUES.astype("<f2").tobytes()),
    "c": ("BF16", (2, 3), BF16.tobytes()),
    "d": ("I64", (2,), np.array([5, -5], "<i8").tobytes()),
    "e": ("F32", (), np.array([7.5], "<f4").tobytes()),
    "f": ("F32", (0, 4), b""),
}
