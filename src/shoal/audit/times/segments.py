"""Faults divide the time of a run into segments; the counts of segments add up to any window.

An edge is a time at which a fault began or ended. Segment 0 is before the first edge, segment n
after the n-th. A message belongs to the segment of its intended send time. So every message is in
exactly one segment, windows may overlap, and cells count without knowing about windows.

In addition, short slots of time record how messages fared, for the times to detect and recover.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from shoal.audit.arrays import LARGEST, NONE, Array, Bools, Ints, starts_of_groups
from shoal.audit.columns import SlotColumn
from shoal.audit.times.faults import FaultWindow

MOST_WINDOWS: Final = 1000  # of a run with more faults only the first ones get a window
_SLOTS_US: Final = (10_000, 100_000, 1_000_000)
_MOST_SLOTS: Final = 360_000


def edges_of(windows: Iterable[FaultWindow]) -> tuple[int, ...]:
    """Return all times at which a fault began or ended, ascending."""
    judged = list(windows)[:MOST_WINDOWS]
    ends = (window.ended_us for window in judged)
    return tuple(sorted({*(w.began_us for w in judged), *(e for e in ends if e is not None)}))


def slot_width_us(edges_us: tuple[int, ...]) -> int:
    """Return the finest slot width that the time between the first and the last edge allows."""
    if not edges_us:
        return 0
    span_us = edges_us[-1] - edges_us[0]
    return next((s for s in _SLOTS_US if span_us <= s * _MOST_SLOTS), _SLOTS_US[-1])


def segments_of(times_us: Array, edges_us: tuple[int, ...]) -> Ints:
    """Return the segment of each time; NONE for an absent time."""
    if not edges_us:
        return np.broadcast_to(np.int64(0), times_us.shape)
    found = np.searchsorted(np.array(edges_us, dtype=np.int64), times_us, side="right")
    return np.where(times_us == NONE, NONE, found).astype(np.int64)


def segments_within(window: FaultWindow, edges_us: tuple[int, ...]) -> range:
    """Return the segments inside a window."""
    first = int(np.searchsorted(edges_us, window.began_us, side="right"))
    if window.ended_us is None:
        return range(first, len(edges_us) + 1)
    return range(first, int(np.searchsorted(edges_us, window.ended_us, side="right")))


def histogram_by_segment(segments: Ints, values: Ints) -> Ints:
    """Return rows of (segment, microseconds, count)."""
    order = np.lexsort((values, segments))
    pairs = np.stack([segments[order], values[order]], axis=1)
    if not len(pairs):
        return np.empty((0, 3), dtype=np.int64)
    starts = np.flatnonzero(np.append(True, (pairs[1:] != pairs[:-1]).any(axis=1)))
    return np.column_stack([pairs[starts], np.diff(np.append(starts, len(pairs)))])


def summarise_slots(intended_us: Ints, worse: Bools, received_us: Ints, *, slot_us: int) -> Ints:
    """Return rows of `SlotColumn` without the segment: all of these messages share one.

    `received_us` is the time of the first delivery, NONE if there was none.
    """
    order = np.argsort(intended_us, kind="stable")
    slots = intended_us[order] // slot_us
    starts = starts_of_groups(slots)
    if not len(starts):
        return np.empty((0, len(SlotColumn) - 1), dtype=np.int64)
    came = received_us[order] != NONE
    waits = np.where(came, received_us[order] - intended_us[order], -LARGEST)
    last = np.where(came, received_us[order], -LARGEST)
    return np.column_stack(
        [
            slots[starts],
            np.diff(np.append(starts, len(slots))),
            np.add.reduceat(worse[order].astype(np.int64), starts),
            np.maximum.reduceat(waits, starts),
            np.maximum.reduceat(last, starts),
        ]
    )
