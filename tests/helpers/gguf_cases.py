"""A GGUF file with everything in it, and files with one thing wrong at a time: (the file, a piece of the sentence)."""

import struct
from dataclasses import replace
from typing import Any

import numpy as np

from gguf_maker import Gguf, Stored, Typed

VALUES = {
    "a.u8": Typed("u8", 255),
    "a.i8": Typed("i8", -128),
    "a.u16": Typed("u16", 65535),
    "a.i16": Typed("i16", -5),
    "a.u32": Typed("u32", 2**32 - 1),
    "a.i32": Typed("i32", -7),
    "a.f32": Typed("f32", 0.5),
    "a.yes": Typed("bool", 1),
    "a.no": Typed("bool", 0),
    "a.text": Typed("str", "grüße\n🦌"),
    "a.empty": Typed("str", ""),
    "a.u64": Typed("u64", 2**64 - 1),
    "a.i64": Typed("i64", -(2**63)),
    "a.f64": Typed("f64", 1e300),
    "a.numbers": Typed("[i32]", [1, -2, 3]),
    "a.bools": Typed("[bool]", [1, 0]),
    "a.texts": Typed("[str]", ["a", "", "longer"]),
    "a.nothing": Typed("[str]", []),
    "a.nested": Typed("[[str]]", [["x"], [], ["y", "z"]]),
    "a.deep": Typed("[[[u8]]]", [[[1], [2, 3]], []]),
}


F32_ROWS = np.arange(12, dtype="<f4").reshape(3, 4)


TENSORS = (
    Stored("dense", (4, 3), 0, F32_ROWS.tobytes()),
    Stored("scalar", (), 1, np.array([1.5], "<f2").tobytes()),
    Stored("packed", (32, 2), 8, b"".join(struct.pack("<e32b", 0.5, *[i] * 32) for i in (1, 2))),
)


GOOD = Gguf(VALUES, TENSORS)


def tensor(**changes: Any) -> Gguf:
    return replace(GOOD, tensors=[replace(TENSORS[0], **changes)])


def metadata(key: str, raw: bytes) -> bytes:
    return Gguf(n_metadata=1).head() + Gguf().string(key) + raw


HUGE = 1 << 60


WRONG = {
    "magic": (replace(GOOD, magic=b"GGML"), "not a GGUF file"),
    "version 0": (replace(GOOD, version=0), "version 0"),
    "version 4": (replace(GOOD, version=4), "version 4"),
    "big-endian": (replace(GOOD, version=3 << 24), "big-endian"),
    "tensor count": (replace(GOOD, n_tensors=HUGE), f"{HUGE} tensors"),
    "tensor count off by one": (replace(GOOD, n_tensors=4), "at byte"),
    "metadata count": (replace(GOOD, n_metadata=HUGE), f"{HUGE} metadata values"),
    "metadata count too small": (replace(GOOD, n_metadata=3), "at byte"),
    "key length": (Gguf(n_metadata=1).head() + struct.pack("<Q", HUGE) + b"abcdefgh", "metadata key"),
    "key too long": (Gguf({"k" * 70_000: Typed("u8", 1)}), "longer than 65535"),
    "key twice": (Gguf(n_metadata=2).head() + 2 * (Gguf().string("k") + struct.pack("<IB", 0, 1)), "second time"),
    "value type": (metadata("k", struct.pack("<IQ", 13, 0)), "unknown type 13"),
    "bool": (metadata("k", struct.pack("<IB", 7, 2)), "neither true nor false"),
    "bools": (Gguf({"k": Typed("[bool]", [0, 1, 9])}), "neither true nor false"),
    "string length": (metadata("k", struct.pack("<IQ", 8, HUGE)), "'k' needs"),
    "array type": (metadata("k", struct.pack("<IIQ", 9, 99, 1)), "unknown type 99"),
    "number count": (metadata("k", struct.pack("<IIQ", 9, 10, HUGE)), f"{HUGE} items"),
    "string count": (metadata("k", struct.pack("<IIQ", 9, 8, HUGE)), f"{HUGE} items"),
    "array count": (metadata("k", struct.pack("<IIQ", 9, 9, HUGE)), f"{HUGE} items"),
    "nested too many": (Gguf({"k": Typed("[[u8]]", [[]] * 5_000)}), "more than 4096"),
    "nested too many in all": (Gguf({"k": Typed("[[[u8]]]", [[[]] * 100] * 50)}), "more than 4096"),
    "metadata too many": (Gguf({str(i): Typed("u8", 0) for i in range(70_000)}), "more than 65536"),
    "length in array": (metadata("k", struct.pack("<IIQQQ", 9, 8, 2, 2**64 - 1, 0)), "past the end"),
    "last length in array": (metadata("k", struct.pack("<IIQQ", 9, 8, 1, 1)), "past the end"),
    "string array cut": (metadata("k", struct.pack("<IIQQ", 9, 8, 2, 6) + b"abcdefwxyz"), "past the end"),
    "nested too deep": (Gguf({"k": Typed("[[[[[u8]]]]]", [[[[[1]]]]])}), "deep"),
    "alignment 0": (Gguf({"general.alignment": Typed("u32", 0)}), "power of two"),
    "alignment 24": (Gguf({"general.alignment": Typed("u32", 24)}), "power of two"),
    "alignment text": (Gguf({"general.alignment": Typed("str", "32")}), "power of two"),
    "alignment true": (Gguf({"general.alignment": Typed("bool", 1)}), "power of two"),
    "five dimensions": (tensor(dims=(4, 3, 1, 1, 1)), "5 dimensions"),
    "dimension 0": (tensor(dims=(4, 0)), "positive multiple"),
    "dimensions overflow": (tensor(dims=(2**32, 2**32, 2**32)), "ends at byte"),
    "dimensions wrap to little": (tensor(dims=(2**63, 2)), "ends at byte"),
    "row not in blocks": (replace(GOOD, tensors=[replace(TENSORS[2], dims=(48, 2))]), "multiple of 32"),
    "offset unaligned": (tensor(offset=4), "not a multiple of 32"),
    "offset outside": (tensor(offset=1 << 40), "ends at byte"),
    "offset wraps": (tensor(offset=2**64 - 32), "ends at byte"),
    "name twice": (replace(GOOD, tensors=[TENSORS[0], TENSORS[0]]), "second time"),
    "overlap": (replace(GOOD, tensors=[TENSORS[0], replace(TENSORS[2], offset=32)]), "inside tensor 'dense'"),
    "split.count": (Gguf({"split.count": Typed("str", "2")}), "whole number"),
}
