"""The Hugging Face hub: what a repository holds, and bringing the right part of it into the shared cache."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tahr.errors import CorruptFile, DownloadError, ModelNotFound, TahrError
from tahr.hub import hf_cache, pick, store
from tahr.hub.files import Format, ModelEntry, ModelFiles
from tahr.hub.preview import Check, Preview, accept, read_config
from tahr.hub.progress import Progress
from tahr.hub.refs import Ref

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

    from tahr.hub import transfer

_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
MAX_NAME_CHARS = 1024
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class RemoteFile:
    """One file of a repository at one commit; its digest is also its name in the cache."""

    name: str
    size_bytes: int
    digest: str
    in_lfs: bool


@dataclass(frozen=True)
class RepoListing:
    """A repository's files at one commit."""

    repo: hf_cache.Repo
    revision: str
    commit: str
    files: dict[str, RemoteFile]


def is_offline() -> bool:
    """Whether the user has forbidden requests to the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def cached(ref: Ref) -> ModelFiles | None:
    """The model from the cache, without a single request."""
    return hf_cache.find(ref)


def download(ref: Ref, progress: Progress, check: Check) -> ModelFiles:
    """Bring the newest commit of what the reference means into the cache, fetching only what is missing."""
    with store.disk_errors(hf_cache.directory()):
        listing = _list(ref.repo, ref.revision)
        with store.emptied_on_error(listing.repo.root, lambda: _holds_weights(listing.repo)):
            _bring(ref, listing, progress, check)
        _fetch_sidecars(ref, progress)
    # Should what was fetched not be all a model needs, opening it says what is missing.
    snapshot = listing.repo.snapshot(listing.commit)
    return hf_cache.find(ref) or pick.open_directory(ref, snapshot, hf_cache.listing(snapshot))


def _bring(ref: Ref, listing: RepoListing, progress: Progress, check: Check) -> None:
    chosen, weights = _choose(ref, listing, progress)
    if check is not accept:
        check(_look(ref, listing, chosen, weights))
    _fetch(listing, weights, progress)
    # The reference moves last: an interrupted refresh leaves the old commit in use.
    listing.repo.write_ref(listing.revision, listing.commit)


def tokenizer_directory(ref: Ref, progress: Progress) -> Path | None:
    """Where the tokenizer of a safetensors repository is, fetched without its weights; None for a GGUF."""
    here = (path for path in hf_cache.Repo(ref.repo).snapshots(ref.revision) if (path / "tokenizer.json").is_file())
    if found := next(here, None):
        return found if pick.choose_format([*hf_cache.listing(found), WEIGHTS], ref) == "safetensors" else None
    with store.disk_errors(hf_cache.directory()):
        listing = _list(ref.repo, ref.revision)
        if pick.choose_format(listing.files, ref) != "safetensors" or "tokenizer.json" not in listing.files:
            return None
        # Without the index: a repository of which only the tokenizer was wanted is no unfinished model.
        _fetch(listing, [name for name in pick.SMALL_FILES if name in listing.files and name != pick.INDEX], progress)
        listing.repo.write_ref(listing.revision, listing.commit)
        return listing.repo.snapshot(listing.commit)


def _holds_weights(repo: hf_cache.Repo) -> bool:
    endings = (".gguf", ".safetensors", ".tahr-partial")
    return any(path.name.lower().endswith(endings) for path in repo.root.rglob("*"))


def _choose(ref: Ref, listing: RepoListing, progress: Progress) -> tuple[Format, tuple[str, ...]]:
    """The names of the weights. Small files are fetched first: once the weights are there, so is everything else."""
    chosen = pick.choose_format(listing.files, ref)
    if chosen == "safetensors":
        _refuse_without_config(ref, listing)
    wanted = pick.SMALL_FILES if chosen == "gguf" else (*pick.SMALL_FILES, *pick.SENTENCE_FILES, *pick.SPEECH_FILES)
    _fetch(listing, [name for name in wanted if name in listing.files], progress)
    if chosen == "gguf":
        weights = pick.choose_gguf(listing.files, ref.selector, ref.repo).files
        return chosen, weights + pick.tower_to_fetch(listing.files, weights[0], ref.repo)
    return chosen, pick.safetensors_names(listing.files, listing.repo.snapshot(listing.commit))


def _refuse_without_config(ref: Ref, listing: RepoListing) -> None:
    """Before gigabytes are fetched: weights of adapters, and of many other things, are safetensors too."""
    if "config.json" in listing.files:
        return
    if "adapter_config.json" in listing.files:
        raise ModelNotFound(
            f"{ref.repo} is an adapter and no model: fetch its base model, and name the adapter's folder by --lora."
        )
    raise ModelNotFound(f"{ref.repo} has safetensors but no config.json, so it is no language model: name another.")


def _look(ref: Ref, listing: RepoListing, chosen: Format, weights: tuple[str, ...]) -> Preview:
    """Describe the weights before they are fetched."""
    size_bytes = sum(listing.files[name].size_bytes for name in weights if name in listing.files)
    if chosen == "gguf":
        return Preview(ref.repo, architecture=_architecture(listing, weights[0]), size_bytes=size_bytes)
    config = read_config(listing.repo.snapshot(listing.commit) / "config.json")
    return Preview(ref.repo, config=config, size_bytes=size_bytes)


def _architecture(listing: RepoListing, name: str) -> str | None:
    from tahr.hub import web

    file = listing.files.get(name)
    if file is None or listing.repo.blob(file.digest).exists():
        return None
    return web.architecture_at(_url(listing, file), _login(), name)


def preview(ref: Ref) -> Preview:
    """Describe the model at the repository; files fetched for that are removed again."""
    with store.disk_errors(hf_cache.directory()):
        listing = _list(ref.repo, ref.revision)
        is_new = not listing.repo.root.exists()
        try:
            return _look(ref, listing, *_choose(ref, listing, Progress()))
        finally:
            if is_new:
                store.remove_tree(listing.repo.root)


def entries() -> list[ModelEntry]:
    """Every language model in the shared cache."""
    return hf_cache.entries()


def remove(ref: Ref) -> int | None:
    """Delete from the shared cache; None when it is not there."""
    return hf_cache.remove(ref)


def _fetch_sidecars(ref: Ref, progress: Progress) -> None:
    """Tokenizer and configuration of a GGUF from its base repository: welcome, but the GGUF works without them."""
    if not ref.tokenizer_repo:
        return
    try:
        listing = _list(ref.tokenizer_repo, None)
        names = [name for name in pick.SMALL_FILES if name in listing.files and name != pick.INDEX]
        _fetch(listing, names, progress)
        listing.repo.write_ref(listing.revision, listing.commit)
    except TahrError as error:
        progress.note(f"Going on with the tokenizer inside the GGUF, since {ref.tokenizer_repo} gave none: {error}")


def _fetch(listing: RepoListing, names: Iterable[str], progress: Progress) -> None:
    from tahr.hub import transfer  # the network takes a while to import, and models already here do without

    repo = listing.repo
    snapshot = listing.repo.snapshot(listing.commit)
    for name in names:
        file = listing.files.get(name)
        if file is None:
            raise CorruptFile(f"{repo.id} lists {name} as part of the model but does not hold it: tell its authors.")
        blob = repo.blob(file.digest)
        if blob.exists() and blob.stat().st_size != file.size_bytes:
            blob.unlink()  # truncated by someone: fetch it anew
        if not blob.exists():
            transfer.fetch(_job(listing, file), progress)
        store.link(snapshot / name, blob)


def _job(listing: RepoListing, file: RemoteFile) -> transfer.Download:
    from tahr.hub import transfer

    return transfer.Download(
        url=_url(listing, file),
        target=listing.repo.blob(file.digest),
        size_bytes=file.size_bytes,
        digest=file.digest,
        algorithm="sha256" if file.in_lfs else "git",
        label=PurePosixPath(file.name).name,
        headers=_login(),
    )


def _url(listing: RepoListing, file: RemoteFile) -> str:
    return f"{_endpoint()}/{listing.repo.id}/resolve/{listing.commit}/{quote(file.name)}"


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _login() -> dict[str, str]:
    from huggingface_hub import get_token

    token = get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _list(repo: str, revision: str | None) -> RepoListing:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    revision = revision or "main"
    try:
        info = HfApi(endpoint=_endpoint()).model_info(repo, revision=revision, files_metadata=True)
    except HfHubHTTPError as error:
        raise _explain(error, repo, revision) from error
    except Exception as error:  # the HTTP library beneath differs between versions, and so do its errors
        raise DownloadError(
            f"{_endpoint()} cannot be reached for {repo} ({error}): check the network. Models that are already on"
            " this machine work without it (`tahr list`)."
        ) from error
    return _checked(repo, revision, info)


def _checked(repo: str, revision: str, info: ModelInfo) -> RepoListing:
    if not isinstance(info.sha, str) or not re.fullmatch(r"[0-9a-f]{40}", info.sha):
        raise DownloadError(f"{_endpoint()} gave no commit for {repo}: is HF_ENDPOINT a Hugging Face hub?")
    files = [_remote_file(repo, sibling) for sibling in info.siblings or []]
    return RepoListing(hf_cache.Repo(repo), revision, info.sha, {file.name: file for file in files})


def _remote_file(repo: str, sibling: RepoSibling) -> RemoteFile:
    name: Any = sibling.rfilename
    size_bytes: Any = sibling.lfs.size if sibling.lfs else sibling.size
    digest: Any = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    # Names become paths on this disk, so a hub that sends anything else is not to be trusted with one.
    if not isinstance(name, str) or not _is_inside(name):
        raise DownloadError(f"{repo} lists a file called {name!r}, which points outside it: do not use this model.")
    if type(size_bytes) is not int or not 0 <= size_bytes < 1 << 62 or not _DIGEST.fullmatch(str(digest)):
        raise DownloadError(f"{_endpoint()} states no size and digest for {name} of {repo}, so it cannot be checked.")
    return RemoteFile(name, size_bytes, digest, sibling.lfs is not None)


def _is_inside(name: str) -> bool:
    """Whether a name can only be that of a file below the repository."""
    long = len(name) > MAX_NAME_CHARS or any(len(part) > 255 for part in PurePosixPath(name).parts)
    return name.isprintable() and not (
        name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts or long
    )


def _explain(error: HfHubHTTPError, repo: str, revision: str) -> TahrError:
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    status = error.response.status_code
    how = "accept its terms on its page and set HF_TOKEN to a token of your account"
    if isinstance(error, RevisionNotFoundError):
        return ModelNotFound(f"{repo} has no revision `{revision}`: leave it out for the newest one.")
    if isinstance(error, GatedRepoError) or status == 403:
        return DownloadError(f"{repo} is gated and your login may not read it: {how}.")
    if status == 401:
        return DownloadError(f"{repo} does not exist, or is private or gated. Check the spelling; if it exists, {how}.")
    if status == 404:
        return ModelNotFound(f"There is no repository {repo} on {_endpoint()}: check the spelling.")
    return DownloadError(f"{_endpoint()} answered HTTP {status} for {repo}: try again later.")
