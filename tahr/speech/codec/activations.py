"""Numbers through functions, one by one."""

import numpy as np

from tahr.speech.codec.tensors import Floats, Parts

LEAST = np.float32(1e-9)
# Abramowitz and Stegun 7.1.26: the error function to within 1.5e-7.
ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
ERF_RATE = 0.3275911


class Snake:
    """x + sin(a x)^2 / b, by channel."""

    def __init__(self, parts: Parts, width: int):
        self.rate = np.exp(parts.get("alpha", width))
        self.height = 1 / (np.exp(parts.get("beta", width)) + LEAST)

    def __call__(self, x: Floats) -> Floats:
        waves = np.sin(x * self.rate)
        waves *= waves
        waves *= self.height
        waves += x
        return waves


def gelu(x: Floats) -> Floats:
    """x * (1 + erf(x / sqrt 2)) / 2."""
    z = np.abs(x).astype(np.float64) * 0.5**0.5
    t = 1 / (1 + ERF_RATE * z)
    inner = np.polyval([*ERF, 0.0], t)
    erf = np.copysign(1 - inner * np.exp(-z * z), x)
    found: Floats = (0.5 * x * (1 + erf)).astype(np.float32)
    return found


def silu(x: Floats) -> Floats:
    with np.errstate(over="ignore"):  # far below zero the quotient is zero, as it should be
        found: Floats = x / (1 + np.exp(-x))
    return found


def rms_norm(x: Floats, gain: Floats, eps: float) -> Floats:
    found: Floats = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(eps)) * gain
    return found


def layer_norm(x: Floats, gain: Floats, bias: Floats, eps: float) -> Floats:
    centred = x - x.mean(axis=-1, keepdims=True)
    return rms_norm(centred, gain, eps) + bias
