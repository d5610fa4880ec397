"""CPU time of other processes."""

import os
from collections.abc import Sequence
from pathlib import Path

USER_TICKS = 11  # place in /proc/PID/stat behind the name, which may hold spaces; ticks of the system come next


def cpu_s_of(pids: Sequence[int]) -> float:
    """Seconds that these processes have computed; those that have ended count for nothing."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        total += sum(map(int, stat.rpartition(")")[2].split()[USER_TICKS : USER_TICKS + 2]))
    return total / ticks
