"""The Python of the tests as a command of its own."""

import sys
from pathlib import Path


def python_here(*words: str) -> list[str]:
    """A Python that finds devices as this one does: one with another C library was started by that library's loader."""
    loader = Path("/proc/self/exe").resolve()
    if not loader.name.startswith("ld-"):
        return [sys.executable, *words]
    return [str(loader), "--library-path", str(loader.parent), sys.executable, *words]
