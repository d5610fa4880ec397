"""The cache all Hugging Face tools share: models--org--name/{blobs,snapshots,refs}. Reading it needs no network."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tahr.hub import pick, store
from tahr.hub.files import ModelEntry, ModelFiles
from tahr.hub.refs import Ref
from tahr.regular_file import read_text

MAX_REF_BYTES = 4096
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PARTIAL = ("*.incomplete", "*.tahr-partial")


def directory() -> Path:
    """$HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub."""
    env = os.environ
    if explicit := env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE"):
        return store.expanded(Path(explicit))
    caches = Path(env.get("XDG_CACHE_HOME") or "~/.cache")
    return store.expanded(Path(env.get("HF_HOME") or caches / "huggingface")) / "hub"


@dataclass(frozen=True)
class Repo:
    """One repository's place in the cache."""

    id: str

    @property
    def root(self) -> Path:
        """The directory of this repository."""
        return directory() / f"models--{self.id.replace('/', '--')}"

    def blob(self, etag: str) -> Path:
        """Where the content with this tag lives."""
        return self.root / "blobs" / etag

    def snapshot(self, commit: str) -> Path:
        """The directory that shows one commit under its file names."""
        return self.root / "snapshots" / commit

    def write_ref(self, revision: str, commit: str) -> None:
        """Remember what a branch or tag stood for; a commit stands for itself."""
        if revision != commit:
            store.write_text(self.root / "refs" / revision, commit)

    def snapshots(self, revision: str | None) -> list[Path]:
        """Snapshots to look at, best first: that of the revision; without one, main and then the newest."""
        commit = self._commit(revision or "main")
        named = [self.snapshot(commit)] if commit else []
        if revision:
            return named
        others = [path for path in (self.root / "snapshots").glob("*") if path.is_dir() and path not in named]
        return named + sorted(others, key=lambda path: -path.stat().st_mtime)

    def _commit(self, revision: str) -> str | None:
        if _COMMIT.fullmatch(revision):
            return revision
        try:
            commit = read_text(self.root / "refs" / revision, MAX_REF_BYTES).strip()
        except (OSError, ValueError):
            return None
        return commit if _COMMIT.fullmatch(commit) else None


def listing(snapshot: Path) -> list[str]:
    """The files that are really there: links to content still missing do not count."""
    return [path.relative_to(snapshot).as_posix() for path in sorted(snapshot.rglob("*")) if path.is_file()]


def find(ref: Ref) -> ModelFiles | None:
    """The model as the cache holds it, if it holds all of it."""
    for snapshot in Repo(ref.repo).snapshots(ref.revision):
        if found := pick.try_open(ref, snapshot, listing(snapshot)):
            return replace(found, sidecars=found.sidecars + _tokenizer_sidecars(ref))
    return None


def _tokenizer_sidecars(ref: Ref) -> tuple[Path, ...]:
    if not ref.tokenizer_repo:
        return ()
    for snapshot in Repo(ref.tokenizer_repo).snapshots(None):
        if found := tuple(snapshot / name for name in pick.SMALL_FILES if (snapshot / name).is_file()):
            return found
    return ()


def entries() -> list[ModelEntry]:
    """Every language model in the cache, by anyone who put it there."""
    found: list[ModelEntry] = []
    for root in sorted(directory().glob("models--*--*")):
        with suppress(PermissionError):  # another user's file, in a cache that several share
            found += _repo_entries(root)
    return found


def _repo_entries(root: Path) -> Iterator[ModelEntry]:
    repo = Repo(root.name.removeprefix("models--").replace("--", "/", 1))
    snapshots = repo.snapshots(None)
    models = next((found for snapshot in snapshots if (found := list(_models(repo, snapshot)))), [])
    for model in models:
        yield _entry(model)
    half_done = [path for pattern in _PARTIAL for path in (root / "blobs").glob(pattern)]
    if half_done or (not models and any(_promises_weights(name) for path in snapshots for name in listing(path))):
        size_bytes = sum(map(store.disk_bytes, half_done)) if models else store.disk_bytes(root.resolve())
        yield ModelEntry(repo.id, size_bytes, "incomplete", root.stat().st_mtime, "hf")


def _promises_weights(name: str) -> bool:
    # A repository of which only the tokenizer was wanted is no unfinished model.
    return name == pick.INDEX or name.endswith((".gguf", ".safetensors"))


def _models(repo: Repo, snapshot: Path) -> Iterator[ModelFiles]:
    names = listing(snapshot)
    found = pick.try_open(Ref("hf", repo.id, repo=repo.id), snapshot, names)
    if found and found.format == "safetensors":
        yield found
    models = pick.gguf_models(names)
    n_of = Counter(model.quant for model in models)
    for model in models:
        # A name must mean one model: of several with the same quant each has that of its file.
        selector = model.quant if model.quant and n_of[model.quant] == 1 else model.files[0]
        ref = Ref("hf", f"{repo.id}:{selector}", repo=repo.id, selector=model.files[0])
        if found := pick.try_open(ref, snapshot, names):
            yield found


def _entry(found: ModelFiles) -> ModelEntry:
    stats = [path.stat() for path in found.weights]
    modified = max(stat.st_mtime for stat in stats)
    return ModelEntry(found.name, sum(stat.st_size for stat in stats), "ready", modified, "hf")


def remove(ref: Ref) -> int | None:
    """Delete a repository, or one GGUF model of it; returns the bytes freed, or None when there is nothing."""
    repo = Repo(ref.repo)
    if not repo.root.is_dir():
        return None
    root = repo.root.resolve()  # target of a link that a move to another disk left
    before = store.disk_bytes(root)
    if ref.selector and not _remove_model(repo, ref):
        return None
    if not ref.selector or not any(list(_models(repo, path)) for path in repo.snapshots(None)):
        shutil.rmtree(root)
        if repo.root.is_symlink():
            repo.root.unlink()
        shutil.rmtree(directory() / ".locks" / repo.root.name, ignore_errors=True)
    return before - (store.disk_bytes(root) if root.exists() else 0)


def _remove_model(repo: Repo, ref: Ref) -> bool:
    gone = [path for snapshot in repo.snapshots(None) for path in _weights(ref, snapshot)]
    blobs = {path.resolve() for path in gone}
    for path in gone:
        path.unlink()
    kept = {path.resolve() for path in (repo.root / "snapshots").rglob("*") if path.is_symlink()}
    for blob in blobs - kept:
        blob.unlink(missing_ok=True)
    return bool(gone)


def _weights(ref: Ref, snapshot: Path) -> tuple[Path, ...]:
    found = pick.try_open(ref, snapshot, listing(snapshot))
    return found.weights if found else ()
