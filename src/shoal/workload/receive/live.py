"""Estimates of losses and duplicates while a consumer runs. Pure; no clock, no I/O.

Rules:
- A stream is (producer, topic, lane), where two incarnations of one id are two producers. Its
  *floor* is the sequence below which everything has arrived; a window of flags above it says what
  has arrived there.
- Open gaps: sequences below the highest received of their stream that have not arrived (yet).
  Duplicates: repeated deliveries. Late: first deliveries below the highest so far. Missing tails:
  sequences above the highest received, once a marker has given the stream's count.
- These are estimates: the audit, which knows the logs and the attempts, decides.
- Memory is bounded: of a window that grows too long the older half is dropped, and what is missing
  in it stays an open gap.
- Latencies are counted in buckets of a sixteenth of an octave, so that percentiles are within
  4.5 % of the exact ones, which the audit gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int32]]
Longs = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

LONGEST_WINDOW = 1 << 24
_PER_OCTAVE = 16
_BUCKETS = 64 * _PER_OCTAVE


@dataclass(frozen=True, slots=True)
class LiveCounts:
    """The counts of the live check so far."""

    streams: int
    open_gaps: int
    duplicates: int
    late: int
    missing_tails: int


@dataclass(slots=True)
class _Stream:
    floor: int = 0
    highest: int = -1
    abandoned_gaps: int = 0  # missing sequences below the floor
    count: int = 0  # from a marker; 0: no marker yet
    window: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))

    def add_messages(self, sequences: Longs) -> tuple[int, int]:
        """Add deliveries in order of arrival; return how many were duplicates, and late."""
        first, last = int(sequences[0]), int(sequences[-1])
        if first == self.floor == self.highest + 1 and (np.diff(sequences) == 1).all():
            self.floor, self.highest = last + 1, last
            return 0, 0
        new = self._first_deliveries(sequences)
        fresh = sequences[new]
        if not len(fresh):
            return len(sequences), 0
        before = np.maximum.accumulate(np.concatenate([[self.highest], fresh]))
        self.highest = int(before[-1])
        self._raise_floor()
        return len(sequences) - len(fresh), int((fresh < before[:-1]).sum())

    def _first_deliveries(self, sequences: Longs) -> Longs:
        """The indices of first deliveries; marks them as arrived."""
        _, places = np.unique(sequences, return_index=True)
        places = np.sort(places)
        places = places[sequences[places] >= self.floor]
        if not len(places):
            return places
        offsets = sequences[places] - self.floor
        if (end := int(offsets.max()) + 1) > len(self.window):
            self.window = np.concatenate([self.window, np.zeros(end - len(self.window), np.bool_)])
        is_new = ~self.window[offsets]
        self.window[offsets] = True
        return places[is_new]

    def _raise_floor(self) -> None:
        missing = np.flatnonzero(~self.window)
        here = int(missing[0]) if len(missing) else len(self.window)
        if len(self.window) - here > LONGEST_WINDOW:
            here = len(self.window) // 2
            self.abandoned_gaps += int((~self.window[:here]).sum())
        self.floor += here
        self.window = self.window[here:].copy() if here else self.window

    @property
    def open_gaps(self) -> int:
        return self.abandoned_gaps + int((~self.window).sum())

    @property
    def missing_tail(self) -> int:
        return max(self.count - self.highest - 1, 0)


class LatencyBuckets:
    """A histogram of microseconds with a fixed number of buckets."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self.negative = 0
        self.max_us = 0
        self.total_us = 0

    def add(self, latencies_us: Longs) -> None:
        if not len(latencies_us):
            return
        self.negative += int((latencies_us < 0).sum())
        self.max_us = max(self.max_us, int(latencies_us.max()))
        self.total_us += int(np.maximum(latencies_us, 0).sum())
        places = np.log2(np.maximum(latencies_us, 1)) * _PER_OCTAVE
        self._counts += np.bincount(places.astype(np.int64), minlength=_BUCKETS)

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def percentile_us(self, percent: float) -> int:
        """The upper end of the bucket of that percentile."""
        rank = self.count * percent / 100
        place = int(np.searchsorted(self._counts.cumsum(), rank))
        return min(int(2 ** ((place + 1) / _PER_OCTAVE)), self.max_us)

    def counts_below(self, bounds_us: Sequence[int]) -> list[int]:
        """How many are below the first bound, between two bounds, and above the last; bounds are
        powers of two."""
        places = [(bound.bit_length() - 1) * _PER_OCTAVE for bound in bounds_us]
        return [int(part.sum()) for part in np.split(self._counts, places)]

    def octaves(self) -> list[tuple[int, int]]:
        """(upper end in µs, count) for each power of two with a count."""
        counts = self._counts.reshape(-1, _PER_OCTAVE).sum(axis=1)
        return [(1 << (i + 1), int(count)) for i, count in enumerate(counts) if count]


class LiveCheck:
    """The streams of one consumer.

    If the consumer did not start where the streams start, the first sequence that arrives of a
    stream counts as its start.
    """

    def __init__(self, *, from_start: bool) -> None:
        self._from_start = from_start
        self.latency = LatencyBuckets()
        self._streams: dict[tuple[int, int, int], _Stream] = {}
        self._duplicates = 0
        self._late = 0

    def add_messages(self, producers: Ints, topics: Ints, lanes: Ints, sequences: Longs) -> None:
        """Add messages in order of arrival; producers and topics are given by index."""
        order = np.lexsort((lanes, topics, producers))
        names = np.stack([producers[order], topics[order], lanes[order]])
        ends = np.flatnonzero((names[:, 1:] != names[:, :-1]).any(axis=0)) + 1
        for rows in np.split(order, ends):
            if len(rows):
                row = rows[0]
                stream = self._stream((producers[row], topics[row], lanes[row]), sequences[row])
                duplicates, late = stream.add_messages(sequences[rows])
                self._duplicates += duplicates
                self._late += late

    def add_marker(self, producer: int, topic: int, lane: int, count: int) -> None:
        """Add a marker, which has the count of messages before it in its stream."""
        stream = self._stream((producer, topic, lane), count)
        stream.count = max(stream.count, int(count))

    def _stream(self, name: tuple[int, int, int], first: int) -> _Stream:
        stream = self._streams.get(name)
        if stream is None:
            start = 0 if self._from_start else int(first)
            stream = self._streams[name] = _Stream(start, start - 1)
        return stream

    def reset_streams(self) -> None:
        """Forget all streams: other members of the group read parts of them."""
        self._from_start = False
        self._streams.clear()

    def counts(self) -> LiveCounts:
        streams = self._streams.values()
        return LiveCounts(
            streams=len(streams),
            open_gaps=sum(stream.open_gaps for stream in streams),
            duplicates=self._duplicates,
            late=self._late,
            missing_tails=sum(stream.missing_tail for stream in streams),
        )
