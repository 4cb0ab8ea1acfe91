"""Numbers of each second of a run in few bytes: 4 for a count, 8 for the latencies of a group.

A run of a day has 86,400 seconds, and each of its series would otherwise take more of what the
driver receives than anything else. What does not fit (seconds far apart, a latency of a week) is
not packed: the functions return None.
"""

from typing import Final, NamedTuple

import numpy as np

from shoal.audit.arrays import Ints, starts_of_groups
from shoal.audit.times.latency import BUCKET_BITS, bucket_bounds, nearest_rank

_COUNT_BITS: Final = 32
_LARGEST_COUNT: Final = (1 << 31) - 1
_LARGEST_US: Final = (1 << (63 - 2 * BUCKET_BITS)) - 1
_LOW: Final = (1 << BUCKET_BITS) - 1
_NO_BUCKET: Final = _LOW
_MOST_EMPTY: Final = 4  # seconds for each one that has a number


class Packed(NamedTuple):
    """The numbers of successive seconds."""

    start: int
    size: int
    values: Ints


def pack_counts(rows: Ints) -> Packed | None:
    """Pack rows of (second, count), ascending."""
    span = _find_span(rows[:, 0])
    if span is None or not _fits(rows[:, 1], _LARGEST_COUNT):
        return None
    counts = np.zeros(span[1] + span[1] % 2, dtype=np.int64)
    counts[rows[:, 0] - span[0]] = rows[:, 1]
    return Packed(*span, counts[::2] << _COUNT_BITS | counts[1::2])


def unpack_counts(packed: Packed) -> Ints:
    """Return rows of (second, count) without counts of 0."""
    start, size, values = packed
    counts = np.stack([values >> _COUNT_BITS, values & ((1 << _COUNT_BITS) - 1)], axis=1)
    counts = counts.reshape(-1)[:size]
    seconds = np.flatnonzero(counts)
    return np.stack([seconds + start, counts[seconds]], axis=1)


def pack_latencies(buckets: Ints, maxima: Ints) -> Packed | None:
    """Pack rows of `buckets_per_second` and rows of (second, largest value)."""
    span = _find_span(maxima[:, 0])
    shares = _shares_per_second(buckets)
    if span is None or not _fits(maxima[:, 1], _LARGEST_US):
        return None
    if not np.array_equal(shares[:, 0], maxima[:, 0]) or (shares[:, 1:] >= _NO_BUCKET).any():
        return None
    values = np.full(span[1], _NO_BUCKET, dtype=np.int64)
    packed = (maxima[:, 1] << BUCKET_BITS | shares[:, 1]) << BUCKET_BITS | shares[:, 2]
    values[maxima[:, 0] - span[0]] = packed
    return Packed(*span, values)


def unpack_latencies(packed: Packed) -> tuple[Ints, Ints]:
    """Return rows of (second, p50, p99), and rows of (second, largest value)."""
    start, _, values = packed
    seconds = np.flatnonzero(values & _LOW != _NO_BUCKET)
    own = values[seconds]
    halves, tails = _bounds(own >> BUCKET_BITS & _LOW), _bounds(own & _LOW)
    highest = own >> 2 * BUCKET_BITS
    seconds = seconds + start
    return np.stack([seconds, halves, tails], axis=1), np.stack([seconds, highest], axis=1)


def percentiles_per_second(buckets: Ints) -> Ints:
    """Return rows of (second, 50th percentile, 99th), given those of `buckets_per_second`."""
    shares = _shares_per_second(buckets)
    return np.stack([shares[:, 0], _bounds(shares[:, 1]), _bounds(shares[:, 2])], axis=1)


def _shares_per_second(table: Ints) -> Ints:
    """Return rows of (second, bucket of the 50th percentile, bucket of the 99th)."""
    seconds = table[:, 0] >> BUCKET_BITS
    starts = starts_of_groups(seconds)
    rows = []
    for own in np.split(table, starts[1:]) if len(starts) else ():
        buckets = np.stack([own[:, 0] & _LOW, own[:, 1]], axis=1)
        found = [nearest_rank(buckets, share, 100) for share in (50, 99)]
        rows.append([int(own[0, 0]) >> BUCKET_BITS, *found])
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _bounds(buckets: Ints) -> Ints:
    """Return the upper bound of each bucket."""
    found: Ints = np.array([bucket_bounds(n)[1] for n in buckets.tolist()], dtype=np.int64)
    return found


def _find_span(seconds: Ints) -> tuple[int, int] | None:
    """Return the first second and how many there are to the last; None if most are empty."""
    if not len(seconds):
        return None
    start, size = int(seconds[0]), int(seconds[-1]) - int(seconds[0]) + 1
    return (start, size) if size <= _MOST_EMPTY * len(seconds) else None


def _fits(values: Ints, largest: int) -> bool:
    return bool(values.min() >= 0 and values.max() <= largest)
