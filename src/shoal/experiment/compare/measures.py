"""The numbers by which runs are compared, and what is said of their differences (pure).

Rules:
- Numbers are those of a run's worst group, as everywhere. Latencies are those of the messages
  owed: where losses reach the rank it is infinite, "never".
- Runs that are alike are the sample, one value a run. Fewer than three a side tell nothing of
  the noise, and that is said, also where their numbers are equal. Seconds within a run are
  never taken as repeats.
- Latencies, rates and usage: tests of means against the noise between runs
  (`shoal.audit.result.noise`). Counts and shares of rare events, and whatever is infinite or shows
  no
  noise: exact tests over runs (`shoal.audit.result.run_tests`).
- All tests of one page are corrected together, so that at most 5 of 100 pages say "differs"
  where nothing does. With each goes the smallest effect that these runs could have shown.
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
    Judged,
    Measure,
)
from shoal.model.result import Result

MEANS: Final = "means of runs"
RUNS: Final = "exact test over runs"

UNJUDGED: Final = Judged(NOISE_UNKNOWN)

Read = Callable[[Result], float | None]


def _latency(kind: str, statistic: str) -> Read:
    def read(result: Result) -> float | None:
        latency = result.worst.metrics.latency_us.get(kind)
        if latency is None or not latency.count:
            return None
        return latency.owed().get(statistic)

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
    (Measure("yield", "ratio", is_event=True), lambda r: r.worst.metrics.yield_),
    (Measure("harvest", "ratio", is_event=True), lambda r: r.worst.metrics.harvest),
    (Measure("completeness", "ratio", is_event=True), lambda r: r.worst.metrics.completeness),
    (Measure("lost", "count", is_event=True), lambda r: r.worst.metrics.lost),
    (Measure("duplication", "ratio", is_event=True), lambda r: r.worst.metrics.duplication),
    (Measure("duplicates in the log", "count", is_event=True), _copies),
    (Measure("order", "ratio", is_event=True), lambda r: r.worst.metrics.order),
    (Measure("reordered", "count", is_event=True), _found("reordered")),
    (Measure("end-to-end latency p50", "us", is_log=True), _latency("e2e_intended", "p50")),
    (Measure("end-to-end latency p99", "us", is_log=True), _latency("e2e_intended", "p99")),
    (Measure("end-to-end latency max", "us", is_log=True), _latency("e2e_intended", "max")),
    (Measure("producer latency p50", "us", is_log=True), _latency("producer", "p50")),
    (Measure("producer latency p99", "us", is_log=True), _latency("producer", "p99")),
    (Measure("throughput", "per_s", is_log=True), _throughput),
    (Measure("time to detect a fault", "us", is_log=True), _felt("time_to_detect_us")),
    (Measure("time to recover", "us", is_log=True), _felt("time_to_recover_us")),
    (Measure("time to drain", "us", is_log=True), _felt("time_to_drain_us")),
    (Measure("mirror CPU", "s", is_log=True), _usage("cpu_s")),
    (Measure("mirror memory", "bytes", is_log=True), _usage("peak_memory_bytes")),
)


def values_of(result: Result) -> dict[str, float]:
    """Every measure that is known of a run, by name."""
    found = {measure.name: read(result) for measure, read in MEASURES}
    return {name: float(value) for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Tested:
    """What a test found in one measure."""

    measure: Measure
    values: tuple[tuple[float, ...], ...]  # by column or level
    chance: Chance = UNKNOWN
    basis: str = ""
    samples: tuple[tuple[float, ...], ...] = ()  # whose noise was taken, scaled


def scale(measure: Measure, values: Iterable[float]) -> list[float]:
    """As the tests take them: noise that does not grow with the value."""
    # Nothing that is measured here is below a millionth of its unit.
    return [math.log(max(value, 1e-6)) for value in values] if measure.is_log else list(values)


def compare_columns(measure: Measure, values: Sequence[Sequence[float]]) -> Tested:
    """Whether columns of runs differ."""
    table = tuple(map(tuple, values))
    if len(table) < 2 or any(len(column) < noise.LEAST_RUNS for column in table):
        return Tested(measure, table)
    if not _needs_exact(measure, table):
        samples = tuple(tuple(scale(measure, column)) for column in table)
        chance = noise.groups_p(samples)
        if chance is not None:
            return Tested(measure, table, Chance(chance), MEANS, samples)
    return Tested(measure, table, run_tests.runs_chance(table), RUNS)


def compare_levels(
    measure: Measure, cells: Mapping[tuple[str, ...], Sequence[float]], place: int
) -> Tested:
    """Whether the levels of the parameter at `place` of a sweep differ."""
    levels = list(dict.fromkeys(combination[place] for combination in cells))
    table = tuple(
        tuple(v for c, found in cells.items() if c[place] == level for v in found)
        for level in levels
    )
    if len(table) < 2 or any(len(values) < noise.LEAST_RUNS for values in table):
        return Tested(measure, table)
    if not _needs_exact(measure, table):
        scaled = {c: scale(measure, found) for c, found in cells.items()}
        chance = noise.factor_p(scaled, place)
        if chance is not None:
            samples = tuple(map(tuple, scaled.values()))
            return Tested(measure, table, Chance(chance), MEANS, samples)
    strata: dict[tuple[str, ...], list[list[float]]] = {}
    for combination, found in cells.items():
        others = (*combination[:place], *combination[place + 1 :])
        row = strata.setdefault(others, [[] for _ in levels])
        row[levels.index(combination[place])] += found
    return Tested(measure, table, run_tests.strata_chance(list(strata.values())), RUNS)


def _needs_exact(measure: Measure, table: Sequence[Sequence[float]]) -> bool:
    return measure.is_event or any(math.isinf(value) for values in table for value in values)


def judge(tests: Mapping[str, Tested], equal: Collection[str] = ()) -> dict[str, Judged]:
    """What is said of each, all of them corrected together; `equal` need no test."""
    names = [name for name in tests if name not in equal]
    chances = [tests[name].chance for name in names]
    corrected = dict(zip(names, run_tests.correct(chances), strict=True))
    level = noise.LEVEL / run_tests.count_testable(chances)
    said = {name: Judged(EQUAL) for name in equal}
    for name in names:
        chance, test = corrected[name], tests[name]
        smallest = _smallest_effect(test, level)
        if chance is None and _could_differ(test, level):
            # So many runs could have shown a difference, and these do not come near one.
            said[name] = Judged(WITHIN_NOISE, 1.0, test.basis, smallest)
        elif chance is None:
            said[name] = Judged(NOISE_UNKNOWN, basis=test.basis, smallest=smallest)
        else:
            word = DIFFERS if chance < noise.LEVEL else WITHIN_NOISE
            said[name] = Judged(word, chance, test.basis, smallest)
    return said


def _could_differ(test: Tested, level: float) -> bool:
    sizes = sorted(len(values) for values in test.values if values)
    return test.basis == RUNS and run_tests.least_affected(sizes[0], sizes[1], level) is not None


def _smallest_effect(test: Tested, level: float) -> str:
    """What these runs could have shown, in words; empty where there were too few to say."""
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
    return f"{test.measure.shown(found)} more or less"


def _runs_needed(level: float) -> int:
    return next(n for n in range(1, 1000) if run_tests.least_affected(n, n, level) is not None)


def is_equal(values: Iterable[Sequence[float]]) -> bool:
    """Whether enough runs of each column are known, and all have one and the same number."""
    listed = list(values)
    is_enough = bool(listed) and all(len(column) >= noise.LEAST_RUNS for column in listed)
    return is_enough and len({value for column in listed for value in column}) == 1
