"""Block-quantised matrices as the kernels read them: every format becomes one of a few packed kinds on the device.

Columns come in blocks of 32. Codes of four or eight bits lie one after the other in 32-bit words, the first at the
bottom. Bits beyond four lie in words of their own, in the order in which kernels pick them up: see `high_words`. A
block has two f16 numbers: a scale and an offset, or scales of its first and last 16 columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from tahr.weights.dequantise.table import FP4_VALUES, IQ4_VALUES
from tahr.weights.tensor import HostTensor

BLOCK = 32  # columns
UNIT = 4096.0  # scales are stored times this, which keeps small ones among the normal f16 numbers
MOST = 65504.0  # the largest f16
CHUNK = 1 << 25  # values that are packed at a time

Bytes: TypeAlias = torch.Tensor  # uint8 [n, bytes of a block]


@dataclass(frozen=True, slots=True)
class CodeKind:
    """How packed values are computed: code * scale - offset, or (code - shift) * scale, or table[code] * scale."""

    name: str
    n_bits: int
    has_offset: bool = False
    shift: int = 0
    table: str = ""  # a key of TABLES


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


@dataclass(frozen=True, slots=True)
class Codes:
    """Blocks taken apart: codes [n, columns], and for every 16 or 32 of them a scale and perhaps an offset."""

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None


TABLES = {"iq4": IQ4_VALUES, "fp4": FP4_VALUES}
FOUR = CodeKind("4-bit", 4, has_offset=True)
FIVE = CodeKind("5-bit", 5, has_offset=True)
SIX = CodeKind("6-bit", 6, shift=32)
EIGHT = CodeKind("8-bit", 8)
IQ4 = CodeKind("IQ4", 4, table="iq4")
FP4 = CodeKind("FP4", 4, table="fp4")


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


def halves(blocks: Bytes) -> torch.Tensor:
    """f16 numbers as f32 [n, count]."""
    return blocks.contiguous().view(torch.float16).float()


def nibbles(packed: Bytes, run: int) -> torch.Tensor:
    """Four-bit codes: of every `run` bytes first the low ones, then the high ones."""
    parts = packed.reshape(len(packed), -1, 1, run)
    return torch.cat([parts & 15, parts >> 4], 2).reshape(len(packed), -1)


def bits(packed: Bytes, n_bits: int, run: int) -> torch.Tensor:
    """Codes of one or two bits: of every `run` bytes first the lowest ones, then the next."""
    parts = packed.reshape(len(packed), -1, 1, run)
    mask = (1 << n_bits) - 1
    return torch.cat([parts >> at & mask for at in range(0, 8, n_bits)], 2).reshape(len(packed), -1)


def fifth_bits(packed: Bytes) -> torch.Tensor:
    """The bits of four bytes, one after the other."""
    return torch.stack([packed >> at & 1 for at in range(8)], 2).reshape(len(packed), -1)


def q4_0(blocks: Bytes) -> Codes:
    scale = halves(blocks[:, :2])
    return Codes(nibbles(blocks[:, 2:], 16), scale, 8 * scale)


def q4_1(blocks: Bytes) -> Codes:
    return Codes(nibbles(blocks[:, 4:], 16), halves(blocks[:, :2]), -halves(blocks[:, 2:4]))


def q5_0(blocks: Bytes) -> Codes:
    scale = halves(blocks[:, :2])
    return Codes(nibbles(blocks[:, 6:], 16) | fifth_bits(blocks[:, 2:6]) << 4, scale, 16 * scale)


def q5_1(blocks: Bytes) -> Codes:
    codes = nibbles(blocks[:, 8:], 16) | fifth_bits(blocks[:, 4:8]) << 4
    return Codes(codes, halves(blocks[:, :2]), -halves(blocks[:, 2:4]))


def q8_0(blocks: Bytes) -> Codes:
    return Codes(blocks[:, 2:], halves(blocks[:, :2]))


def k_scales(blocks: Bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """The head of Q4_K and Q5_K: eight scales and eight offsets of six bits in twelve bytes, and two f16 factors."""
    first = blocks[:, 4:8]
    second = blocks[:, 8:12]
    third = blocks[:, 12:16]
    scales = torch.cat([first & 63, third & 15 | first >> 6 << 4], 1)
    offsets = torch.cat([second & 63, third >> 4 | second >> 6 << 4], 1)
    return halves(blocks[:, :2]) * scales, halves(blocks[:, 2:4]) * offsets


def q4_k(blocks: Bytes) -> Codes:
    return Codes(nibbles(blocks[:, 16:], 32), *k_scales(blocks))


def q5_k(blocks: Bytes) -> Codes:
    return Codes(nibbles(blocks[:, 48:], 32) | bits(blocks[:, 16:48], 1, 32) << 4, *k_scales(blocks))


def q6_k(blocks: Bytes) -> Codes:
    codes = nibbles(blocks[:, :128], 64) | bits(blocks[:, 128:192], 2, 32) << 4
    return Codes(codes, halves(blocks[:, 208:]) * blocks[:, 192:208].view(torch.int8))


def iq4_nl(blocks: Bytes) -> Codes:
    return Codes(nibbles(blocks[:, 2:], 16), halves(blocks[:, :2]))


def iq4_xs(blocks: Bytes) -> Codes:
    low = blocks[:, 4:8]
    high = blocks[:, 2:4]
    scales = torch.stack([low & 15, low >> 4], 2).reshape(len(blocks), 8).int()
    scales |= torch.stack([high >> at & 3 for at in range(0, 8, 2)], 2).reshape(len(blocks), 8).int() << 4
    return Codes(nibbles(blocks[:, 8:], 16), halves(blocks[:, :2]) * (scales - 32))


def mxfp4(blocks: Bytes) -> Codes:
    exponents = blocks[:, :1].int() - 127
    return Codes(
        nibbles(blocks[:, 1:], 16), torch.ldexp(torch.full_like(exponents, 0.5, dtype=torch.float32), exponents)
    )


FORMATS: dict[str, tuple[CodeKind, Callable[[Bytes], Codes]]] = {
    "Q4_0": (FOUR, q4_0), "Q4_1": (FOUR, q4_1), "Q4_K": (FOUR, q4_k), "Q5_0": (FIVE, q5_0), "Q5_1": (FIVE, q5_1),
    "Q5_K": (FIVE, q5_k), "Q6_K": (SIX, q6_k), "Q8_0": (EIGHT, q8_0), "IQ4_NL": (IQ4, iq4_nl),
    "IQ4_XS": (IQ4, iq4_xs), "MXFP4": (FP4, mxfp4),
}  # fmt: skip


def pack(kind: CodeKind, parts: Codes) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Codes, words of high bits and scales, block by block; None where a scale does not fit an f16."""
    n_blocks = parts.codes.numel() // BLOCK
    pair = [parts.scales, parts.offsets] if parts.offsets is not None else list(by_halves(parts.scales, n_blocks))
    numbers = torch.stack([half.reshape(-1) * UNIT for half in pair if half is not None], 1)
    if not bool((numbers.abs() <= MOST).all()):
        return None
    codes = parts.codes.reshape(n_blocks, BLOCK)
    n_bits = kind.n_bits
    if n_bits == 8:
        words = words_of(codes, 8)
        high = codes.new_empty((n_blocks, 0), dtype=torch.int32)
    else:
        words = words_of(codes & 15, 4)
        high = high_words(codes >> 4, n_bits - 4)
    return words, high, numbers.half().view(torch.int32)


