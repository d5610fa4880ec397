"""Draws what kernels.py measured: for each format, the share of the machine's roof that each number of rows reaches.

usage: benchmarks/kernels.py --json roof.json && benchmarks/roof_plot.py roof.json docs/roof.svg
"""

import json
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

LEFT, TOP, WIDTH, BAR, GAP = 76, 66, 620, 9, 9
COLOURS = ("#2f6db5", "#e08a2e", "#4f9d69", "#a04fa0", "#777777")
FONT = 'font-family="sans-serif" font-size="12"'


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {FONT} {more}>{escape(words)}</text>'


def axis(height: int) -> list[str]:
    """A line for every tenth of the roof."""
    lines = []
    for tenth in range(11):
        x = LEFT + WIDTH * tenth / 10
        colour = "#444" if tenth in (0, 10) else "#ddd"
        lines.append(f'<path d="M{x:g} {TOP - 4}V{height - 18}" stroke="{colour}"/>')
        lines.append(text(x, height - 4, f"{10 * tenth} %", 'text-anchor="middle" fill="#444"'))
    return lines


def legend(row_counts: list[int]) -> list[str]:
    parts = []
    for i, n in enumerate(row_counts):
        x = LEFT + 130 * i
        parts.append(f'<rect x="{x}" y="40" width="12" height="12" fill="{COLOURS[i]}"/>')
        parts.append(text(x + 18, 50, f"{n} row{'s' * (n > 1)}", 'fill="#222"'))
    return parts


def bars(name: str, shares: list[float], y: float) -> list[str]:
    middle = y + BAR * len(shares) / 2 + 4
    parts = [text(LEFT - 8, middle, name, 'text-anchor="end" fill="#222"')]
    for i, share in enumerate(shares):
        top = y + BAR * i
        parts.append(
            f'<rect x="{LEFT}" y="{top:g}" width="{WIDTH * min(share, 1):.1f}" height="{BAR - 1}" fill="{COLOURS[i]}"/>'
        )
        end = LEFT + WIDTH * min(share, 1) + 4
        parts.append(text(end, top + BAR - 1, f"{share:.0%}", 'style="font-size:9px" fill="#444"'))
    return parts


def picture(record: dict[str, Any]) -> str:
    """The whole drawing."""
    names = list(dict.fromkeys(f["format"] for f in record["figures"]))
    row_counts = list(dict.fromkeys(f["n_rows"] for f in record["figures"]))
    step = BAR * len(row_counts) + GAP
    height = TOP + step * len(names) + 22
    facts, roofs = record["environment"], record["roofs"]
    head = f"{facts['cpu_info']}, {record['isa']}, {record['n_threads']} threads; commit {facts['build_commit']}"
    roof = (
        f"roof: {roofs['read_bytes_per_s'] / 1e9:.0f} GB/s, int8 {roofs['int_ops_per_s'] / 1e9:.0f} GOP/s, "
        f"f32 {roofs['float_ops_per_s'] / 1e9:.0f} GOP/s"
    )
    parts = [text(8, 18, f"Share of the roof: {head}", 'fill="#222"'), text(8, 34, roof, 'fill="#222"')]
    parts += legend(row_counts) + axis(height)
    for i, name in enumerate(names):
        shares = [f["share"] for f in record["figures"] if f["format"] == name]
        parts += bars(name, shares, TOP + step * i)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 44}" height="{height}">'
    return "\n".join([svg, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n"])


def main() -> None:
    source, out = map(Path, sys.argv[1:])
    out.write_text(picture(json.loads(source.read_text())))


if __name__ == "__main__":
    main()
