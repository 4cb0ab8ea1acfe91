"""The report of one run: a single HTML page without external resources.

Order of the page: verdict sentence, metrics with numerator and denominator, findings with
their witnesses, pictures with their numbers, environment, how to run it again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shoal.model.result import PERCENTILES, GroupResult, Latency, Result
from shoal.model.units import format_bytes, format_us
from shoal.model.witness import witness_text
from shoal.report.faults import fault_rows, fault_spans, findings_by_fault
from shoal.report.pictures import (
    PLOT_X,
    PLOT_Y,
    AxisSpan,
    Bar,
    Line,
    bar_picture,
    line_picture,
    strip_picture,
)
from shoal.report.scales import linear_axis, log_axis, percentile_axis
from shoal.report.templates import template

STAGE_NAMES = {
    "producer_to_source": "producers to source log",
    "source_to_target": "source log to target log (the mirror)",
    "log_to_consumers": "log to consumers",
}
LATENCY_NAMES = {
    "e2e_intended": "end to end, from the intended send",
    "e2e_actual": "end to end, from the actual send",
    "producer": "producer, send to acknowledgement",
    "replication": "replication, source append to target append",
    "staleness": "staleness, known to exist to polled (a lower bound)",
}
GROUP_HEAD = (
    *("group", "verdict", "delivered", "lost", "harvest", "duplication", "order", "p50", "p99"),
)
# The entries of `run.json` in the table of the environment.
ENVIRONMENT = (
    *("versions", "machine", "master", "systems", "clusters", "mirror", "topics", "workload"),
    *("groups", "promises", "faults"),
)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A metric with its numerator and denominator."""

    name: str
    value: float | None
    numerator: str
    denominator: str

    @property
    def shown(self) -> str:
        return _ratio(self.value)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, a sentence about what it shows, and its numbers."""

    title: str
    caption: str
    svg: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def render(result: Result, manifest: Mapping[str, Any]) -> str:
    """Return the page of a result; `manifest` is the run's `run.json`."""
    group = result.worst
    started_us = manifest.get("started_us", 0)
    return template("page.html.j2").render(
        result=result,
        group=group,
        stages=[(STAGE_NAMES.get(n, n), stage) for n, stage in group.stages.items()],
        groups=group_rows(result),
        thresholds=threshold_rows(result),
        mirror=mirror_text(result),
        ratios=ratios(group),
        latencies=latency_rows(group),
        skew=skew_text(group),
        percentiles=[name for name, _, _ in PERCENTILES],
        findings=[(n, found, witness_text(found.witness)) for n, found in group.findings.items()],
        faults=fault_rows(result),
        findings_by_fault=findings_by_fault(result),
        pictures=pictures(group, fault_spans(result)),
        started=f"{datetime.fromtimestamp(started_us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC",
        environment_rows=environment_rows(manifest),
        command=" ".join(manifest.get("command", [])),
    )


def ratios(group: GroupResult) -> list[Ratio]:
    """Return the ratios of the definitions, each with its two counts."""
    m = group.metrics
    copies = m.deliveries - m.re_reads - m.delivered
    return [
        Ratio("yield", m.yield_, f"{m.ok:,} acknowledged", f"{m.attempts:,} attempts"),
        Ratio(
            "harvest", m.harvest, f"{m.delivered_attempts:,} delivered", f"{m.attempts:,} attempts"
        ),
        Ratio(
            "completeness",
            m.completeness,
            f"{m.delivered_ok:,} delivered",
            f"{m.ok:,} acknowledged",
        ),
        Ratio("duplication", m.duplication, f"{copies:,} copies", f"{m.deliveries:,} deliveries"),
        Ratio(
            "re-read rate",
            m.re_read_rate,
            f"{m.re_reads:,} re-reads",
            f"{m.deliveries:,} deliveries",
        ),
        Ratio("order", m.order, f"F = {m.F:,} (K = {m.K:,})", f"greatest F = {m.F_limit:,}"),
    ]