def packed_bytes(n_values: int, kind: CodeKind) -> int:
    """Bytes of a packed matrix of `n_values`: its codes, and four bytes of scales for every block."""
    return n_values * kind.n_bits // 8 + n_values // BLOCK * 4


def by_halves(scales: torch.Tensor, n_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales of the first and of the last 16 columns of each block."""
    both = scales.reshape(n_blocks, -1)
    return both[:, 0], both[:, -1]


def words_of(codes: torch.Tensor, n_bits: int) -> torch.Tensor:
    """Codes [n, 32] of so many bits in 32-bit words, the first at the bottom."""
    runs = codes.reshape(len(codes), -1, 32 // n_bits).long()
    return (runs << torch.arange(32 // n_bits, device=codes.device) * n_bits).sum(2).to(torch.int32)


def high_words(codes: torch.Tensor, n_bits: int) -> torch.Tensor:
    """The upper bits, none, one or two, of codes [n, 32].

    Byte j of a word has, from the bottom, those of columns 2j (and 2j + 1, if one bit each) of the four words of codes;
    of two bits each, the second word has those of columns 2j + 1.
    """
    if n_bits == 0:
        return codes.new_empty((len(codes), 0), dtype=torch.int32)
    by_word = codes.reshape(len(codes), 4, 4, 2)  # word, byte, even or odd column
    ordered = by_word.permute(0, 2, 1, 3) if n_bits == 1 else by_word.permute(0, 3, 2, 1)
    return words_of(ordered.reshape(len(codes), BLOCK), n_bits)
