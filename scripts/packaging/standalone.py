"""Tahr with a Python of its own: a folder, and a single file, that run where nothing is installed (`make standalone`).

Both are made by PyInstaller of the environment that this script runs in (tahr.spec). They need the C library of the
system that made them, or a newer one.
"""

import argparse
import subprocess
import sys
import tarfile
from pathlib import Path

SPEC = Path(__file__).with_name("tahr.spec")
MAX_BYTES = 60_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="dist", help="folder of what is made")
    parser.add_argument("--work", default="build/standalone", help="folder of what is made on the way")
    given = parser.parse_args()
    out = Path(given.out)
    freeze(out, Path(given.work))
    archive = out / "tahr-standalone.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(out / "tahr-folder", "tahr")
    for made in (archive, out / "tahr"):
        refuse_size(made)


def freeze(out: Path, work: Path) -> None:
    """Run PyInstaller; what it says is shown only where it fails."""
    words = ["--noconfirm", "--log-level", "WARN", "--distpath", str(out), "--workpath", str(work), str(SPEC)]
    command = [sys.executable, "-P", "-m", "PyInstaller", *words]  # -P: the installed Tahr, not this checkout
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"PyInstaller failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def refuse_size(made: Path) -> None:
    n_bytes = made.stat().st_size
    print(f"{n_bytes / 1e6:.1f} MB  {made}", flush=True)
    if n_bytes > MAX_BYTES:
        sys.exit(f"{made.name} is larger than {MAX_BYTES / 1e6:.0f} MB: find out what grew.")


if __name__ == "__main__":
    main()
