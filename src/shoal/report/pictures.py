"""Draws pictures as SVG text. Colours are CSS variables of the page, so they follow its theme.

A picture never shows a meaning by colour alone: lines differ in dash, marks in shape, and the page
has the numbers of each picture as a table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from shoal.model.result import Strip
from shoal.report.scales import Axis

WIDTH, HEIGHT = 720, 276
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 30, 40
PLOT_X = (float(LEFT), float(WIDTH - RIGHT))
PLOT_Y = (float(HEIGHT - BOTTOM), float(TOP))
DASHES = ("", "6 3", "2 3", "8 3 2 3")
LETTER_WIDTH, LINE_HEIGHT = 7, 14  # of small text, about
SPAN_ROWS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """A named sequence of points in the units of its axes."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class AxisSpan:
    """A span of the horizontal axis, in its units, with a short and a long name."""

    name: str
    begin: float
    end: float
    tip: str


def line_picture(
    title: str,
    lines: Sequence[Line],
    *,
    x: Axis,
    y: Axis,
    x_label: str,
    spans: Sequence[AxisSpan] = (),
) -> str:
    """Draw lines over two axes, with a legend; spans are shaded behind them."""
    body = [*_shade_spans(x, spans), _grid(x, y, x_label)]
    for index, line in enumerate(lines):
        points = " ".join(f"{x.place(a):.1f},{y.place(b):.1f}" for a, b in line.points)
        dash = f' stroke-dasharray="{DASHES[index % 4]}"' if DASHES[index % 4] else ""
        body.append(f'<polyline class="line c{index % 4}"{dash} points="{points}"/>')
        if len(line.points) == 1:
            a, b = line.points[0]
            body.append(f'<circle class="dot c{index % 4}" cx="{x.place(a):.1f}" ')
            body.append(f'cy="{y.place(b):.1f}" r="3"/>')
    body.append(_legend([line.name for line in lines]))
    return _picture(title, HEIGHT, "".join(body))


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `note` stands at its end."""

    name: str
    value: float
    note: str


def bar_picture(title: str, bars: Sequence[Bar]) -> str:
    """Draw horizontal bars from a common zero, the longest as wide as the picture."""
    row, top, left = 34, 8, 130
    widest = max((bar.value for bar in bars), default=0) or 1
    room = WIDTH - left - 150
    body = []
    for index, bar in enumerate(bars):
        middle = top + index * row + row / 2
        width = max(bar.value / widest * room, 1.0 if bar.value else 0.0)
        body.append(f'<text class="label" x="{left - 10}" y="{middle + 4}" text-anchor="end">')
        body.append(f"{escape(bar.name)}</text>")
        body.append(f'<rect class="bar" x="{left}" y="{middle - 11}" ')
        body.append(f'width="{width:.1f}" height="22" rx="2"/>')
        body.append(f'<text class="note" x="{left + width + 8:.1f}" y="{middle + 4}">')
        body.append(f"{escape(bar.note)}</text>")
    return _picture(title, top * 2 + row * len(bars), "".join(body))


def strip_picture(title: str, strips: Sequence[Strip]) -> str:
    """Draw a bar for each lane, from its first to its last sequence, with marks for findings."""
    row, top, left = 26, 8, 130
    one_topic = len({strip.topic for strip in strips}) == 1
    longest = max((strip.length for strip in strips), default=0) or 1
    room = WIDTH - left - RIGHT
    body = []
    for index, strip in enumerate(strips):
        middle = top + index * row + row / 2
        body.append(f'<text class="label" x="{left - 10}" y="{middle + 4}" text-anchor="end">')
        name = "" if one_topic else _shorten(strip.topic) + " "
        body.append(f"{escape(name)}lane {strip.lane}</text>")
        width = strip.length / longest * room
        body.append(f'<rect class="lane" x="{left}" y="{middle - 7}" ')
        body.append(f'width="{width:.1f}" height="14" rx="2"/>')
        for first, finding, count in strip.marks:
            x = left + (first + strip.stretch / 2) / longest * room
            body.append(_mark(x, middle, finding=finding, tip=f"{count} {finding} from {first}"))
    return _picture(title, top * 2 + row * len(strips), "".join(body))


def _shorten(name: str, most: int = 11) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _mark(x: float, y: float, *, finding: str, tip: str) -> str:
    title = f"<title>{escape(tip)}</title>"
    shape = mark_shape(finding)
    if shape == "cross":
        path = f"M{x - 6:.1f} {y - 6}L{x + 6:.1f} {y + 6}M{x + 6:.1f} {y - 6}L{x - 6:.1f} {y + 6}"
        return f'<path class="mark bad" d="{path}">{title}</path>'
    if shape == "triangle":
        path = f"M{x - 6:.1f} {y + 5}L{x:.1f} {y - 6}L{x + 6:.1f} {y + 5}Z"
        return f'<path class="mark warn" d="{path}">{title}</path>'
    return f'<circle class="mark warn" cx="{x:.1f}" cy="{y}" r="5">{title}</circle>'


def mark_shape(finding: str) -> str:
    """Return a cross for a loss, a triangle for disorder, a circle for other findings."""
    if finding.startswith(("lost", "vanished", "tail")):
        return "cross"
    return "triangle" if finding.startswith("reordered") else "circle"


def _grid(x: Axis, y: Axis, x_label: str) -> str:
    parts = []
    bottom, top = PLOT_Y
    left, right = PLOT_X
    for value, text in y.ticks:
        place = y.place(value)
        parts.append(f'<path class="grid" d="M{left} {place:.1f}H{right}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{place + 4:.1f}" ')
        parts.append(f'text-anchor="end">{escape(text)}</text>')
    for value, text in x.ticks:
        place = x.place(value)
        parts.append(f'<path class="grid" d="M{place:.1f} {bottom}V{top}"/>')
        parts.append(f'<text class="tick" x="{place:.1f}" y="{bottom + 16}" ')
        parts.append(f'text-anchor="middle">{escape(text)}</text>')
    parts.append(f'<text class="tick" x="{(left + right) / 2}" y="{bottom + 33}" ')
    parts.append(f'text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _shade_spans(x: Axis, spans: Sequence[AxisSpan]) -> list[str]:
    """Draw shaded spans, each at least 1.5 pixels wide, with the long name if there is room.

    Names that would overlap are put into rows, the first on top.
    """
    (left, right), (bottom, top) = PLOT_X, PLOT_Y
    rows_end = [left] * SPAN_ROWS  # how far the names in each row reach
    parts = []
    for span in spans:
        begin, end = (min(max(x.place(value), left), right) for value in (span.begin, span.end))
        width = max(end - begin, 1.5)
        name = span.tip if len(span.tip) * LETTER_WIDTH < width else span.name
        row = next((n for n, taken in enumerate(rows_end) if taken <= begin), SPAN_ROWS - 1)
        rows_end[row] = begin + (len(name) + 1) * LETTER_WIDTH
        parts.append(
            f'<rect class="fault" x="{begin:.1f}" y="{top}" width="{width:.1f}" '
            f'height="{bottom - top}"><title>{escape(span.tip)}</title></rect>'
            f'<text class="tick" x="{begin + 3:.1f}" y="{top + 12 + row * LINE_HEIGHT}">'
            f"{escape(name)}</text>"
        )
    return parts


def _legend(names: Sequence[str]) -> str:
    parts = []
    place = PLOT_X[0] + 10
    for index, name in enumerate(names):
        dash = f' stroke-dasharray="{DASHES[index % 4]}"' if DASHES[index % 4] else ""
        parts.append(f'<path class="line c{index % 4}"{dash} d="M{place} 12h26"/>')
        parts.append(f'<text class="tick" x="{place + 32}" y="16">{escape(name)}</text>')
        place += 50 + LETTER_WIDTH * len(name)
    return "".join(parts)


def _picture(title: str, height: int, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{body}</svg>'
    )