def group_rows(result: Result) -> list[tuple[str, ...]]:
    """Return a head, and a row for each consumer group."""
    rows: list[tuple[str, ...]] = [GROUP_HEAD]
    for name, group in result.groups.items():
        m = group.metrics
        times = m.latency_us.get("e2e_intended", Latency()).owed()
        rows.append(
            (
                name,
                group.verdict.value,
                f"{m.delivered:,}",
                f"{m.lost:,}",
                *(_ratio(value) for value in (m.harvest, m.duplication, m.order)),
                *(_time(times.get(at)) for at in ("p50", "p99")),
            )
        )
    return rows


def threshold_rows(result: Result) -> list[tuple[str, str, str]]:
    """Return each threshold, whether it was met, and which groups missed it."""
    return [
        (each.text, "met" if each.is_met else "missed", "; ".join(each.sentences()))
        for each in result.thresholds
    ]


def mirror_text(result: Result) -> str:
    """Return the kind of the mirror and the resources that it used."""
    mirror = result.mirror or {}
    used = mirror.get("usage")
    if not used:
        return ""
    kind = ", ".join(str(mirror[key]) for key in ("kind", "mode", "delivery") if mirror.get(key))
    memory = format_bytes(used["peak_memory_bytes"])
    return (
        f"The mirror ({kind}) used {used['cpu_s']:.2f} CPU seconds and {memory} of memory at most."
    )


def latency_rows(group: GroupResult) -> list[tuple[str, ...]]:
    """Return one row for each latency: count, mean, percentiles, maximum."""
    rows = []
    for key, latency in group.metrics.latency_us.items():
        owed = latency.owed()
        cells = [owed.get(name) for name, _, _ in PERCENTILES]
        shown = [_time(time) for time in (latency.mean, *cells, owed.get("max"))]
        rows.append((LATENCY_NAMES.get(key, key), f"{latency.count:,}", *shown))
    return rows


def skew_text(group: GroupResult) -> str:
    """Return how the skew of clocks affects the end-to-end latencies."""
    skew_us = group.metrics.clock_skew_us
    if skew_us is None:
        return (
            "The clocks of producers and consumers were not compared, so the error of the"
            " end-to-end latencies is unknown."
        )
    if skew_us == (0, 0):
        return ""
    low, high = (f"{bound / 1000:+.3f} ms" for bound in skew_us)
    return (
        f"The consumers' clocks were ahead of the producers' clocks by {low} to {high}: the true"
        " end-to-end latencies are lower by this amount."
    )


def _time(value: float | None) -> str:
    return "-" if value is None else format_us(value)


def _ratio(value: float | None) -> str:
    return "unknowable" if value is None else f"{value:.6g}"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def pictures(group: GroupResult, faults: Sequence[AxisSpan] = ()) -> list[Picture]:
    """Return every picture for which there is data; `faults` are in seconds since the start."""
    drawn = [_fates(group), _lanes(group)]
    if group.series.sent:
        drawn.append(_rates(group, faults))
    if group.histogram:
        drawn.append(_latency_curve(group))
    if any(value is not None for value in group.series.latency_us_max):
        drawn.append(_latency_over_time(group, faults))
    return drawn


def _fates(group: GroupResult) -> Picture:
    m = group.metrics
    counts = [
        ("attempts", m.attempts),
        ("acknowledged", m.ok),
        ("delivered", m.delivered),
        ("lost", m.lost),
        ("pending", m.pending),
    ]
    bars = [Bar(name, count, f"{count:,}") for name, count in counts]
    return Picture(
        "What became of every message",
        "Attempts, and how many of them were acknowledged, delivered, lost or pending.",
        bar_picture("What became of every message", bars),
        ("", "messages"),
        [(bar.name, bar.note) for bar in bars],
    )


def _lanes(group: GroupResult) -> Picture:
    rows = [
        (
            strip.topic,
            str(strip.lane),
            f"{strip.length:,}",
            finding,
            f"{first:,}",
            f"{count:,}",
        )
        for strip in group.strips
        for first, finding, count in strip.marks
    ]
    clean = [
        (strip.topic, str(strip.lane), f"{strip.length:,}", "nothing found", "", "")
        for strip in group.strips
        if not strip.marks
    ]
    return Picture(
        "Where in each lane",
        "Each bar is a lane, from its first message to its last. A cross marks a loss, a triangle "
        "disorder, a circle any other finding.",
        strip_picture("Findings by lane and sequence", group.strips),
        ("topic", "lane", "messages", "finding", "from sequence", "count"),
        sorted(rows + clean),
    )


