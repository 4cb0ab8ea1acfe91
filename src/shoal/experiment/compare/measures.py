"""The measures by which runs are compared, and the tests of their differences (pure).

Rules:
- Values are those of a run's worst group, as everywhere. Latencies are those of the messages
  owed: a percentile that losses reach is infinite, shown as "never".
- Repeats of one configuration are the sample, with one value for each run. With fewer than three
  runs a side the noise is unknown, and the page says so, also if the values are equal. Seconds
  within a run are never used as repeats.
- Latencies, rates and usage: tests of means against the noise between runs
  (`shoal.audit.result.noise`). Counts and ratios of rare events, and values that are infinite or
  have no noise: exact tests over runs (`shoal.audit.result.run_tests`).
- All tests of one page are corrected together, so that at most 5 of 100 pages say "differs" where
  nothing differs. Each test also gives the smallest effect that these runs could have shown.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.audit.result import noise, run_tests
from shoal.audit.result.run_tests import UNKNOWN, Chance
from shoal.model.comparison import (
    DIFFERS,
    EQUAL,
    NOISE_UNKNOWN,
    WITHIN_NOISE,
    Measure,
    MeasureJudgement,
)
from shoal.model.result import Result

MEANS: Final = "means of runs"
RUNS: Final = "exact test over runs"

UNJUDGED: Final = MeasureJudgement(NOISE_UNKNOWN)

Read = Callable[[Result], float | None]


def _latency(kind: str, statistic: str) -> Read:
    def read(result: Result) -> float | None:
        latency = result.worst.metrics.latency_us.get(kind)
        if latency is None or not latency.count:
            return None
        return latency.owed().get(statistic)

    return read


def _count_findings(*names: str) -> Read:
    def read(result: Result) -> float:
        findings = result.worst.findings
        return float(sum(findings[name].count for name in names if name in findings))

    return read


def _count_log_duplicates(result: Result) -> float | None:
    """Duplicates in the log that the consumers read."""
    name = "duplicate: source" if result.mirror is None else "duplicate: target"
    return _count_findings(name)(result)


def _throughput(result: Result) -> float | None:
    rows = [row for row in result.worst.throughput if row.topic is None]
    return rows[0].delivered_per_s if rows else None


def _usage(name: str) -> Read:
    def read(result: Result) -> float | None:
        used = (result.mirror or {}).get("usage") or {}
        return used.get(name)

    return read


def _worst_over_faults(name: str) -> Read:
    """The highest value over all faults."""

    def read(result: Result) -> float | None:
        times = [window.to_json().get(name) for window in result.worst.windows]
        return max((time for time in times if time is not None), default=None)

    return read


MEASURES: Final[tuple[tuple[Measure, Read], ...]] = (
    (Measure("yield", "ratio", is_event=True), lambda r: r.worst.metrics.yield_),
    (Measure("harvest", "ratio", is_event=True), lambda r: r.worst.metrics.harvest),
    (Measure("completeness", "ratio", is_event=True), lambda r: r.worst.metrics.completeness),
    (Measure("lost", "count", is_event=True), lambda r: r.worst.metrics.lost),
    (Measure("duplication", "ratio", is_event=True), lambda r: r.worst.metrics.duplication),
    (Measure("duplicates in the log", "count", is_event=True), _count_log_duplicates),
    (Measure("order", "ratio", is_event=True), lambda r: r.worst.metrics.order),
    (Measure("reordered", "count", is_event=True), _count_findings("reordered")),
    (Measure("end-to-end latency p50", "us", is_log=True), _latency("e2e_intended", "p50")),
    (Measure("end-to-end latency p99", "us", is_log=True), _latency("e2e_intended", "p99")),
    (Measure("end-to-end latency max", "us", is_log=True), _latency("e2e_intended", "max")),
    (Measure("producer latency p50", "us", is_log=True), _latency("producer", "p50")),
    (Measure("producer latency p99", "us", is_log=True), _latency("producer", "p99")),
    (Measure("throughput", "per_s", is_log=True), _throughput),
    (Measure("time to detect a fault", "us", is_log=True), _worst_over_faults("time_to_detect_us")),
    (Measure("time to recover", "us", is_log=True), _worst_over_faults("time_to_recover_us")),
    (Measure("time to drain", "us", is_log=True), _worst_over_faults("time_to_drain_us")),
    (Measure("mirror CPU", "s", is_log=True), _usage("cpu_s")),
    (Measure("mirror memory", "bytes", is_log=True), _usage("peak_memory_bytes")),
)


def values_of(result: Result) -> dict[str, float]:
    """The measures that a run has, by name."""
    found = {measure.name: read(result) for measure, read in MEASURES}
    return {name: float(value) for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class MeasureTest:
    """The test of one measure."""

    measure: Measure
    values: tuple[tuple[float, ...], ...]  # by column or level
    chance: Chance = UNKNOWN
    basis: str = ""
    samples: tuple[tuple[float, ...], ...] = ()  # the values whose noise was used, scaled


def scale(measure: Measure, values: Iterable[float]) -> list[float]:
    """Values as the tests need them, with noise that does not grow with the value."""
    # No value measured here is below a millionth of its unit.
    return [math.log(max(value, 1e-6)) for value in values] if measure.is_log else list(values)


def compare_columns(measure: Measure, values: Sequence[Sequence[float]]) -> MeasureTest:
    """Whether columns of runs differ."""
    table = tuple(map(tuple, values))
    if len(table) < 2 or any(len(column) < noise.LEAST_RUNS for column in table):
        return MeasureTest(measure, table)
    if not _needs_exact(measure, table):
        samples = tuple(tuple(scale(measure, column)) for column in table)
        chance = noise.groups_p(samples)
        if chance is not None:
            return MeasureTest(measure, table, Chance(chance), MEANS, samples)
    return MeasureTest(measure, table, run_tests.runs_chance(table), RUNS)


def compare_levels(
    measure: Measure, cells: Mapping[tuple[str, ...], Sequence[float]], place: int
) -> MeasureTest:
    """Whether the levels of the parameter at `place` of a sweep differ."""
    levels = list(dict.fromkeys(combination[place] for combination in cells))
    table = tuple(
        tuple(v for c, found in cells.items() if c[place] == level for v in found)
        for level in levels
    )
    if len(table) < 2 or any(len(values) < noise.LEAST_RUNS for values in table):
        return MeasureTest(measure, table)
    if not _needs_exact(measure, table):
        scaled = {c: scale(measure, found) for c, found in cells.items()}
        chance = noise.factor_p(scaled, place)
        if chance is not None:
            samples = tuple(map(tuple, scaled.values()))
            return MeasureTest(measure, table, Chance(chance), MEANS, samples)
    strata: dict[tuple[str, ...], list[list[float]]] = {}
    for combination, found in cells.items():
        others = (*combination[:place], *combination[place + 1 :])
        row = strata.setdefault(others, [[] for _ in levels])
        row[levels.index(combination[place])] += found
    return MeasureTest(measure, table, run_tests.strata_chance(list(strata.values())), RUNS)


def _needs_exact(measure: Measure, table: Sequence[Sequence[float]]) -> bool:
    return measure.is_event or any(math.isinf(value) for values in table for value in values)


def judge(
    tests: Mapping[str, MeasureTest], equal: Collection[str] = ()
) -> dict[str, MeasureJudgement]:
    """The judgement on each test, all corrected together; those in `equal` need no test."""
    names = [name for name in tests if name not in equal]
    chances = [tests[name].chance for name in names]
    corrected = dict(zip(names, run_tests.correct(chances), strict=True))
    level = noise.LEVEL / run_tests.count_testable(chances)
    judgements = {name: MeasureJudgement(EQUAL) for name in equal}
    for name in names:
        chance, test = corrected[name], tests[name]
        smallest = _smallest_effect(test, level)
        if chance is None and _could_differ(test, level):
            # This many runs could have shown a difference, and these are far from one.
            judgements[name] = MeasureJudgement(WITHIN_NOISE, 1.0, test.basis, smallest)
        elif chance is None:
            judgements[name] = MeasureJudgement(NOISE_UNKNOWN, basis=test.basis, smallest=smallest)
        else:
            word = DIFFERS if chance < noise.LEVEL else WITHIN_NOISE
            judgements[name] = MeasureJudgement(word, chance, test.basis, smallest)
    return judgements


def _could_differ(test: MeasureTest, level: float) -> bool:
    sizes = sorted(len(values) for values in test.values if values)
    return test.basis == RUNS and run_tests.least_affected(sizes[0], sizes[1], level) is not None


def _smallest_effect(test: MeasureTest, level: float) -> str:
    """The smallest effect that these runs could have shown, as text; empty if too few runs."""
    sizes = sorted(len(values) for values in test.values if values)
    if len(sizes) < 2 or sizes[0] < noise.LEAST_RUNS:
        return ""
    if test.basis == RUNS:
        affected = run_tests.least_affected(sizes[0], sizes[1], level)
        if affected is not None:
            return f"{affected} of {sizes[0]} runs against none of {sizes[1]}"
        return f"nothing; {_runs_needed(level)} runs a side could"
    found = noise.detectable(test.samples, sizes[:2], level)
    if found is None:
        return ""
    if test.measure.is_log:
        return f"{math.exp(found):.3g} times" if found < 50 else "nothing"
    return f"{test.measure.format_value(found)} more or less"


def _runs_needed(level: float) -> int:
    return next(n for n in range(1, 1000) if run_tests.least_affected(n, n, level) is not None)


def is_equal(values: Iterable[Sequence[float]]) -> bool:
    """Whether each column has enough runs, and all runs have the same value."""
    listed = list(values)
    is_enough = bool(listed) and all(len(column) >= noise.LEAST_RUNS for column in listed)
    return is_enough and len({value for column in listed for value in column}) == 1
