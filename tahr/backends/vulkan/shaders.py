"""The kernels: SPIR-V in an archive, made into pipelines for a device when they are first needed."""

import hashlib
import os
import zipfile
from functools import cache
from pathlib import Path

from tahr import _vulkan as native
from tahr.regular_file import read_bytes

ARCHIVE = Path(__file__).parent / "kernels" / "kernels.zip"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tahr" / "vulkan"
DIGEST_BYTES = 32  # a digest stands in front of what a cache file holds
MAX_CACHE_BYTES = 64 << 20


@cache
def codes() -> dict[str, bytes]:
    """The SPIR-V of every kernel."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def cache_file(facts: native.DeviceFacts) -> Path:
    """Where pipelines made for a driver are kept."""
    return CACHE / f"{facts.driver_id.hex()}-{facts.driver_version:08x}.bin"


def kept_pipelines(file: Path) -> bytes:
    """The pipelines that were kept; nothing where the file is damaged or absent."""
    try:
        content = read_bytes(file, MAX_CACHE_BYTES)
    except OSError:
        return b""
    digest = content[:DIGEST_BYTES]
    held = content[DIGEST_BYTES:]
    return held if hashlib.sha256(held).digest() == digest else b""


def keep_pipelines(file: Path, held: bytes) -> None:
    """Write a cache file in one piece: another process may read or write it. What cannot be written is made anew."""
    if len(held) > MAX_CACHE_BYTES:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_suffix(f".{os.getpid()}")
        written.write_bytes(hashlib.sha256(held).digest() + held)
        written.replace(file)
    except OSError:
        return


class Kernels:
    """Pipelines of one device by kernel and constants. Constant 0 is the size of a workgroup."""

    def __init__(self, device: native.Device):
        self.subgroup = device.facts.subgroup_size
        self._device = device
        self._made: dict[tuple[str, tuple[int, ...]], native.Pipeline] = {}
        self._n_kept = 0

    def get(self, name: str, n_threads: int, *constants: int) -> native.Pipeline:
        """A pipeline, which other threads may be compiling yet."""
        key = name, (n_threads, *constants)
        if key not in self._made:
            self._made[key] = native.Pipeline(self._device, codes()[name], key[1])
        return self._made[key]

    def threads(self, n: int) -> int:
        """At least so many, in whole subgroups."""
        return -(-n // self.subgroup) * self.subgroup

    def keep(self) -> None:
        """Keep what was compiled since the last time for other processes; all of it is ready."""
        if len(self._made) > self._n_kept:
            self._n_kept = len(self._made)
            keep_pipelines(cache_file(self._device.facts), self._device.cache_data())
