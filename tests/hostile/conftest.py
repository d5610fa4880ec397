"""What a stranger may send or offer for download. Every test here ends by itself, or is ended after half a minute."""

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
LIMIT_S = 30  # of one test; `make hostile` runs the folder, in well under two minutes on two idle cores


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A hang is a finding: no test of this folder may take longer than LIMIT_S unless it says so itself."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))
