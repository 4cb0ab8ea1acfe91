"""A grid of small pictures, one for each measure: every run is a dot over its level.

Each panel has its own scale, which begins at zero unless that hides the differences. The judgement
on the difference stands as text below the name of the panel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 720
PER_ROW: Final = 3
PANEL_WIDTH: Final = 232
PANEL_HEIGHT: Final = 168
GAP: Final = 12
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 10, 50, 24
_LABEL_LIMIT: Final = 14


@dataclass(frozen=True, slots=True)
class Panel:
    """One measure over some levels."""

    title: str
    judgement: str
    is_difference: bool
    levels: Sequence[str]
    values: Sequence[Sequence[float]]
    format_value: Callable[[float], str]


def panels_picture(title: str, panels: Sequence[Panel]) -> str:
    """Return all panels as one SVG, three in a row."""
    rows = -(-len(panels) // PER_ROW)
    height = max(1, rows * (PANEL_HEIGHT + GAP))
    body = "".join(
        _panel(
            panel,
            (place % PER_ROW) * (PANEL_WIDTH + GAP),
            (place // PER_ROW) * (PANEL_HEIGHT + GAP),
        )
        for place, panel in enumerate(panels)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )


def _panel(panel: Panel, x: int, y: int) -> str:
    low, high = _range(panel.values)
    top, bottom = y + _TOP, y + PANEL_HEIGHT - _BOTTOM
    left, right = x + _LEFT, x + PANEL_WIDTH - _RIGHT

    def height_of(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    word = "differs" if panel.is_difference else "same"
    frame = f'x="{x + 0.5}" y="{y + 0.5}" width="{PANEL_WIDTH - 1}" height="{PANEL_HEIGHT - 1}"'
    parts = [
        f'<rect class="panel" {frame} rx="5"/>',
        f'<text class="label" x="{x + 10}" y="{y + 19}">{escape(panel.title)}</text>',
        f'<text class="{word}" x="{x + 10}" y="{y + 35}">{escape(panel.judgement)}</text>',
    ]
    for value in (low, high):
        at = height_of(value)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(
            f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">'
            f"{escape(panel.format_value(value))}</text>"
        )
    step = (right - left) / len(panel.levels)
    for place, (level, values) in enumerate(zip(panel.levels, panel.values, strict=True)):
        middle = left + step * (place + 0.5)
        parts.append(_level(level, middle, bottom, step))
        parts += _dots(values, middle, height_of, min(14.0, step * 0.35))
    return "".join(parts)


def _level(name: str, middle: float, bottom: float, step: float) -> str:
    room = max(2, min(_LABEL_LIMIT, int(step / 7.5)))
    short = name if len(name) <= room else f"{name[: room - 1]}…"
    return (
        f'<text x="{middle:.1f}" y="{bottom + 16}" text-anchor="middle">'
        f"<title>{escape(name)}</title>{escape(short)}</text>"
    )


def _dots(
    values: Sequence[float], middle: float, height_of: Callable[[float], float], half: float
) -> list[str]:
    """Return a dot for each run, side by side so that equal ones show, and a line for the mean."""
    parts = []
    for place, value in enumerate(values):
        shift = 0.0 if len(values) == 1 else (place / (len(values) - 1) - 0.5) * half
        across, down = f"{middle + shift:.1f}", f"{height_of(value):.1f}"
        parts.append(f'<circle class="dot-run" cx="{across}" cy="{down}" r="3.5"/>')
    if len(values) > 1:
        at = height_of(sum(values) / len(values))
        parts.append(
            f'<line class="mean" x1="{middle - half:.1f}" x2="{middle + half:.1f}" '
            f'y1="{at:.1f}" y2="{at:.1f}"/>'
        )
    return parts


def _range(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the scale: from zero, unless all values are far from it; never empty."""
    found = [value for level in values for value in level]
    low, high = min(found), max(found)
    if low == high:
        return (0.0, high) if high > 0 else (low, low + 1.0)
    if low >= 0 and low < 0.7 * high:
        return 0.0, high
    return low, high
