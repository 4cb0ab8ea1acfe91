"""Recently rejected batches of idempotent producers; later batches are rejected with them. Pure.

A producer has several batches in flight. If a broker rejects the first with a retriable error (it
does not know yet that it leads, or too few replicas are in sync) and would accept the next one,
the next one is out of order. Clients answer that error with a new producer epoch, and librdkafka
then resends batches that other partitions may already have: duplicates (its issue 4953). And
where the broker has no state of the producer, it accepts any first sequence: then the first batch
is out of order when it is retried. So the batches after a rejected one get the same error until
the rejected one is retried. A new leader does the same with batches that are ahead: the previous
leader may have rejected the missing ones.

The caller passes the time.
"""

from typing import NamedTuple

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.storage.header import BatchHeader
from shoal.model.topics import TopicPartition

# Clients retry the same batch after these errors.
_RETRIABLE = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.NOT_ENOUGH_REPLICAS,
        Code.KAFKA_STORAGE_ERROR,
    }
)
# By then, all batches that were in flight when a batch was rejected have arrived.
_PATIENCE_MS = 5_000
_MOST = 10_000
_SEQUENCES = 1 << 31


class _RefusedBatch(NamedTuple):
    producer_epoch: int
    sequence: int
    refused_ms: int
    # Not the exception itself: its traceback keeps the whole request in memory.
    code: Code
    message: str


class Refusals:
    """The first rejected batch of each producer and partition, on one broker."""

    def __init__(self) -> None:
        self._refused: dict[tuple[TopicPartition, int], _RefusedBatch] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def add(
        self, partition: TopicPartition, header: BatchHeader, error: ApiError, now_ms: int
    ) -> None:
        """Record a rejected batch, if its error is retriable."""
        if header.producer_id < 0 or error.code not in _RETRIABLE:
            return
        key = partition, header.producer_id
        if self.find_earlier_refusal(partition, header, now_ms) is not None:
            self._refused[key] = self._refused[key]._replace(refused_ms=now_ms)
            return
        if len(self._refused) >= _MOST:
            self._refused.clear()
        self._refused[key] = _RefusedBatch(
            header.producer_epoch, header.base_sequence, now_ms, error.code, str(error)
        )

    def find_earlier_refusal(
        self, partition: TopicPartition, header: BatchHeader, now_ms: int
    ) -> ApiError | None:
        """Return the error of an earlier rejected batch that was not retried yet, or None."""
        earlier = self._refused.get((partition, header.producer_id))
        if earlier is None:
            return None
        is_over = now_ms - earlier.refused_ms > _PATIENCE_MS
        if is_over or earlier.producer_epoch != header.producer_epoch:
            del self._refused[partition, header.producer_id]
            return None
        distance = (header.base_sequence - earlier.sequence) % _SEQUENCES
        is_later = 0 < distance < _SEQUENCES // 2
        return ApiError(earlier.code, earlier.message) if is_later else None

    def on_batch_written(self, partition: TopicPartition, header: BatchHeader) -> None:
        """Forget the rejected batch: a batch was appended, so no earlier one is missing."""
        self._refused.pop((partition, header.producer_id), None)
