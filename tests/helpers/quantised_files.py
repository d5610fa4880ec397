"""Packs matrices as GPTQ, AWQ, compressed-tensors and fp8 checkpoints do, and says what values they stand for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tahr.models.files.schemes import join_parts, scheme_of
from tahr.models.parts.arrange import Tensors
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

Stored = dict[str, tuple[str, tuple[int, ...], bytes]]  # by kind: dtype, shape, bytes
DTYPES = {"int32": "I32", "int64": "I64", "int8": "I8", "uint8": "F8_E4M3", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True)
class Packed:
    """The parts of a matrix, and its values."""

    parts: Stored
    values: np.ndarray


@dataclass(frozen=True)
class Case:
    """A `quantization_config`, what packs a matrix of a shape as it says, and the format the matrix becomes."""

    config: dict[str, Any]
    pack: Callable[[tuple[int, int], np.random.Generator], Packed]
    format: str


def stored(**arrays: np.ndarray) -> Stored:
    return {kind: (DTYPES[str(a.dtype)], a.shape, a.tobytes()) for kind, a in arrays.items()}


def in_words(codes: np.ndarray, n_bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Codes as 32-bit words along the last axis, code `order[i]` in place i."""
    n = 32 // n_bits
    runs = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, n)
    total = sum(runs[..., (order or range(n))[i]] << np.uint32(n_bits * i) for i in range(n))
    return np.ascontiguousarray(total).view(np.int32)


