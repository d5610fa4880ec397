"""The table of features and capabilities has no empty cell, and every cell says what is so."""

import ast
from functools import cache
from pathlib import Path

import pytest
from interplay import COLUMNS, FEATURES, Refuses, Runs

from sources import FILES, ROOT

TESTS = ROOT / "tests"
CELLS = [(column, feature) for column in COLUMNS for feature in FEATURES]


@cache
def functions_of(path: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


@cache
def source() -> str:
    return "\n".join(path.read_text() for path in FILES)


@pytest.mark.parametrize("column", COLUMNS)
def test_no_cell_is_empty_and_none_is_too_many(column: str) -> None:
    assert tuple(COLUMNS[column]) == FEATURES


@pytest.mark.parametrize(("column", "feature"), CELLS, ids=[" and ".join(cell) for cell in CELLS])
def test_a_cell_names_tests_that_exist_and_sentences_that_are_said(column: str, feature: str) -> None:
    cell = COLUMNS[column][feature]
    assert isinstance(cell, Runs | Refuses)
    named = cell.tests if isinstance(cell, Runs) else (cell.test,)
    for each in named:
        file, _, name = each.partition("::")
        assert name in functions_of(TESTS / file), f"there is no test {each}"
    if isinstance(cell, Refuses):
        assert cell.sentence in source()
