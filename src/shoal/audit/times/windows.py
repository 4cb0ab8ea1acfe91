"""What each fault did: metrics of the messages of its window, and how long it was felt.

A message is in a window if it was meant to leave in it. Felt is what fared worse than before:
a message that was refused, unanswered or never delivered, or that waited longer for its first
delivery than any that was meant to leave in the `BEFORE_US` before the fault and had arrived when
it began (since another fault began or ended or was last felt, if that is later; with nothing to
compare with, waits do not count). A wave of such messages ends with `CALM_US` without one. Faults
that begin within `CALM_US` of each other are compared with the time before the first of them.

- Time to detect: from the begin of the fault to the first such message.
- Time to recover: from its begin to the end of the last wave that began before the fault's end
  or within `CALM_US` of it; none if that wave goes on to the end of the run.
- Time to drain: from the end of the fault until all that was meant to leave before it, and was
  delivered at all, had been delivered; none for a fault that never ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from shoal.audit.arrays import LARGEST, Ints, summed_by_key
from shoal.audit.context import Setting
from shoal.audit.result.merge import Group, Totals
from shoal.audit.times.clocks import skew_of
from shoal.audit.times.faults import FaultWindow
from shoal.audit.times.latency import named_latencies, statistics
from shoal.audit.times.segments import FARES, segments_within
from shoal.model.findings import LOST, Finding
from shoal.model.result import Ratios, Window

BEFORE_US: Final = 10_000_000
CALM_US: Final = 1_000_000

_COUNTS: Final = (
    *("attempts", "ok", "failed", "unknown", "deliveries", "delivered", "delivered_attempts"),
    *("delivered_ok", "re_reads", "recovered", "lost_ok", "pending_ok"),
)
# What is said of offsets, streams or transactions and not of messages has no window.
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
    setting: Setting, totals: Totals, group: str, faults: Sequence[FaultWindow]
) -> tuple[Window, ...]:
    """A window for each fault, and last one for the time outside of all; none without faults."""
    if not setting.edges_us:
        return ()
    judge = _Windows(setting, totals, group, [fault.began_us for fault in faults])
    within = [segments_within(fault, setting.edges_us) for fault in faults]
    taken = {segment for segments in within for segment in segments}
    calm = [segment for segment in range(len(setting.edges_us) + 1) if segment not in taken]
    found = [judge.window(fault, own, calm) for fault, own in zip(faults, within, strict=True)]
    return (*found, judge.window(None, calm, calm))


class _Windows:
    def __init__(
        self, setting: Setting, totals: Totals, group: str, begins_us: Sequence[int]
    ) -> None:
        self._setting, self._totals, self._group = setting, totals, group
        rows = np.concatenate([np.empty((0, len(FARES)), np.int64), *totals.fares[group]])
        self._fares = _merged(rows)
        self._begins_us = begins_us
        # Of the faults so far, which come in order of begin: when they began and were last felt.
        self._felt_until_us: list[tuple[int, int]] = []

    def window(
        self, fault: FaultWindow | None, segments: Iterable[int], calm: Sequence[int]
    ) -> Window:
        own = list(segments)
        counts = {name: self._count(name, own) for name in _COUNTS}
        findings = {f.value: n for f in _OF_MESSAGES if (n := self._count(f, own))}
        counts["lost"] = sum(findings.get(finding, 0) for finding in LOST)
        counts["pending"] = findings.get(Finding.PENDING, 0)
        names = named_latencies(self._group, self._totals.segment_latency)
        owed = counts["lost"] + counts["pending"]
        detect, recover = self._felt(fault, calm) if fault else (None, None)
        return Window(
            fault=fault.number if fault else None,
            counts=counts,
            ratios=Ratios.of(counts, acknowledged=self._setting.acknowledged),
            findings=findings,
            latency_us={
                name: statistics(
                    self._latency(of, name, own),
                    owed if of else 0,
                    skew_us=skew_of(name, self._setting.skews_us.get(self._group)),
                )
                for name, of in names
            },
            sent=self._count("sent during", own),
            received=self._count("received during", own),
            time_to_detect_us=detect,
            time_to_recover_us=recover,
            time_to_drain_us=self._drained(fault) if fault else None,
        )

    def _count(self, name: str, segments: Iterable[int]) -> int:
        held: list[Mapping[int, int]] = [
            self._totals.segments.get((group, name), {}) for group in (None, self._group)
        ]
        return sum(counts.get(segment, 0) for counts in held for segment in segments)

    def _latency(self, group: Group, name: str, segments: list[int]) -> Ints:
        found = self._totals.segment_latency.get((group, name), [])
        rows = np.concatenate([np.empty((0, 3), np.int64), *found])
        rows = rows[np.isin(rows[:, 0], segments)]
        return np.stack(summed_by_key(rows[:, 1], rows[:, 2]), axis=1)

    # ------------------------------------------------------------ how long it was felt

    def _felt(self, fault: FaultWindow, calm: Sequence[int]) -> tuple[int | None, int | None]:
        """Times to detect and to recover."""
        slot_us = self._setting.slot_us
        segment, slot, _, worse, longest, last = self._fares.T
        at_us = slot * slot_us
        nearly_us = fault.began_us - CALM_US
        begin_us = min(at for at in self._begins_us if nearly_us < at <= fault.began_us)
        felt_us = max((over for at, over in self._felt_until_us if at < begin_us), default=0)
        before = int(np.searchsorted(self._setting.edges_us, begin_us, side="left"))
        comparable = (segment == before) & (at_us >= max(begin_us - BEFORE_US, felt_us))
        # What was on its way when the fault began may have suffered by it.
        comparable &= (last <= begin_us) & (longest != -LARGEST)
        limit_us = max(longest[comparable] if before in calm else (), default=LARGEST)
        after = segment >= segments_within(fault, self._setting.edges_us).start
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

    def _drained(self, fault: FaultWindow) -> int | None:
        if fault.ended_us is None:
            return None
        until = segments_within(fault, self._setting.edges_us).stop
        own = self._fares[self._fares[:, 0] < until, FARES.index("last_us")]
        last_us = int(own.max(initial=-LARGEST))
        return None if last_us == -LARGEST else max(last_us - fault.ended_us, 0)


def _merged(rows: Ints) -> Ints:
    """One row for each segment and slot, ascending by time."""
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    if not len(rows):
        return rows
    fresh = np.append(True, (rows[1:, :2] != rows[:-1, :2]).any(axis=1))
    starts = np.flatnonzero(fresh)
    sums = np.add.reduceat(rows[:, 2:4], starts, axis=0)
    return np.column_stack(
        [rows[starts, :2], sums, np.maximum.reduceat(rows[:, 4:], starts, axis=0)]
    )


def _waves(at_us: Ints, slot_us: int) -> list[tuple[int, int]]:
    """Slots, ascending, as (begin, end) of waves between which there is calm."""
    waves: list[tuple[int, int]] = []
    for begin in at_us.tolist():
        if waves and begin - waves[-1][1] < CALM_US:
            waves[-1] = (waves[-1][0], begin + slot_us)
        else:
            waves.append((begin, begin + slot_us))
    return waves
