"""The faults of a run on its page: a table row for each, and spans in pictures."""

from typing import Any

from shoal.model.result import Result, Window
from shoal.model.units import format_us
from shoal.report.pictures import AxisSpan

HEAD = (
    *("fault", "target", "time", "detect", "recover", "drain", "messages"),
    *("lost", "copies", "reordered", "yield", "p99"),
)


def fault_rows(result: Result) -> list[tuple[str, ...]]:
    """Return a head, a row for each fault and one for the time outside; empty without faults."""
    faults = {fault["fault"]: fault for fault in result.faults}
    rows = [_row(window, faults, result) for window in result.worst.windows]
    return [HEAD, *rows] if rows else []


def _row(window: Window, faults: dict[int, dict[str, Any]], result: Result) -> tuple[str, ...]:
    if window.fault is None:
        head = ("no fault", "", "")
        times = ("", "", "")
    else:
        fault = faults[window.fault]
        head = (f"{window.fault} {fault['name']}", _target(fault), _when(fault, result))
        times = (
            _time(window.time_to_detect_us, "not felt"),
            _time(window.time_to_recover_us, "" if window.time_to_detect_us is None else "never"),
            _time(window.time_to_drain_us, ""),
        )
    counts, latency = window.counts, window.latency_us["e2e_intended"]
    copies = counts["deliveries"] - counts["re_reads"] - counts["delivered"]
    return (
        *head,
        *times,
        f"{counts['attempts']:,}",
        f"{counts['lost']:,}",
        f"{copies:,}",
        f"{window.findings.get('reordered', 0):,}",
        "-" if window.ratios.yield_ is None else f"{window.ratios.yield_:.4g}",
        _time(latency.owed().get("p99"), "-"),
    )


def _target(fault: dict[str, Any]) -> str:
    return str(fault["target"]).replace("<->", " ↔ ").replace("->", " → ")


def _when(fault: dict[str, Any], result: Result) -> str:
    begin = fault["began_us"] / 1e6 - result.worst.series.start_s
    if fault["ended_us"] is None:
        return f"from {begin:.1f} s"
    return f"{begin:.1f} to {fault['ended_us'] / 1e6 - result.worst.series.start_s:.1f} s"


def _time(value_us: float | None, otherwise: str) -> str:
    return otherwise if value_us is None else format_us(value_us)


def findings_by_fault(result: Result) -> list[str]:
    """Return the findings in the window of each fault, as text."""
    return [
        f"fault {window.fault}: "
        + ", ".join(f"{count:,} {name}" for name, count in window.findings.items())
        for window in result.worst.windows
        if window.fault is not None and window.findings
    ]


def fault_spans(result: Result) -> list[AxisSpan]:
    """Return the spans of the faults in pictures over time, in seconds since the start."""
    series = result.worst.series
    length = float(max(len(series.sent) - 1, 1))
    spans = []
    for fault in result.faults:
        begin = fault["began_us"] / 1e6 - series.start_s
        ended_us = fault["ended_us"]
        end = length if ended_us is None else ended_us / 1e6 - series.start_s
        tip = f"{fault['fault']} {fault['name']} {_target(fault)}"
        spans.append(AxisSpan(str(fault["fault"]), begin, end, tip))
    return spans
