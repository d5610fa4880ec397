"""Counters of energy: NVML's of an NVIDIA card, and RAPL's of processors and their memory, where they may be read.

A reading may take milliseconds: it is no work for a thread that runs steps.
"""

import ctypes
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"


class NvmlCounter:
    """The energy of a card since its driver was loaded."""

    def __init__(self, library: Any, handle: ctypes.c_void_p, name: str):
        self.name = name
        self._library = library
        self._handle = handle

    def joules(self) -> float | None:
        """The count; None: the card does not tell it (any more)."""
        found = ctypes.c_ulonglong(0)
        failed = self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(found))
        return None if failed else found.value / 1e3


def nvml_counter(uuid: str, library: str = NVML) -> NvmlCounter | None:
    """The counter of the card with this id; None where there is none that can be read."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    handle = ctypes.c_void_p()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return None
    counter = NvmlCounter(nvml, handle, f"NVML, {uuid}")
    return None if counter.joules() is None else counter


class RaplZone:
    """A part of a machine that counts its microjoules, up to a number behind which it begins at 0 again."""

    def __init__(self, folder: Path):
        self._count = folder / "energy_uj"
        self._period = int((folder / "max_energy_range_uj").read_text()) + 1
        self._last = self._read()
        self._total = 0

    def _read(self) -> int:
        return int(self._count.read_text())

    def microjoules(self) -> int:
        """Energy since the zone was opened, if it is read more often than its count begins anew."""
        now = self._read()
        self._total += (now - self._last) % self._period
        self._last = now
        return self._total


class RaplCounter:
    """The energy of all processors and their memory."""

    def __init__(self, zones: list[RaplZone], names: list[str]):
        self.name = f"RAPL, {', '.join(names)}"
        self._zones = zones

    def joules(self) -> float | None:
        """The count; None: a zone cannot be read any more."""
        try:
            return sum(zone.microjoules() for zone in self._zones) / 1e6
        except (OSError, ValueError):
            return None


def rapl_counter(root: Path = POWERCAP) -> RaplCounter | None:
    """Packages and the memory beside them; None where any of them may not be read, so that no part is missing."""
    zones = []
    names = []
    try:
        for folder in sorted(root.glob("intel-rapl:*")):
            name = (folder / "name").read_text().strip()
            if name.startswith("package") or name == "dram":  # cores and graphics are parts of packages
                zones.append(RaplZone(folder))
                names.append(name)
    except (OSError, ValueError):
        return None
    return RaplCounter(zones, names) if zones else None
