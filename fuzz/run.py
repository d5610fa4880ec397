"""Fuzz what reads strangers' bytes, guided by coverage (`make fuzz`).

usage: python fuzz/run.py [--minutes 5] [TARGET ...]      the minutes are shared by all targets
Inputs that reach new code are kept in build/fuzz for the next time. One that fails is written to fuzz/found; when the
mistake is repaired it moves to fuzz/corpus, named found-..., and `tests/hostile/test_fuzz_corpus.py` goes on trying it.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from targets import TARGETS

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--minutes", type=float, default=5.0, help="of all targets together (5)")
    given = parser.parse_args()
    unknown = [name for name in given.targets if name not in TARGETS]
    if unknown:
        sys.exit(f"No target is called {unknown[0]}: there are {', '.join(TARGETS)}.")
    names = given.targets or list(TARGETS)
    seconds = max(1, int(given.minutes * 60 / len(names)))
    failed = [name for name in names if not holds(name, seconds)]
    sys.exit(f"Found: {', '.join(failed)}. The inputs are in fuzz/found." if failed else 0)


def holds(name: str, seconds: int) -> bool:
    """Fuzz one target in a process of its own, because libFuzzer ends it."""
    command = [sys.executable, str(HERE / "one.py"), name, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    lines = done.stderr.splitlines()
    counted = next((line for line in reversed(lines) if line.startswith("Done ")), "ended early")
    held = done.returncode == 0
    print(f"{name:16} {'held' if held else 'FAILED'}  {counted}", flush=True)
    if not held:
        print("\n".join(lines[-30:] + done.stdout.splitlines()[-30:]), flush=True)
    return held


if __name__ == "__main__":
    main()
