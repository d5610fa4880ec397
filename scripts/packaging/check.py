"""What must hold for a module before it goes into a wheel."""

import re
import subprocess
import sys
from pathlib import Path

from targets import MAX_WHEEL_BYTES

UNDEFINED = re.compile(r"^\s+U\s+(\S+)$")  # weak ones may be absent
PYTHON = re.compile(r"_?Py")


def refuse_missing_symbols(module: Path) -> None:
    """End where the module asks for a symbol that is neither Python's nor of a version of a library.

    A symbol without a version is one that the C library it was linked against does not have.
    """
    listed = subprocess.run(["nm", "-D", "--undefined-only", module], capture_output=True, text=True, check=True).stdout
    names = [found[1] for line in listed.splitlines() if (found := UNDEFINED.match(line))]
    versioned = any("@" in name for name in names)  # musl has no versions
    missing = [name for name in names if not PYTHON.match(name) and "@" not in name]
    if versioned and missing:
        sys.exit(f"{module.name} asks for what an older glibc lacks: {', '.join(missing)}. See tahr/native/packaging.")


def refuse_size(wheel: Path) -> None:
    n_bytes = wheel.stat().st_size
    if n_bytes > MAX_WHEEL_BYTES:
        sys.exit(f"{wheel.name} has {n_bytes / 1e6:.1f} MB, more than {MAX_WHEEL_BYTES / 1e6:.0f}: find out what grew.")
