"""Matrices of 8-bit floats (e4m3) with a scale for every row, made of float matrices when a model is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

LARGEST = 448.0  # of an e4m3 number


@dataclass(frozen=True, eq=False, slots=True)
class Fp8Matrix:
    """A matrix `[n_rows, n_cols]`: row r is values[r] * scales[r]; `dtype` is what it stands for."""

    values: torch.Tensor  # float8_e4m3fn
    scales: torch.Tensor  # f32 [n_rows]
    dtype: torch.dtype = torch.bfloat16

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def n_bytes(self) -> int:
        return int(self.values.numel() + 4 * self.scales.numel())

    def rows(self, begin: int, end: int) -> "Fp8Matrix":
        """Some of its rows."""
        return Fp8Matrix(self.values[begin:end], self.scales[begin:end], self.dtype)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        return (self.values.float() * self.scales[:, None]).to(dtype)


def fp8_matrix(values: torch.Tensor) -> Fp8Matrix:
    """A float matrix rounded to e4m3, the largest of each row to the largest there is."""
    most = values.abs().amax(1).float()
    scales = torch.where(most > 0, most / LARGEST, 1.0)
    rounded = (values.float() / scales[:, None]).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return Fp8Matrix(rounded, scales, values.dtype if values.dtype != torch.float32 else torch.bfloat16)


def joined_fp8(parts: Sequence[Fp8Matrix]) -> Fp8Matrix:
    """Matrices one below the other."""
    values = torch.cat([part.values.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn)
    return Fp8Matrix(values, torch.cat([part.scales for part in parts]), parts[0].dtype)
