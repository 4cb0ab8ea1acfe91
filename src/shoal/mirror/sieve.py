"""Which batches of a fetched record set were committed, told by their headers alone; pure.

Rules (as Kafka's own consumer has them):
- The fetch was read-committed: nothing above the last stable offset is in it, and the broker
  names the transactions (producer id, first offset) that were aborted in its range.
- A transaction counts as begun once a batch reaches its first offset with its *last* offset.
- A transactional batch of a producer whose aborted transaction has begun is aborted. An abort
  marker ends that; only markers, and only of aborts, are ever decoded.
- Control batches are never data.
"""

from collections.abc import Iterable
from enum import Enum, auto

from shoal.wire.batch import Batch
from shoal.wire.records import ControlType, decode_control, decode_records

_CONTROL_LIMIT_BYTES = 64 * 1024


class Kept(Enum):
    """What becomes of a batch."""

    DATA = auto()
    CONTROL = auto()
    ABORTED = auto()


class Sieve:
    """For the batches of one partition's part of one fetch, in order."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted` are (producer id, first offset)."""
        newest_first = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._to_come = newest_first
        self._begun: set[int] = set()

    def judge(self, batch: Batch) -> Kept:
        while self._to_come and self._to_come[-1][1] <= batch.last_offset:
            self._begun.add(self._to_come.pop()[0])
        if batch.is_control:
            if batch.producer_id in self._begun and _is_abort(batch):
                self._begun.discard(batch.producer_id)
            return Kept.CONTROL
        if batch.is_transactional and batch.producer_id in self._begun:
            return Kept.ABORTED
        return Kept.DATA


def _is_abort(batch: Batch) -> bool:
    # Compaction may leave a marker's batch behind empty; then it ends nothing that is left.
    records = decode_records(batch, limit_bytes=_CONTROL_LIMIT_BYTES)
    return bool(records) and decode_control(records[0]).type == ControlType.ABORT
