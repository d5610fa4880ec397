"""One driver steps engines."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "tahr"
STEP = re.compile(r"engine\.step\(\)")


def test_only_the_driver_steps_an_engine() -> None:
    """Whoever uses an engine does it through `Driver`, so that what a step needs is said in one place."""
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if STEP.search(path.read_text())}
    assert found == {"generation/driver.py"}
