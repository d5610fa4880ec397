"""One hostile client beside eight ordinary streams, for eight seconds (benchmarks/hostile.py takes five minutes)."""

import subprocess
import sys
from pathlib import Path

import pytest

import story_model

pytestmark = pytest.mark.serial

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
SECONDS, MOST_GAP_S = 8, 5  # a machine that does other things too stalls for a second by itself
MOST_GROWTH_MB = 120  # most attacks come for the first time after a third of so few seconds: what they need is new then


@pytest.mark.timeout(120)
def test_streams_do_not_notice(tmp_path: Path) -> None:
    model = tmp_path / "story.gguf"
    model.write_bytes(story_model.to_gguf(story_model.arrays(), TEMPLATE))
    command = [sys.executable, str(ROOT / "benchmarks" / "hostile.py"), str(model), "--seconds", str(SECONDS)]
    command += [
        "--attack-seconds",
        "0.5",
        "--most-gap",
        str(MOST_GAP_S),
        "--most-growth",
        str(MOST_GROWTH_MB),
        "--most-end",
        "6",
        "--log",
        str(tmp_path / "attacks.log"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ordinary streams ended" in done.stdout
