"""Finds the target's last record in what the source still has; pure.

A mirror that resumes knows how many records the target got since the checkpoint. If the source has
deleted some of them, it shows only where the last one is how many are left: markers, aborted and
compacted records have offsets too, and are not at the target.

Rules:
- The end of the target's last batch is compared, with timestamps unless the target sets its own.
- Of the records that are left, at most so many are at the target as it got since the checkpoint,
  and at least so many as deleted offsets cannot account for.
- One place: the records up to it are at the target. No place: all records at the target are
  deleted at the source. Several places, or none where there must be one: unknown.
"""

from collections import deque
from typing import Final

from shoal.wire.batch import TIMESTAMP_TYPE_BIT, Batch
from shoal.wire.records.records import Header, Record, decode_records

_Content = tuple[bytes | None, bytes | None, tuple[Header, ...], int]

# Several places: which of them is meant is unknown.
_AMBIGUOUS: Final = 2


class TailSearch:
    """One search, in the records from the source's log start on."""

    def __init__(self, tail: Batch, begun: int, first: int, *, most: int) -> None:
        """`begun` is the source offset behind which the target got `most` records."""
        self.begun = begun
        self.first = first  # the source's log start
        self._most = most
        self._least = max(0, most - (first - begun))
        self._has_times = not tail.attributes & TIMESTAMP_TYPE_BIT
        self._tail = [self._content(record) for record in decode_records(tail)]
        self._window: deque[_Content] = deque(maxlen=len(self._tail))
        self._count = 0
        self._places: list[int] = []

    @property
    def is_complete(self) -> bool:
        return self._count >= self._most or len(self._places) == _AMBIGUOUS

    @property
    def result(self) -> int | None:
        """How many of the source's records are at the target; None if that is unknown."""
        if len(self._places) == 1:
            return self._places[0]
        return None if self._places or self._least else 0

    def add(self, batch: Batch) -> None:
        """Continue with the records of a batch, as they would be sent."""
        for record in decode_records(batch):
            if self.is_complete:
                return
            self._count += 1
            self._window.append(self._content(record))
            if self._count >= self._least and self._is_tail():
                self._places.append(self._count)

    def _is_tail(self) -> bool:
        window = self._window
        if window[-1] != self._tail[-1]:
            return False
        return list(window) == self._tail[len(self._tail) - len(window) :]

    def _content(self, record: Record) -> _Content:
        time_ms = record.timestamp if self._has_times else 0
        return record.key, record.value, record.headers, time_ms
