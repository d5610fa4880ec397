"""Weights of recurrent layers, however files store them."""

from math import prod

import numpy as np

from tahr.backends.api import Vector
from tahr.models.parts.weights import Weights


def taps(w: Weights, channels: int, kernel: int) -> Vector:
    """The convolution, tap after tap; checkpoints have it channel after channel, perhaps with an axis of one."""
    name = "conv1d.weight"
    stored = w.tensors[w.prefix + name].shape if w.has(name) else ()
    values = w.find(name, (channels, 1, kernel) if len(stored) == 3 else (channels, kernel)).dense()
    return w.upload(np.ascontiguousarray(values.reshape(channels, kernel).T).reshape(-1))


def decay(w: Weights, n: int) -> Vector:
    """Below zero: stored so in GGUF files, as the logarithm of its opposite in checkpoints."""
    return w.upload(flat(w, "A", n) if w.has("A") else -np.exp(flat(w, "A_log", n)))


def flat(w: Weights, name: str, n: int) -> np.ndarray:
    """`n` numbers, whatever axes of one or groups they are stored with."""
    stored = w.tensors[w.prefix + name].shape if w.has(name) else ()
    return w.find(name, stored if prod(stored) == n else (n,)).dense().reshape(-1)
