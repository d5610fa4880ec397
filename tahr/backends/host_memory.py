"""How much memory the host has."""

import os
from pathlib import Path

from tahr.backends.api.memory import Memory

MEMINFO = Path("/proc/meminfo")


def host_memory() -> Memory:
    """Free is what a new process could use without swapping."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not MEMINFO.exists():
        return Memory(total // 2, total)
    fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
    return Memory(int(fields["MemAvailable"].split()[0]) * 1024, total)
