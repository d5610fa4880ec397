"""Kinds of packed codes: every block format becomes one of these on the device."""

from dataclasses import dataclass

from tahr.weights.dequantise.table import FP4_VALUES, IQ4_VALUES

BLOCK = 32  # columns

UNIT = 4096.0  # scales are stored times this, which keeps small ones among the normal f16 numbers


@dataclass(frozen=True, slots=True)
class CodeKind:
    """How packed values are computed: code * scale - offset, or (code - shift) * scale, or table[code] * scale."""

    name: str
    n_bits: int
    has_offset: bool = False
    shift: int = 0
    table: str = ""  # a key of TABLES


TABLES = {"iq4": IQ4_VALUES, "fp4": FP4_VALUES}

FOUR = CodeKind("4-bit", 4, has_offset=True)

FIVE = CodeKind("5-bit", 5, has_offset=True)

SIX = CodeKind("6-bit", 6, shift=32)

EIGHT = CodeKind("8-bit", 8)

IQ4 = CodeKind("IQ4", 4, table="iq4")

FP4 = CodeKind("FP4", 4, table="fp4")
