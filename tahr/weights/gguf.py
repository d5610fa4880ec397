"""GGUF files: versions 1 to 3, whole or split into parts, from disk or from memory.

Every count, length, offset and shape is checked against the size of the file before it is used: a damaged or hostile
file is refused in a sentence, and makes nothing big of something small. Strings that are not UTF-8 (tokens may be
pieces of characters) are decoded with `surrogateescape`: encoding them the same way gives the stored bytes back.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tahr.errors import CorruptFile, LoadError, ModelNotFound, QuantError
from tahr.weights.formats import BY_GGML_ID, Format
from tahr.weights.limits import MODEL, HeaderLimits
from tahr.weights.metadata import U32, U64, Cursor
from tahr.weights.source import Source, in_memory, map_file
from tahr.weights.tensor import HostTensor

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """An opened GGUF model: metadata by key, tensors by name; a split set looks like one file."""

    metadata: Mapping[str, Any]
    tensors: dict[str, HostTensor]
    version: int
    n_bytes: int
    paths: tuple[Path, ...]


def open_gguf(source: Path | bytes | bytearray | memoryview, limits: HeaderLimits = MODEL) -> GGUFFile:
    """Open a GGUF file, or bytes of one; any part of a split set opens the whole set."""
    if isinstance(source, bytes | bytearray | memoryview):
        opened = _read(in_memory(source), limits)
        if _n_parts(opened) > 1:
            raise LoadError("The model in memory is one part of a split set. Merge the parts first, or pass a path.")
        return opened
    opened = _read(map_file(Path(source)), limits)
    n_parts = _n_parts(opened)
    if n_parts <= 1:
        return opened
    return _joined([_read(map_file(path), limits) for path in _part_paths(Path(source), n_parts)])


@dataclass(frozen=True)
class _Info:
    """A tensor's entry in the header; `offset` counts from the start of the tensor data."""

    name: str
    format: Format
    shape: tuple[int, ...]
    offset: int
    at: int  # place of this entry in the header

    @property
    def n_bytes(self) -> int:
        return self.format.n_bytes(math.prod(self.shape))


def _read(source: Source, limits: HeaderLimits) -> GGUFFile:
    """One file on its own."""
    cursor = Cursor(source, limits)
    version = _version(cursor)
    n_tensors = cursor.count("tensors", 16 + cursor.size.size, limits.n_tensors)
    metadata = _metadata(cursor)
    infos = [_info(cursor) for _ in range(n_tensors)]
    tensors = _placed(cursor, infos, _alignment(cursor, metadata))
    return GGUFFile(metadata, tensors, version, int(source.data.size), (source.path,) if source.path else ())


def _version(cursor: Cursor) -> int:
    label = cursor.source.label
    if bytes(cursor.view[:4]) != MAGIC:
        raise CorruptFile(f"{label} is not a GGUF file: it does not begin with 'GGUF'. Check what was downloaded.")
    cursor.skip(len(MAGIC), "the magic")
    version: int = cursor.number(U32, "the version")
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        raise CorruptFile(f"{label} is a big-endian GGUF file. Convert it to little-endian first.")
    if version not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise CorruptFile(f"{label} has GGUF version {version}, and Tahr reads {known}. Get a file of one of these.")
    cursor.size = U32 if version == 1 else U64
    return version


def _metadata(cursor: Cursor) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(cursor.count("metadata values", 5 + cursor.size.size, cursor.limits.n_metadata)):
        start = cursor.at
        key = cursor.name("a metadata key")
        if key in metadata:
            raise cursor.damage(f"the metadata key {key!r} appears a second time", start)
        metadata[key] = cursor.value(repr(key))
    return metadata


