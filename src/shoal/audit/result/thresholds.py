"""Thresholds such as `latency_ms_p99<250`, checked against a result.

Names (docs/reference/metrics.md lists them):
- every count and ratio of `metrics`: `yield`, `completeness`, `lost`, `pending`, `re_reads`, …;
- latencies in ms or µs: `latency_ms_p99` (end to end, from the intended send),
  `latency_actual_ms_p99` (from the actual send), `latency_producer_ms_p99`,
  `latency_replication_ms_p99`, `staleness_ms_p99`; p50 to p99.99, mean,
  max. End to end, a lost or pending message counts as infinitely late;
- ranges: `range_sent_ms`, `range_published_ms`, `range_output_ms`, `range_consumed_ms`;
- rates: `sent_per_s`, `delivered_per_s`, `sent_bytes_per_s`, `delivered_bytes_per_s`;
- findings, with underscores for colons and blanks: `duplicate_target`, `poll_skip`.

A metric that has no value meets no threshold.
"""

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from shoal.model.errors import UsageError
from shoal.model.findings import Finding, Verdict
from shoal.model.result import PERCENTILES, GroupResult, Metrics, Result, ThresholdResult

_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_EXPRESSION: Final = re.compile(r"\s*([\w.]+)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")
_LATENCIES: Final = {
    "latency": "e2e_intended",
    "latency_actual": "e2e_actual",
    "latency_producer": "producer",
    "latency_replication": "replication",
    "staleness": "staleness",
}
_UNITS: Final = {"us": 1, "ms": 1000}
_SEVERITY: Final = {Verdict.VIOLATED: 0, Verdict.INCONCLUSIVE: 1, Verdict.PROVEN: 2}


@dataclass(frozen=True, slots=True)
class Threshold:
    text: str
    metric: str
    sign: str
    limit: float

    def is_met(self, value: float | None) -> bool:
        return value is not None and _OPERATORS[self.sign](value, self.limit)


def parse(texts: Iterable[str]) -> list[Threshold]:
    return [_parse(text) for text in texts]


def _parse(text: str) -> Threshold:
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r:.80} is not a threshold", remedy="write it like 'latency_ms_p99<250'"
        )
    name, sign, number = match.groups()
    known = values_of(GroupResult.empty())
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise UsageError(
            f"{name!r:.80} in the threshold {text!r:.80} is not the name of a metric",
            remedy=f"the nearest name is {near[0]}; docs/reference/metrics.md lists all names",
        )
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if math.isnan(limit):
        raise UsageError(f"{number!r:.80} in the threshold {text!r:.80} is not a number")
    return Threshold(text.strip(), name, sign, limit)


def hold(result: Result, thresholds: Iterable[Threshold]) -> Result:
    """Return the result with its thresholds checked against every group.

    Among groups with the same verdict, the one that misses most thresholds becomes the worst group.
    """
    values = {group: values_of(found) for group, found in result.groups.items()}
    held = []
    for threshold in thresholds:
        of_metric = {group: known[threshold.metric] for group, known in values.items()}
        missed = tuple(group for group, value in of_metric.items() if not threshold.is_met(value))
        held.append(ThresholdResult(threshold.text, threshold.metric, of_metric, missed))
    found = replace(result, thresholds=tuple(held))
    return replace(found, worst_group=worst_group(found))


def worst_group(result: Result) -> str:
    """Return the worst group by verdict, missed thresholds, losses and latency, in this order."""

    def badness(name: str) -> tuple[int, int, int, float, str]:
        group = result.groups[name]
        missed = sum(name in each.missed_by for each in result.thresholds)
        latency = group.metrics.latency_us.get("e2e_intended")
        p99 = (latency.owed().get("p99") if latency is not None else None) or 0.0
        return _SEVERITY[group.verdict], -missed, -group.metrics.lost, -p99, name

    return min(result.groups, key=badness)


def values_of(group: GroupResult) -> dict[str, float | None]:
    """Return every metric that a threshold can use."""
    metrics = group.metrics.to_json()
    values: dict[str, float | None] = {
        name: value
        for name, value in metrics.items()
        if name != "clock_skew_us" and not isinstance(value, Mapping)
    }
    values |= _latencies(group.metrics)
    for name in ("sent", "published", "output", "consumed"):
        span = group.metrics.range_us.get(name)
        values |= {
            f"range_{name}_{unit}": None if span is None else span / size
            for unit, size in _UNITS.items()
        }
    whole = next((row for row in group.throughput if row.topic is None), None)
    values["sent_per_s"] = None if whole is None else whole.sent_per_s
    values["delivered_per_s"] = None if whole is None else whole.delivered_per_s
    values["sent_bytes_per_s"] = None if whole is None else whole.sent_bytes_per_s
    values["delivered_bytes_per_s"] = None if whole is None else whole.delivered_bytes_per_s
    for finding in Finding:
        found = group.findings.get(finding.value)
        values[re.sub(r"\W+", "_", finding.value)] = found.count if found else 0
    return values


def _latencies(metrics: Metrics) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for prefix, name in _LATENCIES.items():
        latency = metrics.latency_us.get(name)
        owed = latency.owed() if latency is not None else {}
        for share in (*(share for share, _, _ in PERCENTILES), "mean", "max"):
            for unit, size in _UNITS.items():
                value = owed.get(share)
                values[f"{prefix}_{unit}_{share}"] = None if value is None else value / size
    return values
