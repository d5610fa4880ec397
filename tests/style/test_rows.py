"""docs/rows.md has a row for every ID, and the tests that it names exist."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "rows.md"
COUNTS = {"A": 21, "B": 14, "C": 14, "D": 12, "E": 22, "F": 14, "G": 16, "H": 11, "I": 15, "J": 14, "K": 7, "L": 8,
          "M": 15, "N": 5, "O": 13, "P": 20, "Q": 32, "R": 10, "S": 6, "T": 10, "U": 5, "V": 6, "W": 12}  # fmt: skip
AREAS = ("offload", "vulkan", "several devices", "speech", "images", "operation", "speed on a GPU")
WITHOUT = re.compile(rf"not yet \((?:{'|'.join(AREAS)})\)")  # how a row begins that no test shows


class Row(NamedTuple):
    id: str
    how: str

    @property
    def tests(self) -> list[tuple[str, str]]:
        """File and function of each test it names."""
        return re.findall(r"`([\w/]+\.py)::(\w+)`", self.how)


def rows() -> list[Row]:
    found = re.findall(r"^\| ([A-Z]\d+) \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [Row(*each) for each in found]


@cache
def functions_of(file: str) -> set[str]:
    """The test functions of a file; none, if there is no such file."""
    path = TESTS / file
    return set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)) if path.is_file() else set()


def test_every_id_has_a_row() -> None:
    assert [row.id for row in rows()] == [f"{area}{n}" for area, most in COUNTS.items() for n in range(1, most + 1)]


def test_every_row_has_a_test_or_says_when_it_will() -> None:
    assert [row.id for row in rows() if not row.tests and not WITHOUT.match(row.how)] == []


def test_tests_that_rows_name_exist() -> None:
    named = [(row.id, file, name) for row in rows() for file, name in row.tests]
    assert len(named) > 400
    assert [f"{id} {file}::{name}" for id, file, name in named if name not in functions_of(file)] == []
