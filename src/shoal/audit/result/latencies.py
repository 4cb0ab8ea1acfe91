"""The exact latencies of every group and fault window, asked of the runs in few rounds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shoal.audit.arrays import Ints
from shoal.audit.context import AuditContext
from shoal.audit.parts import PartKind, TaskPart
from shoal.audit.result.merge import Group, Totals
from shoal.audit.times.clocks import Skew
from shoal.audit.times.faults import FaultWindow
from shoal.audit.times.latency import LatencyName, list_latencies
from shoal.audit.times.ranks import (
    RESULT_SHARES,
    Rank,
    SampleSet,
    Share,
    find_samples,
    list_ranks,
    rank_of,
    statistics,
)
from shoal.audit.times.runs import (
    FileRun,
    KnownLatencies,
    LatencySummary,
    Question,
    RankCount,
    count_ranks,
    find_places,
)
from shoal.audit.times.segments import MOST_WINDOWS, segments_within
from shoal.audit.times.staleness import STALENESS
from shoal.model.findings import LOST, Finding
from shoal.model.result import Latency

ROWS_READ_HERE: Final = 1 << 20  # of latency runs: so few need no task
RUNS_PER_TASK: Final = 4
OWED: Final = (*LOST, Finding.PENDING)

# Of the curves of a page, in thousandths of a percent: ranks are computed with whole numbers.
CURVE_PERCENTS: Final = (
    *(1_000, 5_000, 10_000, 25_000, 50_000, 75_000, 90_000, 95_000, 99_000, 99_500),
    *(99_900, 99_950, 99_990, 99_999, 100_000),
)
CURVE_WHOLE: Final = 100_000

RankRunner = Callable[[Sequence[RankCount], Sequence[Question]], list[list[TaskPart]]]


@dataclass(frozen=True)
class Latencies:
    """Statistics of every sample set that a result shows."""

    known: KnownLatencies = field(default_factory=KnownLatencies)
    samples: Mapping[Rank, int] = field(default_factory=dict)

    def names(self, group: str) -> list[LatencyName]:
        """Return the latencies of a group's result, in report order."""
        return list_latencies(group, self.known.sections)

    def names_in_windows(self, group: str) -> list[LatencyName]:
        """Return the latencies of a group's windows: those of messages."""
        return [each for each in self.names(group) if each.name != STALENESS]

    def statistics(self, samples: SampleSet, undelivered: int, *, skew_us: Skew | None) -> Latency:
        return statistics(
            self.known.summary(*samples),
            lambda rank: self.samples[Rank(samples, rank)],
            undelivered=undelivered,
            skew_us=skew_us,
        )

    def sample_at(self, samples: SampleSet, share: Share, undelivered: int) -> int | None:
        """Return the sample of a share, with undelivered messages as infinite; None if that is."""
        summary = self.known.summary(*samples)
        if summary is None:
            return None
        rank = rank_of(summary.size + undelivered, *share)
        return self.samples[Rank(samples, rank)] if rank <= summary.size else None


def owed_in_all(name: str, owed: int) -> int:
    """Return how many messages are owed to a latency over the whole run."""
    return owed if name.startswith("e2e") else 0


def owed_in_window(of: Group, owed: int) -> int:
    """Return how many messages of a window are owed to a latency."""
    return owed if of else 0


def window_segments(
    context: AuditContext, faults: Sequence[FaultWindow]
) -> list[tuple[FaultWindow | None, tuple[int, ...]]]:
    """Return the segments of each fault and, last, those outside of all; empty without faults."""
    if not context.edges_us:
        return []
    within = [tuple(segments_within(fault, context.edges_us)) for fault in faults]
    in_faults = {segment for segments in within for segment in segments}
    every = range(len(context.edges_us) + 1)
    calm = tuple(segment for segment in every if segment not in in_faults)
    return [*zip(faults, within, strict=True), (None, calm)]


