"""Draws docs/layers.svg, the parts of the code and who imports whom, from the imports themselves.

Run: python scripts/layers.py   (tests/style/test_docs.py fails when the picture is no longer true)
"""

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "layers.svg"
BELOW_ALL = ("config", "errors")  # every part may import these: no arrows are drawn to them
NATIVE = "native"
NATIVE_SAYS = "Kernels, threads and the tape, in C++17."
WIDTH, BOX, HEIGHT, GAP, ROW = 1120, 240, 64, 24, 124
Graph = dict[str, set[str]]


def parts() -> list[str]:
    """The folders of Python code in the package."""
    found = {p.parent.name for p in (ROOT / "tahr").glob("*/__init__.py")}
    return sorted(found.difference(BELOW_ALL))


def imports(path: Path) -> set[str]:
    """The parts that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = [name.split(".")[1] for name in names if name.startswith("tahr.")]
    return {NATIVE if name == "_native" else "library" if name[0].isupper() else name for name in ours}


def graph() -> Graph:
    """Part -> the parts it imports; a public name of `tahr` itself comes from the library."""
    known = {*parts(), NATIVE}
    made: Graph = {NATIVE: set()}
    for part in parts():
        files = (ROOT / "tahr" / part).rglob("*.py")
        made[part] = (set().union(*(imports(path) for path in files)) & known) - {part}
    return made


def reachable(made: Graph, part: str) -> set[str]:
    found: set[str] = set()
    todo = list(made[part])
    while todo:
        if (one := todo.pop()) not in found:
            found.add(one)
            todo += made[one]
    return found


def reduced(made: Graph) -> Graph:
    """Only the arrows that no way over another part replaces."""
    return {
        part: {to for to in targets if not any(to in reachable(made, other) for other in targets - {to})}
        for part, targets in made.items()
    }


def depths(made: Graph) -> dict[str, int]:
    """How far below the top each part lies, along the longest way down to it."""
    found: dict[str, int] = {}

    def depth(part: str) -> int:
        if part not in found:
            found[part] = 1 + max((depth(above) for above in made if part in made[above]), default=-1)
        return found[part]

    for part in made:
        depth(part)
    return found


def sentence(part: str) -> str:
    """What a part is for: the first line of its own docstring."""
    if part == NATIVE:
        return NATIVE_SAYS
    text = ast.get_docstring(ast.parse((ROOT / "tahr" / part / "__init__.py").read_text(encoding="utf-8")))
    assert text, f"tahr/{part}/__init__.py does not say what the part is for"
    return text.splitlines()[0]


def wrapped(text: str, width: int = 40) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def positions(made: Graph) -> dict[str, tuple[float, float]]:
    """The upper left corner of each part's box: one row per depth, each row centred."""
    rows: dict[int, list[str]] = {}
    for part, depth in depths(made).items():
        rows.setdefault(depth, []).append(part)
    found: dict[str, tuple[float, float]] = {}
    for depth, row in rows.items():
        y = 20 + depth * ROW
        left = (WIDTH - len(row) * BOX - (len(row) - 1) * GAP) / 2
        for i, part in enumerate(sorted(row)):
            found[part] = (left + i * (BOX + GAP), y)
    return found


def box(part: str, at: tuple[float, float]) -> str:
    x, y = at
    lines = [f'<rect x="{x:g}" y="{y:g}" width="{BOX}" height="{HEIGHT}" rx="6" fill="#eef3f8" stroke="#34506b"/>']
    lines.append(f'<text x="{x + 10:g}" y="{y + 19:g}" font-weight="bold" font-size="14">{part}</text>')
    for i, line in enumerate(wrapped(sentence(part))):
        lines.append(f'<text x="{x + 10:g}" y="{y + 34 + 12 * i:g}" font-size="10.5">{escape(line)}</text>')
    return "\n".join(lines)


def arrow(at: tuple[float, float], to: tuple[float, float], n: int, of: int) -> str:
    x1, y1, x2, y2 = at[0] + BOX * (n + 1) / (of + 1), at[1] + HEIGHT, to[0] + BOX / 2, to[1] - 3
    bend = (y2 - y1) / 2
    path = f"M{x1:g},{y1:g} C{x1:g},{y1 + bend:g} {x2:g},{y2 - bend:g} {x2:g},{y2:g}"
    return f'<path d="{path}" fill="none" stroke="#7a8a99" marker-end="url(#head)"/>'


def picture() -> str:
    """The whole SVG."""
    made = graph()
    at = positions(made)
    bottom = max(y for _, y in at.values()) + HEIGHT + 28
    arrows = []
    for part, targets in sorted(reduced(made).items()):
        ordered = sorted(targets, key=lambda to: at[to])
        arrows += [arrow(at[part], at[to], i, len(ordered)) for i, to in enumerate(ordered)]
    marker = '<marker id="head" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 14:g}" font-family="sans-serif">',
            f'<defs>{marker}<path d="M0,0 L7,3 L0,6 z" fill="#7a8a99"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{bottom + 14:g}" fill="white"/>',
            *arrows,
            *(box(part, where) for part, where in sorted(at.items())),
            f'<text x="{WIDTH / 2:g}" y="{bottom:g}" font-size="11" text-anchor="middle">An arrow is an import; '
            f"what is also reached by way of others has none. Every part may import {' and '.join(BELOW_ALL)}.</text>",
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
