"""The package's own sources, each parsed once, for the checks of style."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tahr"
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree."""
    return tuple(ast.walk(ast.parse(text_of(path))))


def place(path: Path) -> str:
    """A file's name within the package."""
    return str(path.relative_to(PACKAGE))
