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

from shoal.audit.arrays import LARGEST, Ints
from shoal.audit.columns import SlotColumn
from shoal.audit.context import AuditContext
from shoal.audit.result.latencies import Latencies, owed_in_window, window_segments
from shoal.audit.result.merge import Totals
from shoal.audit.times.clocks import skew_of
from shoal.audit.times.faults import FaultWindow
from shoal.audit.times.ranks import SampleSet
from shoal.audit.times.segments import segments_within
from shoal.model.findings import LOST, Finding
from shoal.model.result import Ratios, Window

BEFORE_US: Final = 10_000_000
CALM_US: Final = 1_000_000

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
    begins_us = [fault.began_us for fault in faults]
    judge = _Windows(context, totals, group, begins_us, latencies=latencies)
    calm = windows[-1][1]
    return tuple(judge.window(fault, own, calm) for fault, own in windows)


class _Windows:
    def __init__(
        self,
        context: AuditContext,
        totals: Totals,
        group: str,
        begins_us: Sequence[int],
        *,
        latencies: Latencies,
    ) -> None:
        self._context, self._totals, self._group = context, totals, group
        self._latencies = latencies
        rows = np.concatenate([np.empty((0, len(SlotColumn)), np.int64), *totals.slot_stats[group]])
        self._slot_stats = _merge_slots(rows)
        self._begins_us = begins_us
        # Begin and last felt time of the faults judged so far; they come in order of begin.
        self._felt_until_us: list[tuple[int, int]] = []

    def window(self, fault: FaultWindow | None, own: Sequence[int], calm: Sequence[int]) -> Window:
        counts = {name: self._count(name, own) for name in _COUNTS}
        findings = {f.value: n for f in _OF_MESSAGES if (n := self._count(f, own))}
        counts["lost"] = sum(findings.get(finding, 0) for finding in LOST)
        counts["pending"] = findings.get(Finding.PENDING, 0)
        owed = counts["lost"] + counts["pending"]
        detect, recover = self._times_to_detect_and_recover(fault, calm) if fault else (None, None)
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
            time_to_drain_us=self._time_to_drain_us(fault) if fault else None,
        )

    def _count(self, name: str, segments: Sequence[int]) -> int:
        return self._totals.count_in(self._group, name, segments)

    # ------------------------------------------------------------ durations

    def _times_to_detect_and_recover(
        self, fault: FaultWindow, calm: Sequence[int]
    ) -> tuple[int | None, int | None]:
        """Return the times to detect and to recover."""
        slot_us = self._context.slot_us
        segment, slot, _, worse, longest, last = self._slot_stats.T
        at_us = slot * slot_us
        nearly_us = fault.began_us - CALM_US
        begin_us = min(at for at in self._begins_us if nearly_us < at <= fault.began_us)
        felt_us = max((over for at, over in self._felt_until_us if at < begin_us), default=0)
        before = int(np.searchsorted(self._context.edges_us, begin_us, side="left"))
        comparable = (segment == before) & (at_us >= max(begin_us - BEFORE_US, felt_us))
        # Leave out messages that were in flight when the fault began: they may have felt it.
        comparable &= (last <= begin_us) & (longest != -LARGEST)
        limit_us = max(longest[comparable] if before in calm else (), default=LARGEST)
        after = segment >= segments_within(fault, self._context.edges_us).start
        felt = np.flatnonzero(after & ((worse > 0) | (longest > limit_us)))
        ended_us = LARGEST if fault.ended_us is None else fault.ended_us
        waves = _waves(at_us[felt], slot_us)
        own = [wave for wave in waves if wave[0] < ended_us + CALM_US]
        if not own:
            return None, None
        detect = max(own[0][0] - fault.began_us, 0)
        last_us = int(at_us[-1]) + slot_us
        over_us = own[-1][1]
        self._felt_until_us.append((fault.began_us, over_us))
        return detect, None if over_us >= last_us else over_us - fault.began_us

    def _time_to_drain_us(self, fault: FaultWindow) -> int | None:
        if fault.ended_us is None:
            return None
        until = segments_within(fault, self._context.edges_us).stop
        segment, last = self._slot_stats[:, [SlotColumn.SEGMENT, SlotColumn.LAST_US]].T
        last_us = int(last[segment < until].max(initial=-LARGEST))
        return None if last_us == -LARGEST else max(last_us - fault.ended_us, 0)


def _merge_slots(rows: Ints) -> Ints:
    """Merge the rows of each segment and slot into one, ascending by time."""
    rows = rows[np.lexsort((rows[:, SlotColumn.SLOT], rows[:, SlotColumn.SEGMENT]))]
    if not len(rows):
        return rows
    # The columns: what names a row, then sums, then maxima.
    times, sums, maxima = np.split(rows, [SlotColumn.ATTEMPTS, SlotColumn.LONGEST_US], axis=1)
    starts = np.flatnonzero(np.append(True, (times[1:] != times[:-1]).any(axis=1)))
    reduced = (np.add.reduceat(sums, starts), np.maximum.reduceat(maxima, starts))
    return np.column_stack([times[starts], *reduced])


def _waves(at_us: Ints, slot_us: int) -> list[tuple[int, int]]:
    """Group slots, ascending, into waves (begin, end) that are `CALM_US` or more apart."""
    waves: list[tuple[int, int]] = []
    for begin in at_us.tolist():
        if waves and begin - waves[-1][1] < CALM_US:
            waves[-1] = (waves[-1][0], begin + slot_us)
        else:
            waves.append((begin, begin + slot_us))
    return waves
