"""What a stranger may send or offer for download. Every test here ends by itself, or is ended after a minute."""

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
LIMIT_S = 60  # of one test; the whole folder takes less than two minutes on two idle cores (`make hostile`)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A hang is a finding: no test of this folder may take longer than LIMIT_S unless it or --timeout says so."""
    if config.getoption("timeout", None) is not None:
        return
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))
