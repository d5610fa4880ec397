"""Norms, products and activations of plain arrays."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tahr.backends.api import INT8_BLOCK, Activation, Floats, Linear

F32 = np.float32


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """Dequantised values, and whether activations must be rounded to int8 before they meet them."""

    values: Floats
    int8: bool


def rms_norm(x: Floats, gain: Floats, eps: float) -> Floats:
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    root = np.sqrt(mean + F32(eps))
    normed: Floats = x / root * gain
    return normed


def multiply(x: Floats, matrix: DenseMatrix, index: int | None = None) -> Floats:
    """x @ w.T for a matrix or one of a stack, summed in f64 so that the oracle's own rounding decides no comparison."""
    w = matrix.values if index is None else matrix.values[index]
    x = round_to_int8(x) if matrix.int8 else x
    wide_x = x.astype(np.float64)
    wide_w = w.astype(np.float64)
    return (wide_x @ wide_w.T).astype(F32)


def multiply_by(x: Floats, linear: Linear) -> Floats:
    """A linear with its bias."""
    y = multiply(x, linear.weight.data)
    return y if linear.bias is None else y + linear.bias.data


def multiply_by_one(x: Floats, stack: Linear, index: int) -> Floats:
    """One linear of a stack, whose biases follow each other."""
    y = multiply(x, stack.weight.data, index)
    if stack.bias is None:
        return y
    begin = index * stack.weight.n_rows
    bias: Floats = stack.bias.data[begin : begin + stack.weight.n_rows]
    return y + bias


def round_to_int8(x: Floats) -> Floats:
    """x after a trip through int8 blocks."""
    n_blocks = x.shape[1] // INT8_BLOCK
    blocks = x.reshape(len(x), n_blocks, INT8_BLOCK)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    step = largest / F32(127)
    normal = ~(step < np.finfo(F32).tiny)
    inverse = inverse_where(normal, step)
    rounded: Floats = np.rint(blocks * inverse) * step
    return rounded.reshape(x.shape)


def inverse_where(counts: np.ndarray, step: Floats) -> Floats:
    """1 / step, and 0 where it does not count."""
    zeros = np.zeros_like(step)
    return np.divide(F32(1), step, out=zeros, where=counts)


def softmax(x: Floats) -> Floats:
    p = np.exp(x - x.max())
    shares: Floats = p / p.sum()
    return shares


def sigmoid(x: Floats) -> Floats:
    y = 1 / (1 + np.exp(-x))
    return y.astype(F32)


def silu(x: Floats) -> Floats:
    with np.errstate(over="ignore"):  # far below zero the quotient is zero, as it should be
        y: Floats = x / (1 + np.exp(-x))
    return y


def gelu_tanh(x: Floats) -> Floats:
    scale = F32(math.sqrt(2 / math.pi))
    cubic = x + F32(0.044715) * x**3
    y: Floats = 0.5 * x * (1 + np.tanh(scale * cubic))
    return y


def gelu(x: Floats) -> Floats:
    erf = np.vectorize(math.erf, otypes=[F32])
    scaled = x / F32(math.sqrt(2))
    y: Floats = 0.5 * x * (1 + erf(scaled))
    return y


def quick_gelu(x: Floats) -> Floats:
    return x * sigmoid(F32(1.702) * x)


def relu2(x: Floats) -> Floats:
    positive = np.maximum(x, 0)
    return np.square(positive)


def clamped_swiglu(gate: Floats, up: Floats) -> Floats:
    g = np.minimum(gate, F32(7))
    u = np.clip(up, F32(-7), F32(7))
    y: Floats = g * sigmoid(F32(1.702) * g) * (u + F32(1))
    return y


ACTIVATIONS: dict[Activation, Callable[[Floats], Floats]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
    "sigmoid": sigmoid,
    "relu2": relu2,
    "quick_gelu": quick_gelu,
}


def activate(gate: Floats, up: Floats | None, act: Activation) -> Floats:
    """act(gate) * up, or act(gate) alone."""
    if act == "clamped_swiglu":
        assert up is not None
        return clamped_swiglu(gate, up)
    activated = ACTIVATIONS[act](gate)
    return activated if up is None else activated * up