def _alignment(cursor: Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise CorruptFile(
            f"{cursor.source.label} is damaged: 'general.alignment' is {alignment!r}, not a power of two. "
            "Download the file again."
        )
    return alignment


def _info(cursor: Cursor) -> _Info:
    at = cursor.at
    name = cursor.name("a tensor's name")
    n_dims: int = cursor.number(U32, f"the number of dimensions of tensor {name!r}")
    if n_dims > MAX_DIMS:
        raise cursor.damage(f"tensor {name!r} has {n_dims} dimensions, and {MAX_DIMS} is the most", at)
    dims = [int(cursor.number(cursor.size, f"the shape of tensor {name!r}")) for _ in range(n_dims)]
    kind: int = cursor.number(U32, f"the type of tensor {name!r}")
    offset: int = cursor.number(U64, f"the offset of tensor {name!r}")
    stored_as = _format(cursor, name, kind)
    row = dims[0] if dims else 1
    if 0 in dims or row % stored_as.block:
        need = f"rows of a positive multiple of {stored_as.block} values, as {stored_as.name} needs"
        raise cursor.damage(f"tensor {name!r} has dimensions {dims}, not {need}", at)
    return _Info(name, stored_as, tuple(reversed(dims)), offset, at)


def _format(cursor: Cursor, name: str, kind: int) -> Format:
    if found := BY_GGML_ID.get(kind):
        return found
    known = ", ".join(row.name for row in BY_GGML_ID.values())
    raise QuantError(
        f"Tensor {name!r} in {cursor.source.label} has ggml type {kind}, which Tahr does not know. "
        f"Use a file whose tensors are stored as any of: {known}."
    )


def _placed(cursor: Cursor, infos: list[_Info], alignment: int) -> dict[str, HostTensor]:
    """Tensors by name in the order of the header, each checked to have bytes of its own inside the file."""
    source = cursor.source
    data_start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, HostTensor] = {}
    for info in infos:
        start = data_start + info.offset
        if info.name in tensors:
            raise cursor.damage(f"the tensor {info.name!r} appears a second time", info.at)
        if info.offset % alignment:
            raise cursor.damage(f"tensor {info.name!r} is at {info.offset}, not a multiple of {alignment}", info.at)
        if start + info.n_bytes > source.data.size:
            end = f"ends at byte {start + info.n_bytes}, and the file at byte {source.data.size}"
            raise cursor.damage(f"tensor {info.name!r} {end}", info.at)
        data = source.data[start : start + info.n_bytes]
        tensors[info.name] = HostTensor(info.name, info.format, info.shape, data, source, start)
    _refuse_overlap(cursor, list(tensors.values()))
    return tensors


def _refuse_overlap(cursor: Cursor, tensors: list[HostTensor]) -> None:
    tensors.sort(key=lambda tensor: tensor.start)
    for before, after in pairwise(tensors):
        if before.start + before.n_bytes > after.start:
            raise cursor.damage(f"tensor {after.name!r} begins inside tensor {before.name!r}", after.start)


def _n_parts(opened: GGUFFile) -> int:
    return _whole(opened, "split.count", default=1)


def _whole(opened: GGUFFile, key: str, default: int) -> int:
    value = opened.metadata.get(key, default)
    if type(value) is not int or value < 0:
        file = opened.paths[0] if opened.paths else "The model in memory"
        raise CorruptFile(f"{file} is damaged: {key!r} is {value!r}, not a whole number. Download the file again.")
    return value


def _part_paths(path: Path, n_parts: int) -> list[Path]:
    """Where all the parts of a split set must be, given any of them."""
    named = PART_NAME.fullmatch(path.name)
    if not named or int(named["count"]) != n_parts:
        expected = f"NAME-00001-of-{n_parts:05}.gguf"
        raise CorruptFile(f"{path} is one of {n_parts} parts, but is not named like {expected}. Restore its name.")
    names = [f"{named['stem']}-{number:05}-of-{named['count']}.gguf" for number in range(1, n_parts + 1)]
    paths = [path.with_name(name) for name in names]
    if missing := [part.name for part in paths if not part.exists()]:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ModelNotFound(f"{len(missing)} of the {n_parts} parts of {path} are missing: {some}. Download them too.")
    return paths


def _joined(parts: list[GGUFFile]) -> GGUFFile:
    """The parts of a set as one file; the first holds the metadata."""
    tensors: dict[str, HostTensor] = {}
    for number, part in enumerate(parts):
        path = part.paths[0]
        if _n_parts(part) != len(parts) or _whole(part, "split.no", default=number) != number:
            raise CorruptFile(f"{path} is not part {number + 1} of {len(parts)} as its name says. Download it again.")
        if twice := tensors.keys() & part.tensors.keys():
            raise CorruptFile(f"{path} repeats tensor {min(twice)!r} of an earlier part. Download the set again.")
        tensors |= part.tensors
    n_expected = _whole(parts[0], "split.tensors.count", default=len(tensors))
    if len(tensors) != n_expected:
        found = f"{len(tensors)} tensors instead of {n_expected}"
        raise CorruptFile(f"The parts of {parts[0].paths[0]} hold {found}. Download the set again.")
    n_bytes = sum(part.n_bytes for part in parts)
    return GGUFFile(parts[0].metadata, tensors, parts[0].version, n_bytes, tuple(part.paths[0] for part in parts))
