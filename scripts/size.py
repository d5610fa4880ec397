"""Lines per file and the longest functions: what a reader has to hold in mind."""

import ast
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = {".py", ".cpp", ".h"}


def functions(path: Path) -> list[tuple[int, str]]:
    nodes = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return [((n.end_lineno or n.lineno) - n.lineno + 1, f"{path.relative_to(ROOT)}:{n.lineno} {n.name}") for n in nodes]


def main() -> None:
    """Print the tables."""
    files = sorted(p for p in (ROOT / "tahr").rglob("*") if p.suffix in CODE)
    lines = {p: len(p.read_text().splitlines()) for p in files}
    parts: dict[str, int] = {}
    for path, n in lines.items():
        parts[path.relative_to(ROOT / "tahr").parts[0]] = parts.get(path.relative_to(ROOT / "tahr").parts[0], 0) + n
    print("lines per part")
    for part, n in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"  {n:6d}  {part}")
    print(f"  {sum(lines.values()):6d}  in {len(files)} files\nlongest files")
    for path in sorted(files, key=lambda p: -lines[p])[:12]:
        print(f"  {lines[path]:6d}  {path.relative_to(ROOT)}")
    found = sorted((f for p in files if p.suffix == ".py" for f in functions(p)), reverse=True)
    lengths = sorted(n for n, _ in found)
    print(
        f"functions: median {statistics.median(lengths):.0f} lines, 90th percentile {lengths[int(len(lengths) * 0.9)]}"
    )
    for n, where in found[:10]:
        print(f"  {n:6d}  {where}")


if __name__ == "__main__":
    main()
