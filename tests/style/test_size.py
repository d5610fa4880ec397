"""The weight of the code: tokens in all, and tokens a line, within the limits of benchmarks/size.toml."""

import sys
from functools import cache
from pathlib import Path

from sources import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import size

LIMITS = size.read_limits()


@cache
def found() -> dict[Path, size.Weight]:
    return size.weights(ROOT / "tahr")


def plain() -> dict[Path, size.Weight]:
    return {path: weight for path, weight in found().items() if not size.is_kernel(path)}


def test_what_is_counted() -> None:
    """Neither docstrings nor comments nor line ends weigh anything."""
    source = '"""A module."""\n\nx = 1  # a comment\n\n\ndef f() -> int:\n    """A function."""\n    return x\n'
    assert size.weight_of(source) == size.Weight(n_tokens=3 + 7 + 2, n_lines=3)


def test_the_code_has_a_limit_of_tokens() -> None:
    assert size.together(list(found().values())).n_tokens <= LIMITS["tokens"]


def test_lines_are_not_dense() -> None:
    assert size.together(list(plain().values())).density <= LIMITS["tokens_a_line"]


def test_no_file_is_dense() -> None:
    dense = {
        str(path.relative_to(ROOT)): round(weight.density, 1)
        for path, weight in plain().items()
        if weight.n_lines > LIMITS["small_file_lines"] and weight.density > LIMITS["tokens_a_line_of_a_file"]
    }
    assert dense == {}
