"""Checking a weight file from end to end without loading a model."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tahr.errors import ConfigError, CorruptFile
from tahr.regular_file import open_regular
from tahr.weights.gguf import GGUFFile, open_gguf
from tahr.weights.safetensors import SafetensorsFile, open_safetensors


@dataclass(frozen=True)
class Verified:
    """Contents of a sound file; `sha256` has one digest for each path, if digests were requested."""

    kind: str  # "GGUF 3", "safetensors"
    paths: tuple[Path, ...]
    n_bytes: int
    n_metadata: int
    n_tensors: int
    n_values: int
    formats: dict[str, int]  # format -> number of tensors
    sha256: dict[Path, str] = field(default_factory=dict)


def verify(path: Path, digest: bool = False, expected_sha256: str | None = None) -> Verified:
    """Check everything but the weights themselves, hash the files if asked, and raise `CorruptFile` at a fault."""
    opened = _open(Path(path))
    digests = {part: _sha256(part) for part in opened.paths} if digest or expected_sha256 else {}
    if expected_sha256:
        _compare(digests, expected_sha256)
    tensors = opened.tensors.values()
    return Verified(
        kind=f"GGUF {opened.version}" if isinstance(opened, GGUFFile) else "safetensors",
        paths=opened.paths,
        n_bytes=opened.n_bytes,
        n_metadata=len(opened.metadata),
        n_tensors=len(tensors),
        n_values=sum(tensor.n_values for tensor in tensors),
        formats=dict(Counter(tensor.format.name for tensor in tensors)),
        sha256=digests,
    )


def _open(path: Path) -> GGUFFile | SafetensorsFile:
    if path.is_dir() or path.name.endswith((".safetensors", ".index.json")):
        return open_safetensors(path)
    return open_gguf(path)


def _sha256(path: Path) -> str:
    with open(open_regular(path), "rb") as file:  # noqa: PTH123 (of a descriptor)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _compare(digests: dict[Path, str], expected: str) -> None:
    if len(digests) > 1:
        names = ", ".join(path.name for path in digests)
        raise ConfigError(f"One digest cannot be that of {len(digests)} files ({names}). Verify each with its own.")
    (path, found), *_ = digests.items()
    if found != expected.lower():
        raise CorruptFile(f"{path} has sha256 {found} instead of {expected.lower()}. Download the file again.")
