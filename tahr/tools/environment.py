"""Circumstances of a measurement, so that figures can be compared later."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
STAT = Path("/proc/stat")
WORTH_SAYING = 0.02  # share of the processor's time that is reported


def environment() -> dict[str, Any]:
    """Processor, load, and versions of what ran."""
    import numpy

    from tahr import __version__
    from tahr.backends.cpu.processor.info import read_cpu_info

    cpu = read_cpu_info()
    return {
        "cpu_info": cpu.model,
        "n_cores": cpu.n_cores,
        "n_hardware_threads": cpu.n_threads,
        "governor": governor(),
        "load_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "tahr": __version__,
        "build_commit": commit(),
    }


def governor() -> str | None:
    """How the system sets the clock; None where it does not tell."""
    try:
        return GOVERNOR.read_text().strip()
    except OSError:
        return None


class Neighbours:
    """Processor time that other virtual machines take from this one, counted since this was made."""

    def __init__(self) -> None:
        self._before = ticks()

    @property
    def share(self) -> float | None:
        """Share of the time that processes here wanted; None where the system does not tell."""
        now = ticks()
        if now is None or self._before is None:
            return None
        wanted = now[0] - self._before[0]
        stolen = now[1] - self._before[1]
        return stolen / wanted if wanted > 0 else 0.0

    def warning(self) -> str:
        """A sentence if they took so much that figures are too low, else empty."""
        share = self.share
        if share is None or share < WORTH_SAYING:
            return ""
        return (
            f"{share:.0%} of the processor's time went to other virtual machines meanwhile: these figures are too low."
        )


def ticks() -> tuple[int, int] | None:
    """Clock ticks that processes here wanted, and those of them that other machines got instead."""
    try:
        user, nice, system, _, _, irq, softirq, stolen = map(int, STAT.read_text().split("\n", 1)[0].split()[1:9])
    except (OSError, ValueError):
        return None
    return user + nice + system + irq + softirq + stolen, stolen


def commit() -> str | None:
    """The commit of a checkout, with `+` where files were changed since; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # a virtual environment may lie inside another checkout
        return None
    git = ["git", "-C", str(root)]
    try:
        found = subprocess.run([*git, "describe", "--always", "--dirty=+"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def line(facts: dict[str, Any]) -> str:
    """The facts in one line."""
    governor_said = f", governor {facts['governor']}" if facts["governor"] else ""
    load = "" if facts["load_1min"] is None else f", load {facts['load_1min']:.1f}"
    built = f" ({facts['build_commit']})" if facts["build_commit"] else ""
    return f"{facts['cpu_info']}, {facts['n_cores']} cores{governor_said}{load}; tahr {facts['tahr']}{built}"