def draw(shape: tuple[int, int], n_bits: int, group: int, symmetric: bool, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    """Codes, scales and zero points, and the group of every column."""
    n_rows, n_cols = shape
    n_groups = 1 if group == -1 else n_cols // group
    codes = rng.integers(0, 1 << n_bits, shape)
    scales = rng.uniform(0.2, 1.0, (n_rows, n_groups)).astype(np.float16) * np.float16(0.4 / (1 << n_bits))
    zeros = np.full(scales.shape, 1 << (n_bits - 1))
    if not symmetric:
        zeros = rng.integers(1, 1 << n_bits, scales.shape)
    return codes, scales, zeros, np.arange(n_cols) * n_groups // n_cols


def values_of(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    return ((codes - zeros[:, group_of]) * scales.astype(np.float64)[:, group_of]).astype(np.float32)


def gptq(n_bits: int = 4, group: int = 128, symmetric: bool = True, act_order: bool = False, version: int = 1) -> Case:
    def pack(shape: tuple[int, int], rng: np.random.Generator) -> Packed:
        codes, scales, zeros, group_of = draw(shape, n_bits, group, symmetric, rng)
        group_of = rng.permutation(group_of) if act_order else group_of
        parts = stored(
            qweight=np.ascontiguousarray(in_words(codes, n_bits).T),
            qzeros=in_words((zeros.T - (version == 1)) % (1 << n_bits), n_bits),
            scales=np.ascontiguousarray(scales.T),
            g_idx=group_of.astype(np.int32),
        )
        return Packed(parts, values_of(codes, scales, zeros, group_of))

    config = {"quant_method": "gptq", "bits": n_bits, "group_size": group, "sym": symmetric, "desc_act": act_order}
    layout = {} if version == 1 else {"checkpoint_format": "gptq_v2"}
    exact, other = ("Q4_0", "Q4_1") if n_bits == 4 else ("Q8_0", "F16")
    return Case({**config, **layout}, pack, "F16" if act_order else exact if symmetric else other)


def awq(group: int = 128) -> Case:
    def pack(shape: tuple[int, int], rng: np.random.Generator) -> Packed:
        codes, scales, zeros, group_of = draw(shape, 4, group, False, rng)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        parts = stored(
            qweight=in_words(codes.T, 4, order),
            qzeros=in_words(zeros.T, 4, order),
            scales=np.ascontiguousarray(scales.T),
        )
        return Packed(parts, values_of(codes, scales, zeros, group_of))

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Case(config, pack, "Q4_1")


def packed_ints(n_bits: int = 4, group: int = 128, symmetric: bool = True) -> Case:
    def pack(shape: tuple[int, int], rng: np.random.Generator) -> Packed:
        codes, scales, zeros, group_of = draw(shape, n_bits, group, symmetric, rng)
        parts = stored(
            weight_packed=in_words(codes, n_bits), weight_scale=scales, weight_shape=np.array(shape, np.int64)
        )
        if not symmetric:
            parts |= stored(weight_zero_point=np.ascontiguousarray(in_words(zeros.T, n_bits).T))
        return Packed(parts, values_of(codes, scales, zeros, group_of))

    exact, other = ("Q4_0", "Q4_1") if n_bits == 4 else ("Q8_0", "F16")
    return Case(compressed("pack-quantized"), pack, exact if symmetric else other)


def bytes_by_row(symmetric: bool = True) -> Case:
    def pack(shape: tuple[int, int], rng: np.random.Generator) -> Packed:
        codes, scales, zeros, group_of = draw(shape, 8, -1, symmetric, rng)
        parts = stored(weight=(codes - 128).astype(np.int8), weight_scale=scales)
        if not symmetric:
            parts |= stored(weight_zero_point=(zeros - 128).astype(np.int8))
        return Packed(parts, values_of(codes, scales, zeros, group_of))

    return Case(compressed("int-quantized"), pack, "Q8_0" if symmetric else "F16")


def compressed(layout: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": groups}


def fp8(kind: str, config: dict[str, Any], scale_name: str = "weight_scale") -> Case:
    """Scales for the matrix, for every row, or for blocks of 128 x 128."""

    def pack(shape: tuple[int, int], rng: np.random.Generator) -> Packed:
        codes = rng.integers(0, 256, shape, dtype=np.uint8)
        codes[(codes & 0x7F) >= 0x78] = 0x38  # neither large numbers nor what is none
        n = {"matrix": (1,), "row": (shape[0], 1), "block": tuple(-(-size // 128) for size in shape)}[kind]
        scales = rng.uniform(0.0002, 0.0006, n).astype(np.float32)
        wide = np.repeat(np.repeat(scales, 128, 0), 128, 1)[: shape[0], : shape[1]] if kind == "block" else scales
        values = FORMATS["F8_E4M3"].dequantise(codes.reshape(-1, 1)).reshape(shape) * wide
        return Packed(stored(weight=codes) | stored(**{scale_name: scales}), values.astype(np.float32))

    return Case(config, pack, "FP8_128")


CASES: dict[str, Case] = {
    "gptq": gptq(),
    "gptq zero points": gptq(group=32, symmetric=False),
    "gptq whole rows": gptq(group=-1),
    "gptq version 2": gptq(symmetric=False, version=2),
    "gptq act-order": gptq(group=32, symmetric=False, act_order=True),
    "gptq 8 bits": gptq(n_bits=8, group=32),
    "gptq 8 bits, zero points": gptq(n_bits=8, symmetric=False),
    "awq": awq(),
    "awq groups of 32": awq(group=32),
    "awq of whole rows": awq(group=-1),
    "compressed 4 bits": packed_ints(),
    "compressed 4 bits, zero points": packed_ints(group=32, symmetric=False),
    "compressed 8 bits": packed_ints(n_bits=8, group=-1),
    "compressed bytes": bytes_by_row(),
    "compressed bytes, zero points": bytes_by_row(symmetric=False),
    "compressed floats": fp8("row", compressed("float-quantized", strategy="channel")),
    "compressed float blocks": fp8(
        "block", compressed("float-quantized", strategy="block", block_structure=[128, 128])
    ),
    "fp8": fp8("matrix", {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8 blocks": fp8("block", {"quant_method": "fp8", "weight_block_size": [128, 128]}, "weight_scale_inv"),
    "fbgemm": fp8("row", {"quant_method": "fbgemm_fp8"}),
}


def joined(parts: Stored, config: dict[str, Any]) -> HostTensor:
    tensors = Tensors({f"w.{kind}": tensor(f"w.{kind}", *part) for kind, part in parts.items()})
    join_parts(tensors, scheme_of(config))
    return tensors["w.weight"]


def tensor(name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> HostTensor:
    return HostTensor(name, FORMATS[dtype], shape, np.frombuffer(data, np.uint8))
