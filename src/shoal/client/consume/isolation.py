"""Filters control batches and aborted batches by their headers alone. Pure.

Rules, as in Kafka's own consumer:
- Control batches are never data, at any isolation level.
- With read_committed a fetch ends at the last stable offset, and the broker lists the aborted
  transactions (producer id, first offset) in the range of the fetch. A transaction begins at the
  first batch whose *last* offset reaches its first offset; from there to its marker, transactional
  batches of its producer are aborted.
- A producer has one transaction at a time, so any of its markers ends that one. Markers need not
  be decoded, so a damaged one does not matter.
"""

from collections.abc import Iterable
from enum import Enum, auto

from shoal.wire.batch import Batch


class BatchKind(Enum):
    """What a batch contains for a reader."""

    DATA = auto()
    CONTROL = auto()
    ABORTED = auto()


class AbortedFilter:
    """Classifies the batches of one partition in one fetch, in order."""

    __slots__ = ("_aborting", "_upcoming")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted` are (producer id, first offset)."""
        self._upcoming = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._aborting: set[int] = set()

    def classify(self, batch: Batch) -> BatchKind:
        while self._upcoming and self._upcoming[-1][1] <= batch.last_offset:
            self._aborting.add(self._upcoming.pop()[0])
        if batch.is_control:
            self._aborting.discard(batch.producer_id)
            return BatchKind.CONTROL
        if batch.is_transactional and batch.producer_id in self._aborting:
            return BatchKind.ABORTED
        return BatchKind.DATA
