"""Causal convolutions over rows of channels, which keep the rows that later ones read."""

import numpy as np

from tahr.speech.codec.tensors import Floats, Parts

ConvState = list[Floats]  # rows before those to come, by layer in the order in which layers run


class CausalConv:
    """out[t] = bias + the sum over taps i of x[t - (n - 1 - i) * dilation] @ taps[i]; zeros stand before the first."""

    def __init__(self, taps: Floats, bias: Floats, dilation: int = 1):
        self.taps = taps  # [n, n_in, n_out]
        self.bias = bias
        self.dilation = dilation
        self.n_kept = (len(taps) - 1) * dilation

    def start(self) -> Floats:
        return np.zeros((self.n_kept, self.taps.shape[1]), np.float32)

    def run(self, x: Floats, before: Floats) -> tuple[Floats, Floats]:
        """The rows of x, and what is to be kept of them."""
        n = len(x)
        whole = np.concatenate([before, x]) if self.n_kept else x
        out = np.broadcast_to(self.bias, (n, len(self.bias))).copy()
        for i, tap in enumerate(self.taps):
            begin = i * self.dilation
            out += whole[begin : begin + n] @ tap
        return out, whole[len(whole) - self.n_kept :].copy()


def conv(parts: Parts, n_out: int, n_in: int, n_taps: int, dilation: int = 1) -> CausalConv:
    """A convolution as files have it: [n_out, n_in, n_taps]."""
    kernel = parts.get("weight", n_out, n_in, n_taps)
    return CausalConv(np.ascontiguousarray(kernel.transpose(2, 1, 0)), parts.get("bias", n_out), dilation)


class Upsampling:
    """A transposed convolution whose kernel is some strides long, cut at its end: every row becomes `stride` rows."""

    def __init__(self, parts: Parts, n_in: int, n_out: int, n_taps: int, stride: int):
        kernel = parts.get("weight", n_in, n_out, n_taps * stride)
        # The first stride of the kernel is for the last row.
        strides = kernel.reshape(n_in, n_out, n_taps, stride)[:, :, ::-1]
        taps = np.ascontiguousarray(strides.transpose(2, 0, 3, 1)).reshape(n_taps, n_in, stride * n_out)
        self.conv = CausalConv(taps, np.tile(parts.get("bias", n_out), stride))
        self.n_out = n_out

    def start(self) -> Floats:
        return self.conv.start()

    def run(self, x: Floats, before: Floats) -> tuple[Floats, Floats]:
        out, kept = self.conv.run(x, before)
        return out.reshape(-1, self.n_out), kept


class DepthwiseConv:
    """A causal convolution of each channel by itself."""

    def __init__(self, parts: Parts, width: int, n_taps: int):
        self.taps = np.ascontiguousarray(parts.get("weight", width, 1, n_taps)[:, 0].T)
        self.bias = parts.get("bias", width)

    def start(self) -> Floats:
        return np.zeros((len(self.taps) - 1, len(self.bias)), np.float32)

    def run(self, x: Floats, before: Floats) -> tuple[Floats, Floats]:
        n = len(x)
        whole = np.concatenate([before, x])
        out = np.broadcast_to(self.bias, x.shape).copy()
        for i, tap in enumerate(self.taps):
            out += whole[i : i + n] * tap
        return out, whole[n:].copy()
