"""Lines per file and folder, and the longest functions: what a reader has to hold in mind, beside its limits."""

import ast
import statistics
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = {".py", ".cpp", ".h"}
MAX_FILE, MAX_FUNCTION, MEDIAN_FUNCTION, MAX_FOLDER = 500, 60, 6, 20  # as tests/style/test_style.py has them


def functions(path: Path) -> list[tuple[int, str]]:
    """The length and the place of each function of a file."""
    nodes = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return [((n.end_lineno or n.lineno) - n.lineno + 1, f"{path.relative_to(ROOT)}:{n.lineno} {n.name}") for n in nodes]


def print_table(title: str, rows: list[tuple[int, str]]) -> None:
    print(title)
    for n, what in rows:
        print(f"  {n:6d}  {what}")


def largest(counts: Counter[str], n: int | None = None) -> list[tuple[int, str]]:
    return [(count, name) for name, count in counts.most_common(n)]


def main() -> None:
    """Print the tables."""
    files = sorted(p for p in (ROOT / "tahr").rglob("*") if p.suffix in CODE)
    lines = Counter({str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files})
    parts: Counter[str] = Counter()
    for name, n in lines.items():
        parts[name.split("/")[1]] += n
    folders = Counter(str(p.parent.relative_to(ROOT)) for p in files)
    print_table("lines per part", largest(parts))
    print(f"  {lines.total():6d}  in {len(files)} files")
    print_table(f"code files per folder (at most {MAX_FOLDER})", largest(folders))
    print_table(f"longest files (at most {MAX_FILE} lines)", largest(lines, 12))
    found = sorted((f for p in files if p.suffix == ".py" for f in functions(p)), reverse=True)
    lengths = sorted(n for n, _ in found)
    middle, tenth = statistics.median(lengths), lengths[int(len(lengths) * 0.9)]
    print(f"functions: median {middle:.0f} lines (at most {MEDIAN_FUNCTION}), 90th percentile {tenth}")
    print_table(f"longest functions (at most {MAX_FUNCTION} lines)", found[:10])


if __name__ == "__main__":
    main()
