"""Which fetched batches count as data, told by their headers alone. Pure.

Rules, as Kafka's own consumer has them:
- Control batches are never data, at any isolation level.
- With read_committed nothing above the last stable offset comes, and the broker names the
  transactions (producer id, first offset) that were aborted in the range of the fetch. Such a
  transaction counts as begun once a batch reaches its first offset with its *last* offset;
  transactional batches of its producer are void from there to the marker that ends it.
- A producer has one transaction at a time, so any marker of it ends that one. Markers need not
  be taken apart, and a damaged one hides nothing.
"""

from collections.abc import Iterable
from enum import Enum, auto

from shoal.wire.batch import Batch


class Standing(Enum):
    """What a batch is to a reader."""

    DATA = auto()
    CONTROL = auto()
    ABORTED = auto()


class Sieve:
    """For the batches of one partition's part of one fetch, in order."""

    __slots__ = ("_begun", "_to_come")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted` are (producer id, first offset)."""
        self._to_come = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._begun: set[int] = set()

    def judge(self, batch: Batch) -> Standing:
        while self._to_come and self._to_come[-1][1] <= batch.last_offset:
            self._begun.add(self._to_come.pop()[0])
        if batch.is_control:
            self._begun.discard(batch.producer_id)
            return Standing.CONTROL
        if batch.is_transactional and batch.producer_id in self._begun:
            return Standing.ABORTED
        return Standing.DATA
