"""The effect of each fault: metrics of the messages in its window, and how long it was felt.

A message is in a window if its intended send time is. A message *feels* a fault if it fared worse
than before: it was refused, unanswered or never delivered, or it waited longer for its first
delivery than every message of the comparison period. That period is the `BEFORE_US` before the
fault, or the time since another fault began, ended or was last felt, if that is shorter; only
messages that had arrived when the fault began count. Without such messages, waits do not count.
Messages that feel a fault form waves; a wave ends with `CALM_US` without one. Faults that begin
within `CALM_US` of each other are compared with the time before the first of them.

- Time to detect: from the begin of the fault to the first such message.
- Time to recover: from its begin to the end of the last wave that began before the fault's end
  or within `CALM_US` of it; none if that wave continues to the end of the run.
- Time to drain: from the end of the fault to the first delivery of the last message that was
  intended before it and was delivered at all; none for a fault that never ended.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from shoal.audit.arrays import NONE
from shoal.audit.columns import SlotColumn
from shoal.audit.context import AuditContext
from shoal.audit.result.latencies import Latencies, owed_in_window, window_segments
from shoal.audit.result.merge import Totals
from shoal.audit.times.clocks import skew_of
from shoal.audit.times.durations import FaultTimes, measure_durations
from shoal.audit.times.faults import FaultWindow
from shoal.audit.times.ranks import SampleSet
from shoal.model.findings import LOST, Finding
from shoal.model.result import Ratios, Window

_COUNTS: Final = (
    *("attempts", "ok", "failed", "unknown", "deliveries", "delivered", "delivered_attempts"),
    *("delivered_ok", "re_reads", "recovered", "lost_ok", "pending_ok"),
)
# Findings about offsets, streams or transactions, not messages, have no window.
_OF_MESSAGES: Final = tuple(
    finding
    for finding in Finding
    if finding
    not in (
        Finding.TAIL_LOSS,
        Finding.INCONSISTENT_OFFSET,
        Finding.TORN_TRANSACTION,
        Finding.POLL_SKIP,
        Finding.NON_MONOTONIC_POLL,
        Finding.UNREADABLE,
    )
)


def judge_windows(
    context: AuditContext,
    totals: Totals,
    group: str,
    faults: Sequence[FaultWindow],
    *,
    latencies: Latencies,
) -> tuple[Window, ...]:
    """Return a window for each fault and, last, one for the time outside of all faults.

    Returns nothing for a run without faults.
    """
    windows = window_segments(context, faults)
    if not windows:
        return ()
    judge = _Windows(context, totals, group, latencies=latencies)
    times = [*_fault_times(context, totals, group, windows), FaultTimes()]
    return tuple(judge.window(*named, own) for named, own in zip(windows, times, strict=True))


def _fault_times(
    context: AuditContext,
    totals: Totals,
    group: str,
    windows: Sequence[tuple[FaultWindow | None, Sequence[int]]],
) -> list[FaultTimes]:
    """Return the times of each fault; the tasks may have found them already."""
    if group in totals.fault_times:
        return [FaultTimes(*row) for row in totals.fault_times[group].tolist()]
    rows = [np.empty((0, len(SlotColumn)), np.int64), *totals.slot_stats[group]]
    return measure_durations(np.concatenate(rows), context, windows)


class _Windows:
    def __init__(
        self,
        context: AuditContext,
        totals: Totals,
        group: str,
        *,
        latencies: Latencies,
    ) -> None:
        self._context, self._totals, self._group = context, totals, group
        self._latencies = latencies

    def window(self, fault: FaultWindow | None, own: Sequence[int], times: FaultTimes) -> Window:
        counts = {name: self._count(name, own) for name in _COUNTS}
        findings = {f.value: n for f in _OF_MESSAGES if (n := self._count(f, own))}
        counts["lost"] = sum(findings.get(finding, 0) for finding in LOST)
        counts["pending"] = findings.get(Finding.PENDING, 0)
        owed = counts["lost"] + counts["pending"]
        detect, recover, drain = (None if us == NONE else us for us in times)
        return Window(
            fault=fault.number if fault else None,
            counts=counts,
            ratios=Ratios.of(counts, acknowledged=self._context.acknowledged),
            findings=findings,
            latency_us={
                name: self._latencies.statistics(
                    SampleSet(of, name, frozenset(own)),
                    owed_in_window(of, owed),
                    skew_us=skew_of(name, self._context.skews_us.get(self._group)),
                )
                for name, of in self._latencies.names_in_windows(self._group)
            },
            sent=self._count("sent during", own),
            received=self._count("received during", own),
            time_to_detect_us=detect,
            time_to_recover_us=recover,
            time_to_drain_us=drain,
        )

    def _count(self, name: str, segments: Sequence[int]) -> int:
        return self._totals.count_in(self._group, name, segments)
