"""The passes and tiers of the tests themselves: a failure in either pass counts, and nothing is left out silently."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiers
from sources import ROOT

# Stands for Python: it notes how it was called and ends as the pass is meant to.
FAKE = """#!/bin/sh
echo "$*" >> {notes}
case "$*" in
    "-c "*) exit {left} ;;
    *"-m serial"*) exit {alone} ;;
    *) exit {beside} ;;
esac
"""


@pytest.mark.parametrize(
    ("beside", "alone", "code"),
    [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1), (5, 0, 0), (0, 5, 0), (5, 1, 1), (1, 5, 1), (5, 5, 5), (4, 0, 4)],
)
def test_either_pass_fails_both(tmp_path: Path, beside: int, alone: int, code: int) -> None:
    """5 is pytest's word for a pass in which nothing was chosen; that alone is no failure."""
    found, passes = run_script(tmp_path, beside=beside, alone=alone, left=1)
    assert found == code
    assert passes[0] == "-m pytest tests/a tests/b -m not serial -n 2 --dist loadfile -k x or y"
    if beside != 4:
        assert passes[1] == "-m pytest tests/a tests/b -m serial -k x or y"
    assert len(passes) == (4 if code == 1 else 1 if beside == 4 else 2)


@pytest.mark.parametrize(("beside", "alone"), [(1, 0), (0, 1), (1, 1), (5, 1), (1, 5)])
@pytest.mark.parametrize("left", [0, 1])
def test_what_measures_time_is_tried_again(tmp_path: Path, beside: int, alone: int, left: int) -> None:
    """Of all that failed, nothing may be left that has not passed since."""
    found, passes = run_script(tmp_path, beside=beside, alone=alone, left=left)
    assert found == left
    assert passes[2] == "-m pytest tests/a tests/b -m timed --last-failed --last-failed-no-failures none -k x or y"
    assert passes[3].startswith("-c ") and passes[3].endswith("cache/lastfailed")


def run_script(folder: Path, **codes: int) -> tuple[int, list[str]]:
    """The exit code of the script, and how it called Python."""
    python = folder / "python"
    notes = folder / "notes"
    python.write_text(FAKE.format(notes=notes, **codes))
    python.chmod(0o755)
    environ = {"PATH": "/usr/bin:/bin", "WORKERS": "2", "TESTS": "tests/a tests/b"}
    script = folder / "scripts" / "test.sh"
    script.parent.mkdir()
    shutil.copy(ROOT / "scripts" / "test.sh", script)  # it works in the folder above its own
    done = subprocess.run([script, python, "-k", "x or y"], env=environ, check=False)
    return done.returncode, notes.read_text().splitlines()


CLOCKED = """import time


def test_late():
    assert time.monotonic() < 0


def test_wrong():
    assert False
"""


def test_only_what_reads_a_clock_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(CLOCKED)
    words = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "no:cacheprovider", "-m", "timed"]
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'helpers'}"}
    command = [sys.executable, "-m", "pytest", *words, str(tmp_path / "test_it.py")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert "1 failed, 1 deselected" in done.stdout and "test_late" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("tier", "n", "skips"), [("", 20, True), ("all", 60, False)])
def test_tiers(tier: str, n: int, skips: bool, tmp_path: Path) -> None:
    """In a worker, too: the last line is the controller's. Takes seconds, because pytest and its worker start."""
    (tmp_path / "conftest.py").write_text(f'pytest_plugins = ["conftest_of_all"]\nPATH = {str(tmp_path)!r}\n')
    (tmp_path / "conftest_of_all.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(
        f"import pytest\nfrom tiers import examples, full_but\n\n\n"
        f'@pytest.mark.parametrize("n", full_but([1], [1, 2, 3]))\n'
        f"def test_it(n):\n    assert examples(60) == {n}\n"
    )
    words = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "no:cacheprovider", "-n", "1"]
    environ = {
        "PATH": "/usr/bin:/bin",
        "TAHR_TESTS": tier,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'helpers'}:{tmp_path}",
    }
    command = [sys.executable, "-m", "pytest", *words, str(tmp_path / "test_it.py")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last == (f"Skipped 2: 2 x {tiers.LEFT_OUT}." if skips else "Skipped nothing.")
