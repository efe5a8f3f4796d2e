"""The samples as one SVG: a small panel per series, all over the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

COLUMNS = 3
WIDTH, HEIGHT = 300, 130
MARGIN, TITLE = 14, 34
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.s{font-size:10px;fill:#777}"
    "rect{fill:#fff}.f{fill:none;stroke:#ddd}polyline{fill:none;stroke:#2563a8;stroke-width:1.2}"
)


def svg(title: str, at_s: Sequence[float], series: Mapping[str, Sequence[float]]) -> str:
    """Every panel begins at zero, so that a rise looks as large as it is."""
    rows = -(-len(series) // COLUMNS)
    width, height = COLUMNS * WIDTH + MARGIN, rows * HEIGHT + TITLE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}"/>',
        f'<text x="{MARGIN}" y="20">{escape(title)}</text>',
    ]
    for number, (name, values) in enumerate(series.items()):
        left = MARGIN + number % COLUMNS * WIDTH
        top = TITLE + number // COLUMNS * HEIGHT
        parts += _panel(left, top, name, at_s, values)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    left: int, top: int, name: str, at_s: Sequence[float], values: Sequence[float]
) -> list[str]:
    width, height = WIDTH - MARGIN, HEIGHT - 40
    largest = max(values) or 1.0
    span_s = (at_s[-1] - at_s[0]) or 1.0
    points = " ".join(
        f"{x:.1f},{y:.1f}"
        for x, y in (
            (left + width * (at - at_s[0]) / span_s, top + 18 + height * (1 - value / largest))
            for at, value in zip(at_s, values, strict=True)
        )
    )
    foot = f"0 to {span_s / 60:.0f} min; {min(values):,.4g} to {max(values):,.4g}"
    return [
        f'<text x="{left}" y="{top + 12}">{escape(name)}</text>',
        f'<rect class="f" x="{left}" y="{top + 18}" width="{width}" height="{height}"/>',
        f'<polyline points="{points}"/>',
        f'<text class="s" x="{left}" y="{top + 32 + height}">{foot}</text>',
    ]
