"""Writes benchmarks/LOG.md, the figures that hold now, from benchmarks/log/current.toml.

Run: python scripts/log_page.py   (tests/style/test_log.py fails when the page is no longer true)
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "log"
FIGURES = FOLDER / "current.toml"
PAGE = ROOT / "benchmarks" / "LOG.md"
HEAD = """# Figures

Made by `scripts/log_page.py` from `benchmarks/log/current.toml`; `tests/style/test_log.py` fails when it is no longer
true. How each was taken, what was tried and what was missed is in the month it was measured in: {months}.

Absolute numbers move with the machine; ratios were measured against the peer in turn. A new measurement becomes an
entry of its month, newest first, and replaces the figure here.
"""
Section = dict[str, Any]


def sections() -> list[Section]:
    """The figures, section by section."""
    found: list[Section] = tomllib.loads(FIGURES.read_text(encoding="utf-8"))["section"]
    return found


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def source(figure: Section, section: Section) -> str:
    """When a figure was measured and by which command."""
    command = figure.get("command", section.get("command"))
    measured = figure.get("measured", section.get("measured"))
    return f"{measured}: `{command}`"


def is_own(figure: Section) -> bool:
    """Whether a figure was measured otherwise than its section."""
    return "command" in figure or "measured" in figure


def table(section: Section) -> Iterator[str]:
    """The figures of a section; those without a command of their own have the section's."""
    sources = [source(figure, section) if is_own(figure) else "" for figure in section["figures"]]
    last = ["measured"] if any(sources) else []
    head = ["", *section.get("columns", ["value"]), *last]
    yield row(head)
    yield "|" + "---|" * len(head)
    for figure, text in zip(section["figures"], sources, strict=True):
        yield row([figure["name"], *figure["values"], *([text] if last else [])])


def block(section: Section) -> Iterator[str]:
    yield f"\n## {section['title']}\n\nOn {section['machine']}."
    if "note" in section:
        yield section["note"]
    if "command" in section:
        yield f"Measured {source(section, section)}."
    yield ""
    yield from table(section)


def months() -> list[str]:
    return [path.stem for path in sorted(FOLDER.glob("*.md"), reverse=True)]


def page() -> str:
    """The whole page."""
    lines = [HEAD.format(months=", ".join(f"[{month}](log/{month}.md)" for month in months())).rstrip()]
    for section in sections():
        lines += block(section)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
