"""Every example runs, on a tiny model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The tiny model has no chat template.
NAMES = sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name != "chat.py")


@pytest.mark.parametrize("name", NAMES)
def test_example(name: str, stories: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / name), str(stories)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr
