"""How much of the tests runs: `TAHR_TESTS` is empty (`make test`), "all" (`.ci/run`) or "nightly" (`make nightly`)."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

TIER = os.environ.get("TAHR_TESTS", "")
SHARES = {"": 1 / 3, "all": 1, "nightly": 10}  # of the examples that Hypothesis tries
LEFT_OUT = "only where TAHR_TESTS=all, as in .ci/run"

if TIER not in SHARES:
    raise pytest.UsageError(f'TAHR_TESTS is "{TIER}"; give it "all" or "nightly", or leave it out.')


def examples(n: int) -> int:
    """How many examples stand for n in this tier."""
    return max(5, round(n * SHARES[TIER]))


def full_but(kept: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Cases to parametrize with, of which only `kept` run outside the full tier."""
    at_once = list(kept)
    return [case if case in at_once else full(case) for case in cases]


def full(case: Any) -> Any:
    """A case of the full tier: one value, or a tuple of several."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
