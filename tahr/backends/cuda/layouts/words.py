"""Codes and scales packed into 32-bit words."""

import torch

from tahr.backends.cuda.layouts.codes import Codes
from tahr.backends.cuda.layouts.kinds import BLOCK, UNIT, CodeKind

MOST = 65504.0  # the largest f16


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
