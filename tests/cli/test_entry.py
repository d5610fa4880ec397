"""The process of the command: quiet about Ctrl-C before and after the command itself, and ended at once."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from python_here import python_here

ROOT = Path(__file__).resolve().parents[2]
INTERRUPTING = """
import builtins, os, signal, sys
before = builtins.__import__
def load(name, *more):
    if name == {name!r}:
        os.kill(os.getpid(), signal.SIGINT)
    return before(name, *more)
builtins.__import__ = load
sys.argv = ["tahr", "version"]
if {ignores}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
from tahr.cli.entry import main
main()
"""
LATE = """
import atexit, os, signal, sys
sys.argv = ["tahr", "version"]
from tahr.cli.entry import main
main()
atexit.register(os.kill, os.getpid(), signal.SIGINT)
"""


def ended(program: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(python_here("-c", program), env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["tahr.cli.main", "tahr.cli.termination", "argparse"])
def test_ctrl_c_at_the_start_is_quiet(name: str) -> None:
    done = ended(INTERRUPTING.format(name=name, ignores=False))
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


def test_ctrl_c_that_a_shell_has_ignored_stays_ignored() -> None:
    done = ended(INTERRUPTING.format(name="tahr.cli.termination", ignores=True))
    assert done.returncode == 0 and done.stdout.startswith("tahr "), done.stderr


def test_ctrl_c_at_the_end_changes_nothing() -> None:
    done = ended(LATE)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("tahr ")


def test_what_is_registered_for_the_end_is_called_before_it() -> None:
    done = ended(LATE.replace("os.kill, os.getpid(), signal.SIGINT", "print, 'last words'"))
    assert done.returncode == 0 and done.stdout.endswith("last words\n")
