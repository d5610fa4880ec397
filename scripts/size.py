"""Weight and length of the code, beside their limits: tokens per package and file, lines, folders, functions.

A token is what Python's tokenizer gives, but for comments, docstrings, indentation and line ends. Short lines full of
tokens are as hard to read as long functions, so files have a limit of tokens per line, too.
"""

import ast
import io
import statistics
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMITS = ROOT / "benchmarks" / "size.toml"
CODE = {".py", ".cpp", ".h"}
MAX_FILE, MAX_FUNCTION, MEDIAN_FUNCTION, MAX_FOLDER = 500, 60, 6, 20  # as tests/style/test_style.py has them
UNCOUNTED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Weight(NamedTuple):
    """A file, or several together."""

    n_tokens: int
    n_lines: int  # lines with code

    @property
    def density(self) -> float:
        return self.n_tokens / max(1, self.n_lines)


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def documented(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """A node and those in it that may have a docstring; expressions have none, and are not looked through."""
    if isinstance(node, DOCUMENTED):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield from documented(child)


def docstring_places(source: str) -> set[tuple[int, int]]:
    """Line and column of each docstring."""
    nodes = documented(ast.parse(source))
    first = [node.body[0] for node in nodes if ast.get_docstring(node, clean=False) is not None]
    return {(node.lineno, node.col_offset) for node in first}


def weight_of(source: str) -> Weight:
    """Tokens and lines of a Python file."""
    docstrings = docstring_places(source)
    n_tokens = 0
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in UNCOUNTED or (token.type == tokenize.STRING and token.start in docstrings):
            continue
        n_tokens += 1
        lines.update(range(token.start[0], token.end[0] + 1))
    return Weight(n_tokens, len(lines))


def together(weights: list[Weight]) -> Weight:
    """Several files as one."""
    return Weight(sum(each.n_tokens for each in weights), sum(each.n_lines for each in weights))


def weights(folder: Path) -> dict[Path, Weight]:
    """Each Python file of a folder."""
    return {path: weight_of(path.read_text()) for path in sorted(folder.rglob("*.py"))}


def is_kernel(path: Path) -> bool:
    """Whether a file has kernels, whose long signatures make dense lines."""
    return "kernels" in path.parts


def read_limits() -> dict[str, float]:
    """Limits of tokens, those of all capabilities together, and of tokens per line."""
    limits = tomllib.loads(LIMITS.read_text())
    limits["tokens"] = sum(limits["tokens"].values())
    return limits


def functions(path: Path) -> list[tuple[int, str]]:
    """The length and the place of each function of a file."""
    nodes = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return [((n.end_lineno or n.lineno) - n.lineno + 1, f"{path.relative_to(ROOT)}:{n.lineno} {n.name}") for n in nodes]


def print_table(title: str, rows: list[tuple[int, str]]) -> None:
    print(title)
    for n, what in rows:
        print(f"  {n:6d}  {what}")


def print_densities(found: dict[Path, Weight], limits: dict[str, float]) -> None:
    """The densest files, and all together."""
    plain = {path: weight for path, weight in found.items() if not is_kernel(path)}
    all_plain = together(list(plain.values()))
    largest = {path: weight for path, weight in plain.items() if weight.n_lines > limits["small_file_lines"]}
    print(f"tokens a line: {all_plain.density:.2f} outside kernels (at most {limits['tokens_a_line']})")
    print(f"densest files (at most {limits['tokens_a_line_of_a_file']})")
    for path, weight in sorted(largest.items(), key=lambda item: -item[1].density)[:12]:
        print(f"  {weight.density:6.1f}  {path.relative_to(ROOT)}")


def print_tokens(found: dict[Path, Weight], limits: dict[str, float]) -> None:
    """Tokens by package."""
    packages: Counter[str] = Counter()
    for path, weight in found.items():
        packages[path.relative_to(ROOT).parts[1]] += weight.n_tokens
    print_table("tokens per package", largest(packages))
    print(f"  {packages.total():6d}  in all (at most {limits['tokens']})")


def largest(counts: Counter[str], n: int | None = None) -> list[tuple[int, str]]:
    return [(count, name) for name, count in counts.most_common(n)]


def print_lines() -> None:
    """Lines by package, files by folder, the longest files."""
    files = sorted(p for p in (ROOT / "tahr").rglob("*") if p.suffix in CODE)
    lines = Counter({str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files})
    parts: Counter[str] = Counter()
    for name, n in lines.items():
        parts[name.split("/")[1]] += n
    folders = Counter(str(p.parent.relative_to(ROOT)) for p in files)
    print_table("lines per package", largest(parts))
    print(f"  {lines.total():6d}  in {len(files)} files")
    print_table(f"fullest folders (at most {MAX_FOLDER} code files)", largest(folders, 12))
    print_table(f"longest files (at most {MAX_FILE} lines)", largest(lines, 12))


def print_functions() -> None:
    """The longest functions."""
    found = sorted((f for p in sorted((ROOT / "tahr").rglob("*.py")) for f in functions(p)), reverse=True)
    lengths = sorted(n for n, _ in found)
    middle = statistics.median(lengths)
    tenth = lengths[int(len(lengths) * 0.9)]
    print(f"functions: median {middle:.0f} lines (at most {MEDIAN_FUNCTION}), 90th percentile {tenth}")
    print_table(f"longest functions (at most {MAX_FUNCTION} lines)", found[:10])


def main() -> None:
    """Print the tables."""
    found = weights(ROOT / "tahr")
    limits = read_limits()
    print_tokens(found, limits)
    print_densities(found, limits)
    print_lines()
    print_functions()


if __name__ == "__main__":
    main()
