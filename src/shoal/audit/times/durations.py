"""How long faults were felt, from slots of time (`SlotColumn`); `windows` defines the times."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from shoal.audit.arrays import LARGEST, NONE, Ints
from shoal.audit.columns import SlotColumn
from shoal.audit.context import AuditContext
from shoal.audit.times.faults import FaultWindow
from shoal.audit.times.segments import segments_within

BEFORE_US: Final = 10_000_000
CALM_US: Final = 1_000_000

_Windows = Sequence[tuple[FaultWindow | None, Sequence[int]]]


class FaultTimes(NamedTuple):
    """Times of one fault in microseconds; NONE if there is none."""

    detect: int = NONE
    recover: int = NONE
    drain: int = NONE


def measure_durations(slots: Ints, context: AuditContext, windows: _Windows) -> list[FaultTimes]:
    """Return the times of each fault, given the slots of one group and `window_segments`."""
    if not windows:
        return []
    calm = windows[-1][1]
    begins_us = [fault.began_us for fault, _ in windows if fault]
    measure = _Durations(merge_slots(slots), context, begins_us)
    return [measure.times(fault, calm) for fault, _ in windows if fault]


class _Durations:
    def __init__(self, slots: Ints, context: AuditContext, begins_us: Sequence[int]) -> None:
        self._slots, self._context, self._begins_us = slots, context, begins_us
        # Begin and last felt time of the faults judged so far; they come in order of begin.
        self._felt_until_us: list[tuple[int, int]] = []

    def times(self, fault: FaultWindow, calm: Sequence[int]) -> FaultTimes:
        found = (*self._detect_and_recover(fault, calm), self._drain(fault))
        return FaultTimes(*(NONE if time_us is None else time_us for time_us in found))

    def _detect_and_recover(
        self, fault: FaultWindow, calm: Sequence[int]
    ) -> tuple[int | None, int | None]:
        """Return the times to detect and to recover."""
        slot_us = self._context.slot_us
        segment, slot, _, worse, longest, last = self._slots.T
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

    def _drain(self, fault: FaultWindow) -> int | None:
        if fault.ended_us is None:
            return None
        until = segments_within(fault, self._context.edges_us).stop
        segment, last = self._slots[:, [SlotColumn.SEGMENT, SlotColumn.LAST_US]].T
        last_us = int(last[segment < until].max(initial=-LARGEST))
        return None if last_us == -LARGEST else max(last_us - fault.ended_us, 0)


def merge_slots(rows: Ints) -> Ints:
    """Merge the rows of each segment and slot of `SlotColumn` into one, ascending by time."""
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
