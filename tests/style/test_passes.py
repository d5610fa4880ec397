"""The passes and tiers of the tests themselves: a failure in either pass counts, and nothing is left out silently."""

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
    python = tmp_path / "python"
    notes = tmp_path / "notes"
    python.write_text(FAKE.format(notes=notes, beside=beside, alone=alone))
    python.chmod(0o755)
    environ = {"PATH": "/usr/bin:/bin", "WORKERS": "2", "TESTS": "tests/a tests/b"}
    done = subprocess.run([ROOT / "scripts" / "test.sh", python, "-k", "x or y"], env=environ, check=False)
    assert done.returncode == code
    passes = notes.read_text().splitlines()
    assert passes[0] == "-m pytest tests/a tests/b -m not serial -n 2 --dist loadfile -k x or y"
    assert passes[1:] == ([] if beside == 4 else ["-m pytest tests/a tests/b -m serial -k x or y"])


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