def measure_latencies(
    context: AuditContext,
    totals: Totals,
    faults: Sequence[FaultWindow],
    runner: RankRunner,
    *,
    rows_read_here: int = ROWS_READ_HERE,
) -> Latencies:
    """Find the sample of every rank that the result of a run shows."""
    known = totals.latencies
    windows = window_segments(context, faults[:MOST_WINDOWS])
    segments = [frozenset(own) for _, own in windows]
    wanted: dict[Rank, LatencySummary] = {}
    asked = [
        *_list_sample_sets(context, totals, segments),
        *_list_curve_sets(context, totals, faults[:MOST_WINDOWS]),
    ]
    for samples, undelivered, shares in asked:
        summary = known.summary(*samples)
        if summary is not None:
            ranks = list_ranks(summary.size, undelivered, shares)
            wanted |= dict.fromkeys((Rank(samples, rank) for rank in ranks), summary)

    in_memory = not all(isinstance(run, FileRun) for run in known.runs)
    here = in_memory or known.rows <= rows_read_here
    ask = _count_here if here else runner
    found = find_samples(wanted, lambda asked: _count(known, asked, ask))
    return Latencies(known, found)


def _list_sample_sets(
    context: AuditContext, totals: Totals, windows: Sequence[frozenset[int]]
) -> Iterator[tuple[SampleSet, int, Sequence[Share]]]:
    """Return the sample sets of all groups, each with its number of undelivered messages."""
    latencies = Latencies(totals.latencies)
    for group in context.groups:
        owed = sum(totals.count(of, name) for of in (None, group) for name in OWED)
        for name, of in latencies.names(group):
            yield SampleSet(of, name), owed_in_all(name, owed), RESULT_SHARES
        for segments in windows:
            owed = sum(totals.count_in(group, name, segments) for name in OWED)
            for name, of in latencies.names_in_windows(group):
                yield SampleSet(of, name, segments), owed_in_window(of, owed), RESULT_SHARES


def _list_curve_sets(
    context: AuditContext, totals: Totals, faults: Sequence[FaultWindow]
) -> Iterator[tuple[SampleSet, int, Sequence[Share]]]:
    shares = [(percent, CURVE_WHOLE) for percent in CURVE_PERCENTS]
    for group in context.groups:
        for _, segments in curve_phases(context, faults):
            samples = SampleSet(group, "e2e_intended", segments)
            yield samples, count_never(totals, group, segments), shares


def curve_phases(
    context: AuditContext, faults: Sequence[FaultWindow]
) -> list[tuple[str, frozenset[int] | None]]:
    """Return the segments before, during and after faults, or of the whole run."""
    if not context.edges_us:
        return [("whole", None)]
    during = {n for fault in faults for n in segments_within(fault, context.edges_us)}
    later = {*range(1, len(context.edges_us) + 1)} - during
    phases = {"before": {0}, "during": during, "after": later}
    return [(phase, frozenset(segments)) for phase, segments in phases.items()]


def count_never(totals: Totals, group: str, segments: frozenset[int] | None) -> int:
    """Return how many messages of some segments, or of all, are lost or pending."""
    if segments is None:
        return sum(totals.count(group, finding) for finding in OWED)
    held = [totals.segments.get((group, finding), {}) for finding in OWED]
    return sum(counts.get(segment, 0) for counts in held for segment in segments)


def _count_here(tasks: Sequence[RankCount], _questions: Sequence[Question]) -> list[list[TaskPart]]:
    return [count_ranks(task) for task in tasks]


def _count(known: KnownLatencies, questions: Sequence[Question], ask: RankRunner) -> list[Ints]:
    """Return the places of the ranks of each question."""
    tasks = [
        RankCount(tuple(known.runs[start : start + RUNS_PER_TASK]), tuple(questions))
        for start in range(0, len(known.runs), RUNS_PER_TASK)
    ]
    parts = [part for parts in ask(tasks, questions) for part in parts]
    if any(part.kind is PartKind.RANK_PLACES for part in parts):
        [whole] = parts
        ends = np.cumsum([len(question.ranks) for question in questions])
        return np.split(whole.values, ends[:-1])
    return find_places(questions, np.sum([part.values for part in parts], axis=0))
