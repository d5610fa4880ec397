"""The page of figures is made from its entries, and each figure says when and by which command it was measured."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import log_page  # noqa: E402

SCRIPT = re.compile(r"benchmarks/[\w/]+\.(?:py|sh)")
CELL = re.compile(r"[\d,]+ / [\d,]+ = [\d.]+×")


def figures() -> list[tuple[str, str, str]]:
    """Name, command and time of each figure."""
    return [
        (
            figure["name"],
            figure.get("command", section.get("command", "")),
            figure.get("measured", section.get("measured", "")),
        )
        for section in log_page.sections()
        for figure in section["figures"]
    ]


def test_the_page_of_figures_is_true() -> None:
    assert log_page.PAGE.read_text(encoding="utf-8") == log_page.page(), "run: python scripts/log_page.py"


def test_every_figure_has_a_command_and_a_time() -> None:
    assert [
        name for name, command, measured in figures() if not command or not re.match(r"20\d\d-\d\d-\d\d, ", measured)
    ] == []


def test_commands_of_figures_run_scripts_that_exist() -> None:
    named = {script for _, command, _ in figures() for script in SCRIPT.findall(command)}
    assert len(named) > 10
    assert sorted(script for script in named if not (ROOT / script).is_file()) == []


def test_every_figure_has_a_value_for_each_column() -> None:
    wrong = [
        figure["name"]
        for section in log_page.sections()
        for figure in section["figures"]
        if len(figure["values"]) != len(section.get("columns", ["value"]))
    ]
    assert wrong == []


def test_figures_of_the_readme_are_current() -> None:
    cells = set(CELL.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    assert len(cells) > 5
    assert sorted(cells - set(CELL.findall(log_page.page()))) == []
