"""This machine's processor, and how many threads suit it."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
CPU_INFO = Path("/proc/cpuinfo")
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """`n_cores` counts physical cores this process may run on, `n_threads` what their hardware threads come to."""

    model: str
    n_cores: int
    n_threads: int


def read_cpu_info() -> CpuInfo:
    """Facts about the processor, as far as the system tells them."""
    allowed = usable_cpus()
    cores = len({siblings(cpu) for cpu in allowed})
    quota = cpu_quota()
    return CpuInfo(model_name(), min(cores, quota) if quota else cores, len(allowed))


def usable_cpus() -> list[int]:
    """Numbers of the logical processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def siblings(cpu: int) -> str:
    """A name for the physical core of a logical processor: the list of all threads it has."""
    return read(CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)


def cpu_quota() -> int | None:
    """Whole processors a container may use at a time; more threads than that would only be made to wait."""
    quota, _, period = read(CPU_QUOTA).partition(" ")
    return max(1, int(quota) // int(period)) if quota.isdigit() and period.isdigit() and int(period) else None


def model_name() -> str:
    """The processor's name, or the name of its architecture where the system has no better one."""
    for line in read(CPU_INFO).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def read(path: Path) -> str:
    """The text of a system file, empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
