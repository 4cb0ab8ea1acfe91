"""Which fetched batches a reader may see, told by their headers alone. Pure.

Rules, as Kafka's own consumer has them:
- Control batches are never data, at any isolation level.
- With read_committed nothing above the last stable offset comes, and the broker names the
  transactions (producer id, first offset) that were aborted in the range of the fetch. Such a
  transaction counts as begun once a batch reaches its first offset with its *last* offset;
  transactional batches of its producer are void from there to the abort marker.
"""

from collections.abc import Iterable

from shoal.wire.batch import Batch
from shoal.wire.records import ControlType, decode_control, decode_records

_CONTROL_LIMIT_BYTES = 64 * 1024


class VisibleBatches:
    """For the batches of one partition's part of one fetch, in order."""

    __slots__ = ("_begun", "_to_come")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted` are (producer id, first offset)."""
        self._to_come = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._begun: set[int] = set()

    def shows(self, batch: Batch) -> bool:
        """Whether the batch is data that counts."""
        while self._to_come and self._to_come[-1][1] <= batch.last_offset:
            self._begun.add(self._to_come.pop()[0])
        if batch.is_control:
            if batch.producer_id in self._begun and _is_abort(batch):
                self._begun.discard(batch.producer_id)
            return False
        return not (batch.is_transactional and batch.producer_id in self._begun)


def _is_abort(batch: Batch) -> bool:
    # Compaction may leave a marker's batch behind empty.
    records = decode_records(batch, limit_bytes=_CONTROL_LIMIT_BYTES)
    return bool(records) and decode_control(records[0]).type == ControlType.ABORT
