"""Small GGUF and safetensors files for tests, right or wrong on purpose."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CODES = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i")}
CODES |= {"f32": (6, "f"), "bool": (7, "B"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d")}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class Typed:
    """A metadata value: `kind` is a key of CODES, "str", or "[kind]" for an array."""

    kind: str
    value: Any


@dataclass(frozen=True)
class Stored:
    """A tensor of a GGUF file: `dims` in the file's order (row length first)."""

    name: str
    dims: Sequence[int]
    ggml_id: int
    data: bytes
    offset: int | None = None  # where to claim the data is; None is the truth


@dataclass(frozen=True)
class Gguf:
    """A GGUF file to be; the counts may lie."""

    metadata: dict[str, Typed] = field(default_factory=dict)
    tensors: Sequence[Stored] = ()
    version: int = 3
    magic: bytes = b"GGUF"
    alignment: int = 32
    n_tensors: int | None = None
    n_metadata: int | None = None

    def size(self, number: int) -> bytes:
        return struct.pack("<I" if self.version == 1 else "<Q", number)

    def string(self, text: str | bytes) -> bytes:
        stored = text.encode() if isinstance(text, str) else text
        return self.size(len(stored)) + stored

    def value(self, item: Typed) -> bytes:
        return struct.pack("<I", self.code(item.kind)) + self.payload(item)

    def code(self, kind: str) -> int:
        return ARRAY if kind.startswith("[") else STRING if kind == "str" else CODES[kind][0]

    def payload(self, item: Typed) -> bytes:
        if item.kind == "str":
            return self.string(item.value)
        if not item.kind.startswith("["):
            return struct.pack("<" + CODES[item.kind][1], item.value)
        inner = item.kind[1:-1]
        items = b"".join(self.payload(Typed(inner, one)) for one in item.value)
        return struct.pack("<I", self.code(inner)) + self.size(len(item.value)) + items

    def head(self) -> bytes:
        """Magic, version and counts."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_metadata = len(self.metadata) if self.n_metadata is None else self.n_metadata
        return self.magic + struct.pack("<I", self.version) + self.size(n_tensors) + self.size(n_metadata)

    def to_bytes(self) -> bytes:
        header = self.head()
        header += b"".join(self.string(key) + self.value(item) for key, item in self.metadata.items())
        data = b""
        for tensor in self.tensors:
            data += bytes(-len(data) % self.alignment)
            offset = len(data) if tensor.offset is None else tensor.offset
            dims = b"".join(self.size(dim) for dim in tensor.dims)
            header += self.string(tensor.name) + struct.pack("<I", len(tensor.dims)) + dims
            header += struct.pack("<IQ", tensor.ggml_id, offset)
            data += tensor.data
        return header + bytes(-len(header) % self.alignment) + data


def safetensors(tensors: dict[str, tuple[str, Sequence[int], bytes]], metadata: dict[str, str] | None = None) -> bytes:
    """A sound safetensors file of name -> (dtype, shape, data)."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (dtype, shape, stored) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(stored)]}
        data += stored
    return with_header(header, data)


def with_header(header: Any, data: bytes) -> bytes:
    """A safetensors file of any header: a value to write as JSON, or bytes as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
