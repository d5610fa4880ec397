"""Facts about a model before its weights are fetched: from its config.json, or the first bytes of its GGUF."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tahr.errors import CorruptFile
from tahr.regular_file import read_bytes

GGUF_MAGIC = b"GGUF"
HEAD_BYTES = 4096
MAX_JSON_BYTES = 16 << 20
_START = struct.Struct("<4sIQQ")  # magic, version, tensors, fields
_LENGTH = struct.Struct("<Q")
_KIND = struct.Struct("<I")
_STRING = 8
_ARCHITECTURE = b"general.architecture"


@dataclass(frozen=True)
class Preview:
    """Facts about a model that is about to be fetched."""

    name: str
    config: Mapping[str, Any] | None = None  # config.json of a safetensors repository
    architecture: str | None = None  # GGUF only; None where its first bytes do not say
    size_bytes: int | None = None  # weights only


Check = Callable[[Preview], None]  # raises where the model must not be fetched


def accept(preview: Preview) -> None:
    """The check of those who want the files, whatever they are."""


def read_config(path: Path) -> dict[str, Any] | None:
    """The config.json of a repository, if it has one."""
    if not path.is_file():
        return None
    try:
        value = json.loads(read_bytes(path, MAX_JSON_BYTES))
    except OSError as error:
        raise CorruptFile(f"{path.name} of the model cannot be read ({error}): fetch another model.") from error
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path.name} of the model is not valid JSON ({error}): fetch another model.") from error
    if not isinstance(value, dict):
        raise CorruptFile(f"{path.name} of the model does not hold a JSON object: fetch another model.")
    return value


def architecture_of(head: bytes) -> str | None:
    """The architecture a GGUF names in its first field; None where another field comes first."""
    try:
        magic, version, _, n_fields = _START.unpack_from(head)
        if magic != GGUF_MAGIC:
            raise CorruptFile("The file is not a GGUF: it does not begin like one.")
        if version not in (2, 3) or not n_fields:
            return None
        key, at = _string(head, _START.size)
        (kind,) = _KIND.unpack_from(head, at)
        if key != _ARCHITECTURE or kind != _STRING:
            return None
        return _string(head, at + _KIND.size)[0].decode("utf-8", "replace")
    except (struct.error, IndexError):
        return None


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    (n_bytes,) = _LENGTH.unpack_from(data, at)
    begin = at + _LENGTH.size
    if begin + n_bytes > len(data):
        raise IndexError
    return data[begin : begin + n_bytes], begin + n_bytes
