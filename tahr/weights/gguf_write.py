"""Writing GGUF files: version 3, little-endian, in place only when whole."""

import fcntl
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tahr.errors import LoadError
from tahr.weights.dequantise.bits import Bytes
from tahr.weights.formats import Format
from tahr.weights.gguf import DEFAULT_ALIGNMENT, MAGIC, GGUFFile
from tahr.weights.metadata import ARRAY, BOOL, NUMBERS, STRING, U32, U64, Cursor
from tahr.weights.source import map_file
from tahr.weights.tensor import HostTensor

VERSION = 3
KINDS = {np.dtype("<" + code): kind for kind, code in NUMBERS.items()}
LISTED = {bool: np.bool_, int: np.int32, float: np.float32}
UINT32 = 4
INT32 = 5
FLOAT32 = 6
UINT64 = 10
Advance = Callable[[int], None]  # called with the number of bytes written


@dataclass(frozen=True, slots=True)
class Encoded:
    """A metadata value as it lies in a file, its type included."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of a model that is about to be written; `make` brings it into memory when it is its turn."""

    name: str
    format: Format
    shape: tuple[int, ...]
    make: Callable[[], HostTensor]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written: `pieces` makes its bytes, in order, when it is its turn."""

    name: str
    format: Format
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[Bytes]]

    @property
    def n_bytes(self) -> int:
        return self.format.n_bytes(int(np.prod(self.shape)))


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[Entry],
    advance: Advance | None = None,
    check: Callable[[], None] | None = None,
) -> None:
    """Write a file; until it is complete it goes by another name, and an error leaves nothing behind.

    `check` is called when all is written, and may still raise.
    """
    path = path.resolve() if path.is_symlink() else path  # a link stays one, and the file is where it points
    header = _header(metadata, tensors)
    _refuse_full_disk(path, len(header) + sum(_padded(tensor.n_bytes) for tensor in tensors))
    draft = path.with_name(f"{path.name}.tahr-partial")
    with draft.open("ab") as file:  # not "wb", which would empty what another process is writing
        _refuse_second_writer(file, draft, path)
        try:
            file.truncate(0)
            file.write(header)
            for tensor in tensors:
                _write_tensor(file, tensor, advance)
            file.flush()
            if check:
                check()
            draft.replace(path)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise


def _refuse_second_writer(file: BinaryIO, draft: Path, path: Path) -> None:
    """Lock the draft until it is closed: two processes that write one file would mix their bytes in it."""
    taken = False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        taken = True
    except OSError:  # a file system without locks
        pass
    # Who held the lock may have finished between opening and locking: the open file is then a complete one.
    if taken or not draft.exists() or not os.path.samestat(os.fstat(file.fileno()), draft.stat()):
        raise LoadError(f"Another process is writing {path}. Wait for it, or give another name to write to.")


def stored_metadata(file: GGUFFile) -> dict[str, Encoded]:
    """The metadata of an opened file as it stands there: types and all, which reading it loses."""
    cursor = Cursor(map_file(file.paths[0]))
    cursor.skip(len(MAGIC) + U32.size + U64.size, "the head")
    if file.version == 1:
        raise LoadError(
            f"{file.paths[0]} is a GGUF of version 1, which Tahr reads but does not copy. Convert it first."
        )
    found: dict[str, Encoded] = {}
    for _ in range(cursor.count("metadata values", 1)):
        key = cursor.name("a metadata key")
        start = cursor.at
        cursor.value(repr(key))
        found[key] = Encoded(bytes(cursor.view[start : cursor.at]))
    return found


def encode(value: Any) -> bytes:
    """A metadata value with its type: whole numbers are u32 (i32, u64 where needed), in lists i32; others f32."""
    if isinstance(value, Encoded):
        return value.data
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return _whole(value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, str):
        return U32.pack(STRING) + _text(value)
    if isinstance(value, np.ndarray):
        return _numbers(value)
    if not all(isinstance(item, str) for item in value):
        return _numbers(np.array(value, LISTED[type(value[0])]))
    return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_text, value))


def _whole(value: int) -> bytes:
    if value < 0:
        return struct.pack("<Ii", INT32, value)
    return struct.pack("<II", UINT32, value) if value < 1 << 32 else struct.pack("<IQ", UINT64, value)


def _numbers(values: NDArray[Any]) -> bytes:
    stored = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return struct.pack("<IIQ", ARRAY, KINDS[stored.dtype], len(stored)) + stored.tobytes()


def _text(text: str) -> bytes:
    stored = text.encode("utf-8", "surrogateescape")
    return U64.pack(len(stored)) + stored


def _header(metadata: Mapping[str, Any], tensors: Sequence[Entry]) -> bytes:
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += _text(key), encode(value)
    at = 0
    for tensor in tensors:
        dims = tuple(reversed(tensor.shape))
        assert tensor.format.ggml_id is not None
        parts.append(_text(tensor.name))
        parts.append(struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.format.ggml_id, at))
        at += _padded(tensor.n_bytes)
    header = b"".join(parts)
    return header + bytes(_padded(len(header)) - len(header))


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _write_tensor(file: BinaryIO, tensor: Entry, advance: Advance | None) -> None:
    n_bytes = 0
    for piece in tensor.pieces():
        file.write(piece.data)
        n_bytes += piece.nbytes
        if advance:
            advance(piece.nbytes)
    assert n_bytes == tensor.n_bytes, f"{tensor.name}: {n_bytes} bytes instead of {tensor.n_bytes}"
    file.write(bytes(_padded(n_bytes) - n_bytes))


def _refuse_full_disk(path: Path, n_bytes: int) -> None:
    if not path.parent.is_dir():
        raise LoadError(f"There is no directory {path.parent} to write {path.name} to. Make it first.")
    free = shutil.disk_usage(path.parent).free
    if free < n_bytes:
        raise LoadError(
            f"{path} will have {n_bytes / 1e9:.2f} GB, and its disk has {free / 1e9:.2f} GB left. Free some space."
        )
