"""A bench as bars, in SVG."""

from collections.abc import Sequence
from html import escape
from typing import Any

from tahr.bench_serve.report import NAMES, Report, label

# Panels: each shows a figure, and some of its values.
PANELS = (
    ("output_throughput", ("mean",)),
    ("ttft_ms", ("p50", "p99")),
    ("tpot_ms", ("p50", "p99")),
    ("e2el_ms", ("p50", "p99")),
)
COLOURS = ("#2b6cb0", "#ed8936")
WIDTH = 760
BAR = 18
GAP = 14
LEFT = 190
TITLE = 58
STYLE = "font-family:system-ui,sans-serif;font-size:12px;fill:#1a202c"


def picture(made: Sequence[Report]) -> str:
    """One panel per figure, one bar per level and value."""
    first = made[0]
    y = TITLE
    parts = [text(16, 26, f"{first['model']}: {first['scenario']}", size=15), text(16, 44, first["backend"])]
    for name, values in PANELS:
        if all(name in report["distributions"] for report in made):
            drawn, y = panel(name, values, made, y)
            parts += drawn
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" style="{STYLE}">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{y}" fill="white"/>', *parts, "</svg>"]) + "\n"


def panel(
    name: str,
    values: Sequence[str],
    made: Sequence[Report],
    y: int,
) -> tuple[list[str], int]:
    """Its parts, and where the next begins."""
    figures = [report["distributions"][name] for report in made]
    most = max(figure[value] for figure in figures for value in values) or 1.0
    parts = [text(16, y + BAR, NAMES[name], weight="bold")]
    y += BAR + GAP // 2
    for report, figure in zip(made, figures, strict=True):
        parts.append(text(16, y + BAR - 4, label(report)))
        for value, colour in zip(values, COLOURS, strict=False):
            parts += bar(y, value, figure[value], figure[value] / most, colour)
            y += BAR
        y += GAP // 2
    return parts, y + GAP


def bar(y: int, name: str, value: float, share: float, colour: str) -> list[str]:
    width = share * (WIDTH - LEFT - 120)
    return [
        f'<rect x="{LEFT}" y="{y + 2}" width="{width:.1f}" height="{BAR - 4}" fill="{colour}"/>',
        text(LEFT + width + 6, y + BAR - 4, f"{value:.1f} ({name})"),
    ]


def text(x: float, y: float, words: Any, size: int = 12, weight: str = "normal") -> str:
    return f'<text x="{x:.0f}" y="{y}" font-size="{size}" font-weight="{weight}">{escape(str(words))}</text>'
