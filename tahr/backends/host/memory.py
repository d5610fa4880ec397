"""The memory of this machine, or of the container this process runs in where that is less."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tahr.errors import LoadError

MEMINFO = Path("/proc/meminfo")
OWN_GROUPS = Path("/proc/self/cgroup")


class GroupFiles(NamedTuple):
    """Where a version of Linux's control groups says what a group may use and uses."""

    root: Path
    limit: str
    used: str
    cache: str  # the field of memory.stat that counts file pages the kernel gives up first


VERSION_2 = GroupFiles(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file")
VERSION_1 = GroupFiles(
    Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)


def host_total_bytes() -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in group_limits())])


def host_free_bytes() -> int:
    """Bytes a new process could use without swapping, and without being killed for exceeding its container's limit."""
    return min([machine_free_bytes(), *(max(0, limit - used) for limit, used in group_limits())])


def machine_free_bytes() -> int:
    if not MEMINFO.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return memory_fields()["MemAvailable"]


def refuse_unfit(name: str, n_bytes: int) -> None:
    """Refuse a matrix that finds no room, not even in swap: the system would stand still and then end the process.

    Limits of containers are left out. What they count as used has file pages in it that the kernel would give up.
    """
    limit = loadable_bytes()
    if limit is not None and n_bytes > limit:
        raise LoadError(
            f"The model needs more memory than is free: {name} takes {n_bytes / 1e6:.1f} MB, and {limit / 1e6:.1f} MB "
            "are left. Use a smaller model or one quantised further, or end other programs."
        )


def loadable_bytes() -> int | None:
    """Bytes that matrices may take, swap included; None where the system does not say."""
    if not MEMINFO.exists():
        return None
    fields = memory_fields()
    return fields["MemAvailable"] + fields.get("SwapFree", 0)


def memory_fields() -> dict[str, int]:
    """Linux' figures of the machine's memory, in bytes."""
    pairs = (line.split(":", 1) for line in MEMINFO.read_text().splitlines() if line.endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def group_limits() -> Iterator[tuple[int, int]]:
    """Limit and use of each control group around this process that has a limit."""
    lines = OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            files = VERSION_1 if controllers else VERSION_2
            own = files.root / path.lstrip("/")
            # Inside a container the root may be the group itself, and the path one of the host's that is not seen here.
            for folder in (own, *(parent for parent in own.parents if parent.is_relative_to(files.root))):
                yield from limit_of(folder, files)


def limit_of(folder: Path, files: GroupFiles) -> Iterator[tuple[int, int]]:
    try:
        limit = (folder / files.limit).read_text().strip()
        used = int((folder / files.used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        found = (int(limit), used - int(stat.get(files.cache, 0))) if limit != "max" else None
    except (OSError, ValueError):  # no such group, no limits in it, or files of another form
        return
    if found:
        yield found
