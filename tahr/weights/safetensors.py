"""Safetensors files: one file, or the shards that a model directory's index lists."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tahr.errors import CorruptFile, LoadError, ModelNotFound, QuantError
from tahr.weights.formats import FORMATS
from tahr.weights.limits import MODEL, HeaderLimits
from tahr.weights.source import Source, map_file
from tahr.weights.tensor import HostTensor

WHOLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_DIMS = 8
DTYPES = (
    *("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0"),
    *("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"),
)


@dataclass(frozen=True, eq=False)
class SafetensorsFile:
    """An opened safetensors model: tensors by name; shards look like one file."""

    metadata: dict[str, str]
    tensors: dict[str, HostTensor]
    n_bytes: int
    paths: tuple[Path, ...]


def open_safetensors(path_or_dir: Path, limits: HeaderLimits = MODEL) -> SafetensorsFile:
    """Open a safetensors file, an index file, or a model directory with either."""
    path = Path(path_or_dir)
    if path.is_dir():
        path = _entry(path)
    return _open_shards(path, limits) if path.name.endswith(".index.json") else _read(path, limits)


def _entry(directory: Path) -> Path:
    for name in (WHOLE_NAME, INDEX_NAME):  # transformers prefers the whole file, too
        if (directory / name).exists():
            return directory / name
    raise ModelNotFound(f"{directory} has neither {WHOLE_NAME} nor {INDEX_NAME}. Give a directory that does.")


def _open_shards(index: Path, limits: HeaderLimits) -> SafetensorsFile:
    """All shards of an index; where two hold a tensor of the same name, the index says whose it is. Tensors that it
    does not list count too: an index may be that of the model before it was quantised or given biases."""
    home = _weight_map(index, limits)
    paths = [index.with_name(name) for name in sorted(set(home.values()))]
    if missing := [path.name for path in paths if not path.exists()]:
        raise ModelNotFound(f"Shards that {index} lists are missing: {', '.join(missing[:5])}. Download them too.")
    shards = [_read(path, limits) for path in paths]
    tensors: dict[str, HostTensor] = {}
    metadata: dict[str, str] = {}
    for path, shard in zip(paths, shards, strict=True):
        tensors |= {name: tensor for name, tensor in shard.tensors.items() if home.get(name, path.name) == path.name}
        metadata |= shard.metadata
    if lost := home.keys() - tensors.keys():
        shard_name = home[min(lost)]
        raise CorruptFile(
            f"{index} says {shard_name} holds tensor {min(lost)!r}, but it does not. Download both again."
        )
    return SafetensorsFile(metadata, tensors, sum(shard.n_bytes for shard in shards), tuple(paths))


def _weight_map(index: Path, limits: HeaderLimits) -> dict[str, str]:
    """Tensor name -> shard name, with shard names that can only mean files beside the index."""
    source = map_file(index)
    if source.data.size > limits.n_json_bytes:
        raise CorruptFile(f"{index} is larger than {limits.n_json_bytes} bytes. Check that it is a safetensors index.")
    home = _parse(source.label, source.data.tobytes()).get("weight_map")
    if not isinstance(home, dict) or not home:
        raise CorruptFile(f"{index} has no 'weight_map' of tensors and shards. Download it again.")
    for shard in home.values():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or set(shard) & {"/", "\\", "\0"}:
            raise CorruptFile(f"{index} lists {shard!r}, which is no name of a shard beside it. Download it again.")
    return home


def _read(path: Path, limits: HeaderLimits) -> SafetensorsFile:
    """One file on its own."""
    source = map_file(path)
    header, data_start = _header(source, limits)
    metadata = _file_metadata(path, header.pop("__metadata__", {}))
    tensors = {name: _tensor(source, data_start, name, entry) for name, entry in header.items()}
    _refuse_gaps(source, data_start, tensors)
    return SafetensorsFile(metadata, tensors, int(source.data.size), (path,))


def _header(source: Source, limits: HeaderLimits) -> tuple[dict[str, Any], int]:
    """The parsed header, and where the tensor data begins."""
    n_header = int.from_bytes(source.data[:8].tobytes(), "little")
    if source.data.size < 8 or n_header > source.data.size - 8:
        what = f"its header of {n_header} bytes does not fit in its {source.data.size} bytes"
        raise CorruptFile(f"{source.label} is damaged or no safetensors file: {what}. Download the file again.")
    if n_header > limits.n_json_bytes:
        raise CorruptFile(
            f"{source.label} has a header of {n_header} bytes; {limits.n_json_bytes} is the most. Use shards."
        )
    text = source.data[8 : 8 + n_header].tobytes()
    n_brackets = text.count(b"{") + text.count(b"[")  # three for each tensor; known before anything is made of them
    header = _parse(source.label, text) if n_brackets <= 4 * limits.n_tensors else None
    if header is None or len(header) > limits.n_tensors:
        raise CorruptFile(f"{source.label} lists more tensors than {limits.n_tensors}, which is the most. Use shards.")
    return header, 8 + n_header


def _parse(label: str, text: bytes) -> dict[str, Any]:
    """JSON that must be an object without repeated keys."""
    try:
        parsed = json.loads(text.decode(), object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{label} is damaged: its JSON does not parse ({error}). Download the file again.") from error
    if not isinstance(parsed, dict):
        raise CorruptFile(f"{label} is damaged: its JSON is no object. Download the file again.")
    return parsed


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a key appears twice")
    return entries


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _file_metadata(path: Path, metadata: Any) -> dict[str, str]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        return metadata
    raise CorruptFile(f"{path} is damaged: '__metadata__' does not map names to strings. Download the file again.")


def _tensor(source: Source, data_start: int, name: str, entry: Any) -> HostTensor:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise _damage(source, name, "has no dtype, shape and data_offsets")
    dtype = entry["dtype"]
    shape = entry["shape"]
    offsets = entry["data_offsets"]
    if not _is_shape(shape) or not _are_offsets(offsets):
        raise _damage(source, name, "has a shape or data_offsets that are no lists of whole numbers")
    if dtype not in DTYPES:
        raise QuantError(
            f"Tensor {name!r} in {source.label} has dtype {dtype!r}, which Tahr does not know. "
            f"Use a file whose tensors are any of: {', '.join(DTYPES)}."
        )
    begin, end = offsets
    stored_as = FORMATS[dtype]
    if end > source.data.size - data_start or end - begin != stored_as.n_bytes(math.prod(shape)):
        raise _damage(source, name, f"has data_offsets {offsets}, which do not fit its shape {shape} or the file")
    data = source.data[data_start + begin : data_start + end]
    return HostTensor(name, stored_as, tuple(shape), data, source, data_start + begin)


def _is_shape(sizes: Any) -> bool:
    """A list of few whole numbers whose product fits an index of any machine."""
    if not isinstance(sizes, list) or len(sizes) > MAX_DIMS or not all(map(_is_size, sizes)):
        return False
    # Zeros are left out because a zero among the sizes would let the others be anything.
    return bool(math.prod(filter(None, sizes)) < 1 << 60)


def _are_offsets(offsets: Any) -> bool:
    return isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_size, offsets))


def _is_size(number: Any) -> bool:
    # `type`, because True is an int; the bound keeps the products of a shape small.
    return type(number) is int and 0 <= number < 1 << 63


def _refuse_gaps(source: Source, data_start: int, tensors: dict[str, HostTensor]) -> None:
    """Tensors must cover the data exactly: that rules out overlaps, hidden bytes and most truncations."""
    at = data_start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.n_bytes)):
        if tensor.start != at:
            raise _damage(source, tensor.name, f"begins at byte {tensor.start}, where byte {at} is next")
        at += tensor.n_bytes
    if at != source.data.size:
        n_over = source.data.size - at
        raise CorruptFile(f"{source.label} is damaged: {n_over} bytes belong to no tensor. Download the file again.")


def _damage(source: Source, name: str, what: str) -> LoadError:
    return CorruptFile(f"{source.label} is damaged: tensor {name!r} {what}. Download the file again.")
