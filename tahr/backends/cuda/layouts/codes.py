"""Blocks of each format taken apart into codes, scales and offsets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from tahr.backends.cuda.layouts.kinds import EIGHT, FIVE, FOUR, FP4, IQ4, SIX, CodeKind

Bytes: TypeAlias = torch.Tensor  # uint8 [n, bytes of a block]


@dataclass(frozen=True, slots=True)
class Codes:
    """Blocks taken apart: codes [n, columns], and for every 16 or 32 of them a scale and perhaps an offset."""

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None


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
