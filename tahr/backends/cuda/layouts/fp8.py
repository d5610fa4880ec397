"""Matrices of 8-bit floats (e4m3): float matrices rounded when a model is loaded, or those of fp8 checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tahr.errors import QuantError
from tahr.weights.tensor import HostTensor

LARGEST = 448.0  # the largest e4m3 number
NAN = 0x7F  # the bits of an e4m3 NaN but for its sign
GROUP = 128  # columns with one scale, where a row has several
CAPABILITY = (8, 9)  # the first cards that convert e4m3 numbers
CHUNK = 1 << 26  # bytes that travel at a time


@dataclass(frozen=True, eq=False, slots=True)
class Fp8Matrix:
    """A matrix `[n_rows, n_cols]`: row r is values[r] * scales[r]; `dtype` is what it stands for.

    Scales are f32 [n_rows, 1], or [n_rows, n_cols / GROUP]. A matrix with several scales in a row has a dense copy for
    larger batches, where there is memory for it.
    """

    values: torch.Tensor  # float8_e4m3fn
    scales: torch.Tensor
    dtype: torch.dtype = torch.bfloat16
    copy: torch.Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def n_bytes(self) -> int:
        n_copied = 0 if self.copy is None else self.copy.numel() * self.copy.element_size()
        return int(self.values.numel() + 4 * self.scales.numel() + n_copied)

    @property
    def grouped(self) -> bool:
        return int(self.scales.shape[1]) > 1

    def rows(self, begin: int, end: int) -> "Fp8Matrix":
        """Some of its rows."""
        copy = None if self.copy is None else self.copy[begin:end]
        return Fp8Matrix(self.values[begin:end], self.scales[begin:end], self.dtype, copy)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        n_rows, n_scales = self.scales.shape
        blocks = self.values.to(dtype).view(n_rows, n_scales, -1)
        return (blocks * self.scales[:, :, None]).to(dtype).view(self.shape)


def fp8_matrix(values: torch.Tensor) -> Fp8Matrix:
    """A float matrix rounded to e4m3, the largest of each row to the largest there is."""
    most = values.abs().amax(1).float()
    scales = torch.where(most > 0, most / LARGEST, 1.0)
    rounded = (values.float() / scales[:, None]).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return Fp8Matrix(rounded, scales[:, None], values.dtype if values.dtype != torch.float32 else torch.bfloat16)


def stored_fp8(tensor: HostTensor, device: torch.device) -> Fp8Matrix:
    """A matrix of FP8_128 blocks, with one scale to a row where all blocks of a row agree."""
    n_rows, n_cols = tensor.shape
    row_bytes = tensor.n_bytes // n_rows
    values = torch.empty((n_rows, n_cols), dtype=torch.uint8, device=device)
    scales = torch.empty((n_rows, n_cols // GROUP), dtype=torch.float32, device=device)
    n_at_once = max(1, CHUNK // row_bytes)
    for begin in range(0, n_rows, n_at_once):
        rows = slice(begin, min(begin + n_at_once, n_rows))
        data = tensor.data[rows.start * row_bytes : rows.stop * row_bytes]
        blocks = torch.from_numpy(data.copy()).to(device).view(-1, n_cols // GROUP, tensor.format.block_bytes)
        values[rows] = blocks[:, :, 4:].reshape(-1, n_cols)
        scales[rows] = blocks[:, :, :4].contiguous().view(torch.float32)[:, :, 0]
        if bool(((values[rows] & NAN) == NAN).any()):  # some kernels would make a number of it
            raise QuantError(f"{tensor.name} holds NaN among its 8-bit floats: fetch the model again, or use another.")
    one = scales[:, :1]
    return Fp8Matrix(values.view(torch.float8_e4m3fn), one.contiguous() if bool((scales == one).all()) else scales)


def joined_fp8(parts: Sequence[Fp8Matrix]) -> Fp8Matrix:
    """Matrices one below the other; one scale to a row becomes several where another matrix has several."""
    n_scales = max(part.scales.shape[1] for part in parts)
    values = torch.cat([part.values.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn)
    scales = torch.cat([part.scales.expand(-1, n_scales) for part in parts])
    copies = [part.copy for part in parts if part.copy is not None]
    return Fp8Matrix(values, scales, parts[0].dtype, torch.cat(copies) if len(copies) == len(parts) else None)


def with_copy(matrix: Fp8Matrix) -> Fp8Matrix:
    return replace(matrix, copy=matrix.dense(matrix.dtype))


def converts_fp8(device: torch.device) -> bool:
    """Whether kernels on this device read 8-bit floats."""
    return device.type != "cuda" or bool(torch.cuda.get_device_capability(device) >= CAPABILITY)
