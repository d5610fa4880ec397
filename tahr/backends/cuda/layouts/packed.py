"""Block-quantised matrices as the kernels read them: every format becomes one of a few packed kinds on the device.

Columns come in blocks of 32. Codes of four or eight bits lie one after the other in 32-bit words, the first at the
bottom. Bits beyond four lie in words of their own, in the order in which kernels pick them up: see `high_words`. A
block has two f16 numbers: a scale and an offset, or scales of its first and last 16 columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tahr.backends.cuda.layouts.codes import FORMATS, Codes
from tahr.backends.cuda.layouts.kinds import BLOCK, EIGHT, UNIT, CodeKind
from tahr.backends.cuda.layouts.words import pack
from tahr.weights.tensor import HostTensor

CHUNK = 1 << 25  # values that are packed at a time


@dataclass(frozen=True, eq=False, slots=True)
class CodedMatrix:
    """A matrix `[n_rows, n_cols]` in packed form; `dtype` is what it is multiplied in."""

    kind: CodeKind
    codes: torch.Tensor  # int32 [n_rows, words]
    high: torch.Tensor  # int32 [n_rows, words]
    scales: torch.Tensor  # int32 [n_rows, n_cols / BLOCK]: two f16
    shape: tuple[int, int]
    dtype: torch.dtype = torch.bfloat16
    dense: torch.Tensor | None = None  # a copy for larger batches, where there is memory for it

    @property
    def n_blocks(self) -> int:
        return self.shape[1] // BLOCK

    @property
    def n_bytes(self) -> int:
        planes = [self.codes, self.high, self.scales, *([] if self.dense is None else [self.dense])]
        return sum(int(plane.numel() * plane.element_size()) for plane in planes)

    def rows(self, begin: int, end: int) -> "CodedMatrix":
        """Some of its rows."""
        codes, high, scales = (part[begin:end] for part in (self.codes, self.high, self.scales))
        dense = None if self.dense is None else self.dense[begin:end]
        return CodedMatrix(self.kind, codes, high, scales, (end - begin, self.shape[1]), self.dtype, dense)


def packed_matrix(tensor: HostTensor, device: torch.device) -> CodedMatrix | None:
    """A matrix in packed form on the device; None where its format has no kernel or its scales do not fit."""
    if tensor.format.name not in FORMATS or len(tensor.shape) != 2:
        return None
    kind, split = FORMATS[tensor.format.name]
    n_rows, n_cols = tensor.shape
    row_bytes = tensor.n_bytes // n_rows
    n_at_once = max(1, CHUNK // n_cols)
    parts = []
    for begin in range(0, n_rows, n_at_once):
        chunk = torch.from_numpy(tensor.data[begin * row_bytes : (begin + n_at_once) * row_bytes].copy()).to(device)
        part = pack(kind, split(chunk.view(-1, tensor.format.block_bytes)))
        if part is None:
            return None
        n = len(chunk) // row_bytes
        codes, high, scales = (plane.reshape(n, -1) for plane in part)
        parts.append(CodedMatrix(kind, codes, high, scales, (n, n_cols)))
    return joined(parts)


def rounded_matrix(values: torch.Tensor) -> CodedMatrix | None:
    """A float matrix as 8-bit codes, the largest of each block as 127; None where its blocks or scales do not fit."""
    n_cols = values.shape[1]
    if n_cols % BLOCK:
        return None
    dtype = values.dtype if values.dtype != torch.float32 else torch.bfloat16
    parts = []
    for rows in values.split(max(1, CHUNK // n_cols)):
        blocks = rows.reshape(-1, BLOCK).float()
        scales = (blocks.abs().amax(1, keepdim=True) / 127 * UNIT).half().float() / UNIT  # rounded like stored scales
        codes = (blocks / torch.where(scales > 0, scales, 1.0)).round_().clamp_(-127, 127).to(torch.int8)
        part = pack(EIGHT, Codes(codes.view(torch.uint8), scales))
        if part is None:
            return None
        words, high, pairs = (plane.reshape(len(rows), -1) for plane in part)
        parts.append(CodedMatrix(EIGHT, words, high, pairs, (len(rows), n_cols), dtype))
    return joined(parts)


def joined(parts: Sequence[CodedMatrix]) -> CodedMatrix:
    """Matrices of one kind, one below the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    planes = [(part.codes, part.high, part.scales) for part in parts]
    codes, high, scales = (torch.cat(plane) for plane in zip(*planes, strict=True))
    n_rows = sum(part.shape[0] for part in parts)
    copies = [part.dense for part in parts if part.dense is not None]
    dense = torch.cat(copies) if len(copies) == len(parts) else None
    return CodedMatrix(first.kind, codes, high, scales, (n_rows, first.shape[1]), first.dtype, dense)
