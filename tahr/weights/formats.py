"""The table of weight formats: how many bytes a block of values takes, and how to make f32 values of them again."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tahr.errors import QuantError
from tahr.weights.dequantise import iq1_formats, simple, table, ternary
from tahr.weights.dequantise import iq_formats as iq
from tahr.weights.dequantise import k_formats as k


@dataclass(frozen=True)
class Format:
    """How values are stored: `block` of them take `block_bytes`; `ggml_id` is its number in GGUF files, if any."""

    name: str
    ggml_id: int | None
    block: int
    block_bytes: int
    dequantise: Callable[[NDArray[np.uint8]], NDArray[np.float32]]  # [n, block_bytes] -> [n, block]
    floats: bool = False  # blocks of floats: rows that meet them are not rounded to int8

    def __repr__(self) -> str:
        return f"Format({self.name})"

    def n_bytes(self, n_values: int) -> int:
        """The bytes that `n_values` take; whole blocks only."""
        assert n_values % self.block == 0
        return n_values // self.block * self.block_bytes


ROWS = (
    Format("F32", 0, 1, 4, simple.number("<f4")),
    Format("F16", 1, 1, 2, simple.number("<f2")),
    Format("BF16", 30, 1, 2, simple.bf16),
    Format("F64", 28, 1, 8, simple.number("<f8")),
    Format("I8", 24, 1, 1, simple.number("<i1")),
    Format("I16", 25, 1, 2, simple.number("<i2")),
    Format("I32", 26, 1, 4, simple.number("<i4")),
    Format("I64", 27, 1, 8, simple.number("<i8")),
    Format("Q1_0", 41, 128, 18, simple.q1_0),
    # Files of one fork use number 42 for blocks of 128 values; their tensors seem to overlap and are refused.
    Format("Q2_0", 42, 64, 18, simple.q2_0),
    Format("Q4_0", 2, 32, 18, simple.q4_0),
    Format("Q4_1", 3, 32, 20, simple.q4_1),
    Format("Q5_0", 6, 32, 22, simple.q5_0),
    Format("Q5_1", 7, 32, 24, simple.q5_1),
    Format("Q8_0", 8, 32, 34, simple.q8_0),
    # Q8_1 and Q8_K are what activations become inside kernels; files may hold them, but none are known to.
    Format("Q8_1", 9, 32, 36, simple.q8_1),
    Format("Q2_K", 10, 256, 84, k.q2_k),
    Format("Q3_K", 11, 256, 110, k.q3_k),
    Format("Q4_K", 12, 256, 144, k.q4_k),
    Format("Q5_K", 13, 256, 176, k.q5_k),
    Format("Q6_K", 14, 256, 210, k.q6_k),
    Format("Q8_K", 15, 256, 292, k.q8_k),
    Format("IQ1_S", 19, 256, 50, iq1_formats.iq1_s),
    Format("IQ1_M", 29, 256, 56, iq1_formats.iq1_m),
    Format("IQ2_XXS", 16, 256, 66, iq.iq2_xxs),
    Format("IQ2_XS", 17, 256, 74, iq.iq2_xs),
    Format("IQ2_S", 22, 256, 82, iq.iq2_s),
    Format("IQ3_XXS", 18, 256, 98, iq.iq3_xxs),
    Format("IQ3_S", 21, 256, 110, iq.iq3_s),
    Format("IQ4_NL", 20, 32, 18, table.iq4_nl),
    Format("IQ4_XS", 23, 256, 136, table.iq4_xs),
    Format("TQ1_0", 34, 256, 54, ternary.tq1_0),
    Format("TQ2_0", 35, 256, 66, ternary.tq2_0),
    Format("MXFP4", 39, 32, 17, table.mxfp4),
    Format("NVFP4", 40, 64, 36, table.nvfp4),
    # Only in safetensors files.
    Format("BOOL", None, 1, 1, simple.number("<u1")),
    Format("U8", None, 1, 1, simple.number("<u1")),
    Format("U16", None, 1, 2, simple.number("<u2")),
    Format("U32", None, 1, 4, simple.number("<u4")),
    Format("U64", None, 1, 8, simple.number("<u8")),
    Format("F8_E4M3", None, 1, 1, simple.f8_e4m3),
    Format("F8_E5M2", None, 1, 1, simple.f8_e5m2),
    Format("F8_E8M0", None, 1, 1, simple.f8_e8m0),
    # No file has this one: matrices of e4m3 floats become it at load, 128 of them behind their f32 scale.
    Format("FP8_128", None, 128, 132, simple.fp8_128, floats=True),
)

FORMATS: dict[str, Format] = {row.name: row for row in ROWS}
BY_GGML_ID: dict[int, Format] = {row.ggml_id: row for row in ROWS if row.ggml_id is not None}


def format_named(name: str) -> Format:
    """The format of that name, in any case of letters."""
    if found := FORMATS.get(name.upper()):
        return found
    raise QuantError(f"There is no weight format {name!r}. Use one of: {', '.join(FORMATS)}.")
