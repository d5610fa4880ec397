"""Models that are already files: a .gguf or .safetensors, any part of a split one, or a directory."""

from __future__ import annotations

from pathlib import Path

from tahr.errors import CorruptFile, LoadError, ModelNotFound
from tahr.hub import pick
from tahr.hub.files import ModelEntry, ModelFiles
from tahr.hub.preview import GGUF_MAGIC, Check, Preview
from tahr.hub.progress import Progress
from tahr.hub.refs import Ref
from tahr.regular_file import read_start


def cached(ref: Ref) -> ModelFiles:
    """The model at a path; local files are never fetched, so what is missing is an error here."""
    assert ref.path is not None
    if ref.path.is_dir():
        return _directory(ref, ref.path)
    if not ref.path.exists():
        raise ModelNotFound(f"There is no file or directory {ref.path}: check the path, or name a model to download.")
    if _begins_like_gguf(ref.path):
        return _gguf(ref, ref.path)
    if ref.path.suffix.lower() == ".gguf":
        raise CorruptFile(f"{ref.path} is not a GGUF: it does not begin like one. Fetch or convert it again.")
    if ref.path.suffix.lower() == ".safetensors":
        return _safetensors(ref, ref.path)
    if ref.path.name == pick.INDEX:
        return _directory(ref, ref.path.parent)
    raise LoadError(
        f"{ref.path} is neither a .gguf nor a .safetensors file, which are the formats Tahr loads:"
        " convert it first, or name the directory of the model."
    )


def _begins_like_gguf(path: Path) -> bool:
    """Caches keep files under their digest, without the ending."""
    if not path.is_file():
        return False
    return read_start(path, len(GGUF_MAGIC)) == GGUF_MAGIC


def _gguf(ref: Ref, path: Path) -> ModelFiles:
    weights = tuple(path.parent / name for name in pick.split_set(path.name))
    if missing := [part.name for part in weights if not part.is_file()]:
        raise CorruptFile(f"{path} is one part of a set, and beside it {', '.join(missing)} is missing: copy it there.")
    return ModelFiles(ref, ref.name, "gguf", weights)


def _safetensors(ref: Ref, path: Path) -> ModelFiles:
    """One file, or all the shards of the index that lists it."""
    index = path.with_name(pick.INDEX)
    if index.is_file() and path.name in pick.indexed_names(index):
        return _directory(ref, path.parent)
    return ModelFiles(ref, ref.name, "safetensors", (path,), directory=path.parent)


def _directory(ref: Ref, directory: Path) -> ModelFiles:
    return pick.open_directory(ref, directory, [path.name for path in directory.iterdir() if path.is_file()])


def download(ref: Ref, progress: Progress, check: Check) -> ModelFiles:
    """Nothing to download: the files are where they are."""
    return cached(ref)


def preview(ref: Ref) -> Preview:
    """The files are here, so there is nothing to ask."""
    files = cached(ref)
    return Preview(ref.name, size_bytes=sum(path.stat().st_size for path in files.weights))


def entries() -> list[ModelEntry]:
    """Local files are the user's own and are not listed."""
    return []


def remove(ref: Ref) -> int | None:
    """Refused: Tahr deletes only what it fetched."""
    raise ModelNotFound(f"{ref.path} is your own file, and Tahr removes only what it fetched: delete it yourself.")
