"""The package's own sources, each parsed once, for the checks of style."""

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tahr"
FILES = sorted(PACKAGE.rglob("*.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Source:
    """Facts about a file for the checks. Whole trees of all files would take hundreds of megabytes."""

    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    functions: list[tuple[int, int, str]] = field(default_factory=list)  # how many lines, the first one, the name
    classes: list[str] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)  # annotated fields by class
    texts: set[str] = field(default_factory=set)  # that may name a module of ours
    names: set[str] = field(default_factory=set)  # defined or used, but for imported modules of others
    docstrings: list[str] = field(default_factory=list)


def is_field(node: ast.AnnAssign) -> bool:
    return "ClassVar" not in ast.unparse(node.annotation)


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def parsed(path: Path) -> Source:
    found = Source()
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
            found.docstrings.append(docstring)
        match node:
            case ast.Import() | ast.ImportFrom():
                found.imports.append(node)
            case ast.Constant(value=str(text)) if text.startswith("tahr."):
                found.texts.add(text)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.functions.append(((node.end_lineno or node.lineno) - node.lineno + 1, node.lineno, name))
                found.names.add(name)
            case ast.ClassDef(name=name, body=body):
                found.classes.append(name)
                found.records[name] = sum(isinstance(each, ast.AnnAssign) and is_field(each) for each in body)
                found.names.add(name)
            case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name):
                found.names.add(name)
    return found


def place(path: Path) -> str:
    """A file's name within the package."""
    return str(path.relative_to(PACKAGE))
