"""The numbers by which runs are compared, and what is said of their differences (pure).

Rules:
- Numbers are those of a run's worst group, as everywhere.
- Several runs that are alike: the noise is that between them. Single runs: the noise is that
  between stretches of seconds within each run, for what is known by the second in runs without
  faults; of everything else it is unknown, and that is said.
- All tests of one page are corrected together (`shoal.audit.noise`).
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from shoal.audit import noise
from shoal.model.comparison import (
    DIFFERS,
    EQUAL,
    NOISE_UNKNOWN,
    WITHIN_NOISE,
    Judged,
    Measure,
)
from shoal.model.result import Result

BETWEEN_RUNS: Final = "between runs that are alike"
WITHIN_RUNS: Final = "between stretches of seconds within each run"

UNJUDGED: Final = Judged(NOISE_UNKNOWN)

Read = Callable[[Result], float | None]


def _latency(kind: str, statistic: str) -> Read:
    def read(result: Result) -> float | None:
        latency = result.worst.metrics.latency_us.get(kind)
        if latency is None or not latency.count:
            return None
        return latency.max if statistic == "max" else latency.percentiles.get(statistic)

    return read


def _found(*names: str) -> Read:
    def read(result: Result) -> float:
        findings = result.worst.findings
        return float(sum(findings[name].count for name in names if name in findings))

    return read


def _copies(result: Result) -> float | None:
    """In the log that the consumers read."""
    name = "duplicate: source" if result.mirror is None else "duplicate: target"
    return _found(name)(result)


def _throughput(result: Result) -> float | None:
    rows = [row for row in result.worst.throughput if row.topic is None]
    return rows[0].delivered_per_s if rows else None


def _usage(name: str) -> Read:
    def read(result: Result) -> float | None:
        used = (result.mirror or {}).get("usage") or {}
        return used.get(name)

    return read


def _felt(name: str) -> Read:
    """The worst over all faults."""

    def read(result: Result) -> float | None:
        times = [window.to_json().get(name) for window in result.worst.windows]
        return max((time for time in times if time is not None), default=None)

    return read


MEASURES: Final[tuple[tuple[Measure, Read], ...]] = (
    (Measure("yield", "ratio"), lambda r: r.worst.metrics.yield_),
    (Measure("harvest", "ratio"), lambda r: r.worst.metrics.harvest),
    (Measure("completeness", "ratio"), lambda r: r.worst.metrics.completeness),
    (Measure("lost", "count"), lambda r: r.worst.metrics.lost),
    (Measure("duplication", "ratio"), lambda r: r.worst.metrics.duplication),
    (Measure("duplicates in the log", "count"), _copies),
    (Measure("order", "ratio"), lambda r: r.worst.metrics.order),
    (Measure("reordered", "count"), _found("reordered")),
    (Measure("end-to-end latency p50", "us", is_log=True), _latency("e2e_intended", "p50")),
    (Measure("end-to-end latency p99", "us", is_log=True), _latency("e2e_intended", "p99")),
    (Measure("end-to-end latency max", "us", is_log=True), _latency("e2e_intended", "max")),
    (Measure("producer latency p50", "us", is_log=True), _latency("producer", "p50")),
    (Measure("producer latency p99", "us", is_log=True), _latency("producer", "p99")),
    (Measure("throughput", "per_s"), _throughput),
    (Measure("time to detect a fault", "us", is_log=True), _felt("time_to_detect_us")),
    (Measure("time to recover", "us", is_log=True), _felt("time_to_recover_us")),
    (Measure("time to drain", "us", is_log=True), _felt("time_to_drain_us")),
    (Measure("mirror CPU", "s"), _usage("cpu_s")),
    (Measure("mirror memory", "bytes"), _usage("peak_memory_bytes")),
)


def values_of(result: Result) -> dict[str, float]:
    """Every measure that is known of a run, by name."""
    found = {measure.name: read(result) for measure, read in MEASURES}
    return {name: float(value) for name, value in found.items() if value is not None}


def by_second(result: Result) -> dict[str, list[float]]:
    """What is known of a run by the second, by the name of its measure.

    Nothing in a run with faults: its seconds differ because they must, not by noise.
    """
    if result.faults:
        return {}
    series = result.worst.series
    return {
        "end-to-end latency p50": [float(us) for us in series.latency_us_p50 if us is not None],
        "end-to-end latency p99": [float(us) for us in series.latency_us_p99 if us is not None],
        # The first and the last second are not whole.
        "throughput": [float(count) for count in series.received[1:-1]],
    }


def scaled(measure: Measure, values: Iterable[float]) -> list[float]:
    """As the tests take them: noise that does not grow with the value."""
    return [math.log(max(value, 1.0)) for value in values] if measure.is_log else list(values)


def judged(
    chances: Mapping[str, float | None],
    basis: str | Mapping[str, str],
    equal: Collection[str] = (),
) -> dict[str, Judged]:
    """What is said of each, all of them corrected together; `equal` need no test."""
    known = {n: chance for n, chance in chances.items() if chance is not None and n not in equal}
    corrected = dict(zip(known, noise.holm(list(known.values())), strict=True))
    said = {}
    for name in chances:
        chance = corrected.get(name)
        if name in equal or chance is None:
            said[name] = Judged(EQUAL if name in equal else NOISE_UNKNOWN)
            continue
        word = DIFFERS if chance < noise.LEVEL else WITHIN_NOISE
        said[name] = Judged(word, chance, basis if isinstance(basis, str) else basis[name])
    return said


def is_equal(values: Iterable[Sequence[float]]) -> bool:
    """Whether all that is known is one and the same number, and nothing is missing."""
    listed = list(values)
    return all(listed) and len({value for column in listed for value in column}) == 1


def columns_p(
    measure: Measure, values: Sequence[Sequence[float]], seconds: Sequence[Sequence[float]]
) -> tuple[float | None, str]:
    """The chance of such differences between columns by noise, and where the noise is from."""
    if all(len(column) > 1 for column in values):
        return noise.groups_p([scaled(measure, column) for column in values]), BETWEEN_RUNS
    if any(len(column) != 1 for column in values):
        return None, ""
    blocks = [noise.block_means(scaled(measure, column)) for column in seconds]
    return noise.groups_p(blocks), WITHIN_RUNS
