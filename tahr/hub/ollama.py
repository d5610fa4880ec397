"""The Ollama registry: a manifest names layers, each layer is a blob under its sha256, one of them is a GGUF."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tahr.errors import DownloadError, UnsupportedModel
from tahr.hub import store
from tahr.hub.files import ModelEntry, ModelFiles
from tahr.hub.preview import Check, Preview, accept
from tahr.hub.progress import Progress
from tahr.hub.refs import Ref
from tahr.regular_file import read_text

DEFAULT_REGISTRY = "https://registry.ollama.ai"
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
WEIGHTS = "model.gguf"
MAX_LAYERS = 64
MAX_MANIFEST_BYTES = 1 << 20

# OllamaLayer type -> the name it gets beside the weights.
LAYER_FILES = {
    "application/vnd.ollama.image.model": WEIGHTS,
    "application/vnd.ollama.image.projector": "mmproj.gguf",
    "application/vnd.ollama.image.template": "template.txt",
    "application/vnd.ollama.image.system": "system.txt",
    "application/vnd.ollama.image.params": "params.json",
    "application/vnd.ollama.image.messages": "messages.json",
    "application/vnd.ollama.image.license": "license.txt",
}

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class OllamaLayer:
    """One blob of a model, and the file name it is shown under."""

    file: str
    sha256: str
    size_bytes: int

    @property
    def blob(self) -> Path:
        """Where its content lives; models that share a layer share the file."""
        return _root() / "blobs" / f"sha256-{self.sha256}"


def cached(ref: Ref) -> ModelFiles | None:
    """The model from disk, if its last pull came to the end."""
    directory = _directory(ref)
    files = sorted(path for path in directory.glob("*") if path.name != "manifest.json" and path.is_file())
    weights = directory / WEIGHTS
    if not (directory / "manifest.json").exists() or weights not in files:
        return None
    sidecars = tuple(path for path in files if path != weights and not path.name.startswith("."))
    return ModelFiles(ref, ref.name, "gguf", (weights,), sidecars=sidecars)


def download(ref: Ref, progress: Progress, check: Check) -> ModelFiles:
    """Bring what the registry now calls by this name onto the disk."""
    manifest, layers = _manifest(ref)
    if check is not accept:
        check(_look(ref, layers))
    directory = _directory(ref)
    pending = directory / ".manifest.pending"  # a listing shows the model as incomplete by this
    with (
        store.disk_errors(_root()),
        store.lock(directory, lambda: progress.note(f"Waiting for {ref.name}.")),
        store.emptied_on_error(directory, lambda: bool(_blobs(directory))),
    ):
        before = _blobs(directory)
        store.write_text(pending, json.dumps(manifest))
        for layer in layers:
            _fetch(ref, layer, progress)
        for layer in layers:
            store.link(directory / layer.file, layer.blob)
        _unlink_others(directory, {layer.file for layer in layers})
        pending.replace(directory / "manifest.json")
        _delete_unused(before)
    found = cached(ref)
    assert found is not None, "every layer was just fetched"
    return found


def _unlink_others(directory: Path, files: set[str]) -> None:
    """Layers that the name no longer stands for, such as a system prompt, must not count any more."""
    for path in directory.iterdir():
        if path.is_symlink() and path.name not in files:
            path.unlink()


def preview(ref: Ref) -> Preview:
    """Describe the model at the registry."""
    return _look(ref, _manifest(ref)[1])


def _manifest(ref: Ref) -> tuple[Any, list[OllamaLayer]]:
    from tahr.hub import web

    url = f"{_registry()}/v2/{ref.repo}/manifests/{ref.selector}"
    manifest = web.get_json(url, {"Accept": MANIFEST_TYPE}, ref.name)
    return manifest, list(_layers(manifest, ref.name))


def _look(ref: Ref, layers: list[OllamaLayer]) -> Preview:
    from tahr.hub import web

    weights = next(layer for layer in layers if layer.file == WEIGHTS)
    if weights.blob.exists():
        return Preview(ref.name, size_bytes=weights.size_bytes)
    architecture = web.architecture_at(_url(ref, weights), {}, ref.name)
    return Preview(ref.name, architecture=architecture, size_bytes=weights.size_bytes)


def _url(ref: Ref, layer: OllamaLayer) -> str:
    return f"{_registry()}/v2/{ref.repo}/blobs/sha256:{layer.sha256}"


def _fetch(ref: Ref, layer: OllamaLayer, progress: Progress) -> None:
    from tahr.hub import transfer

    if layer.blob.exists():
        return
    label = ref.name if layer.file == WEIGHTS else f"{ref.name} {layer.file}"
    transfer.fetch(
        transfer.Download(_url(ref, layer), layer.blob, layer.size_bytes, layer.sha256, "sha256", label), progress
    )


def _layers(manifest: Any, name: str) -> Iterator[OllamaLayer]:
    try:
        stated = [(str(row["mediaType"]), str(row["digest"]), int(row["size"])) for row in manifest["layers"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DownloadError(f"The manifest of {name} makes no sense ({error!r}): try again later.") from error
    if len(stated) > MAX_LAYERS:
        raise DownloadError(f"The manifest of {name} has {len(stated)} layers: do not use this model.")
    _refuse_unusable([media_type for media_type, _, _ in stated], name)
    n_seen: dict[str, int] = {}
    for media_type, digest, size_bytes in stated:
        if not _DIGEST.fullmatch(digest) or not 0 <= size_bytes < 1 << 62:
            raise DownloadError(
                f"The manifest of {name} states {digest!r} of {size_bytes} bytes: do not use this model."
            )
        if file := LAYER_FILES.get(media_type):
            n_seen[file] = n_seen.get(file, 0) + 1
            yield OllamaLayer(_numbered(file, n_seen[file]), digest.removeprefix("sha256:"), size_bytes)


def _refuse_unusable(media_types: list[str], name: str) -> None:
    n_models = media_types.count("application/vnd.ollama.image.model")
    if n_models != 1:
        raise UnsupportedModel(f"{name} holds {n_models} GGUF files where Tahr needs exactly one: try another tag.")
    if "application/vnd.ollama.image.adapter" in media_types:
        raise UnsupportedModel(f"{name} is a base model plus an adapter layer, which Tahr does not apply: try another.")


def _numbered(file: str, nth: int) -> str:
    return file if nth == 1 else f"{Path(file).stem}-{nth}{Path(file).suffix}"


def entries() -> list[ModelEntry]:
    """Every model pulled from the registry, finished or not."""
    return [_entry(path) for path in sorted((_root() / "models").glob("*/*/*")) if path.is_dir()]


def _entry(directory: Path) -> ModelEntry:
    namespace, model, tag = directory.parts[-3:]
    name = f"ollama:{model}:{tag}" if namespace == "library" else f"ollama:{namespace}/{model}:{tag}"
    ready = cached(Ref("ollama", name, repo=f"{namespace}/{model}", selector=tag)) is not None
    size_bytes = sum(store.disk_bytes(path) for path in _blobs(directory))
    return ModelEntry(name, size_bytes, "ready" if ready else "incomplete", directory.stat().st_mtime, "ollama")


def remove(ref: Ref) -> int | None:
    """Delete a model and the layers no other model uses."""
    directory = _directory(ref)
    if not directory.is_dir():
        return None
    mine = _blobs(directory)
    shutil.rmtree(directory)
    return _delete_unused(mine)


def _delete_unused(blobs: set[Path]) -> int:
    """Delete those that no model needs, and return the bytes freed."""
    kept = {blob for model in (_root() / "models").glob("*/*/*") for blob in _blobs(model)}
    freed = 0
    for blob in blobs - kept:
        with suppress(FileNotFoundError):  # another process deletes it too
            freed += store.disk_bytes(blob)
            blob.unlink()
    return freed


def _blobs(directory: Path) -> set[Path]:
    """The blobs, finished or partial, that a model's manifests name."""
    names = set()
    for manifest in (directory / "manifest.json", directory / ".manifest.pending"):
        if manifest.exists():
            names |= set(
                re.findall(r"sha256:([0-9a-f]{64})", read_text(manifest, MAX_MANIFEST_BYTES, errors="replace"))
            )
    return {path for name in names for path in (_root() / "blobs").glob(f"sha256-{name}*")}


def _registry() -> str:
    return (os.environ.get("TAHR_OLLAMA_REGISTRY") or DEFAULT_REGISTRY).rstrip("/")


def _root() -> Path:
    return store.home() / "ollama"


def _directory(ref: Ref) -> Path:
    return _root() / "models" / ref.repo / (ref.selector or "latest")