def _rates(group: GroupResult, faults: Sequence[AxisSpan]) -> Picture:
    series = group.series
    top = max([*series.sent, *series.received])
    lines = [
        Line("sent", list(enumerate(series.sent))),
        Line("received", list(enumerate(series.received))),
    ]
    svg = line_picture(
        "Messages per second",
        lines,
        x=linear_axis(0, max(len(series.sent) - 1, 1), pixels=PLOT_X, label=lambda v: f"{v:g}"),
        y=linear_axis(0, top * 1.15, pixels=PLOT_Y, label=lambda v: f"{v:,.0f}"),
        x_label="seconds since the start",
        spans=faults,
    )
    rows = [
        (str(second), f"{sent:,}", f"{received:,}")
        for second, (sent, received) in enumerate(zip(series.sent, series.received, strict=True))
    ]
    caption = "How many messages left the producers and reached the consumers in each second."
    return Picture("Messages per second", caption, svg, ("second", "sent", "received"), rows)


def _latency_curve(group: GroupResult) -> Picture:
    total = sum(count for _, _, count in group.histogram)
    points, below = [], 0
    for _, upper, count in group.histogram:
        points.append((below / total, float(upper)))
        below += count
        points.append((below / total, float(upper)))
    svg = line_picture(
        "Latency by percentile",
        [Line("end to end, from the intended send", points)],
        x=percentile_axis(pixels=PLOT_X),
        y=log_axis(points[0][1], points[-1][1], pixels=PLOT_Y, label=_tick_us),
        x_label="share of messages that were at least as fast",
    )
    latency = group.metrics.latency_us["e2e_intended"]
    names = [*(name for name, _, _ in PERCENTILES), "max"]
    owed = latency.owed()
    rows = [(name, _time(owed.get(name))) for name in names]
    caption = (
        f"{total:,} messages that arrived, from the fastest to the slowest. The table has the"
        " exact values, in which lost and pending messages count as infinitely late."
    )
    return Picture("Latency by percentile", caption, svg, ("percentile", "latency"), rows)


def _latency_over_time(group: GroupResult, faults: Sequence[AxisSpan]) -> Picture:
    series = group.series
    curves = {
        "p50": series.latency_us_p50,
        "p99": series.latency_us_p99,
        "max": series.latency_us_max,
    }
    known = [value for values in curves.values() for value in values if value is not None]
    lines = [
        Line(name, [(float(t), float(v)) for t, v in enumerate(values) if v is not None])
        for name, values in curves.items()
    ]
    svg = line_picture(
        "Latency over time",
        lines,
        x=linear_axis(0, max(len(series.sent) - 1, 1), pixels=PLOT_X, label=lambda v: f"{v:g}"),
        y=log_axis(min(known), max(known), pixels=PLOT_Y, label=_tick_us),
        x_label="seconds since the start, by intended send",
        spans=faults,
    )
    rows = [
        (str(second), *("-" if value is None else format_us(value) for value in values))
        for second, values in enumerate(zip(*curves.values(), strict=True))
    ]
    caption = "End-to-end latency of the messages whose intended send is in each second."
    return Picture("Latency over time", caption, svg, ("second", *curves), rows)


def _tick_us(microseconds: float) -> str:
    """Format a power of ten as a short text."""
    for limit, divisor, unit in ((1e3, 1, "µs"), (1e6, 1e3, "ms")):
        if microseconds < limit:
            return f"{microseconds / divisor:g} {unit}"
    return f"{microseconds / 1e6:g} s"


def environment_rows(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the run recorded about its environment, one row for each entry."""
    rows = []
    for section in ENVIRONMENT:
        value = manifest.get(section)
        if isinstance(value, dict):
            rows += [(f"{section}: {key}", _plain(item)) for key, item in value.items()]
        elif value:
            rows.append((section, _plain(value)))
    return rows
