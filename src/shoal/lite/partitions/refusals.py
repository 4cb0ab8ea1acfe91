"""Batches of idempotent producers that were refused a moment ago, and what follows them.

A producer has several batches on their way. If the first comes too early (its leader does not
know yet that it leads, or waits for replicas to be in sync) and the next one in time, the next one
is out of order. Clients that hear so begin a new epoch, and librdkafka sends again then what
other partitions may have got already: written twice (its issue 4953). And where nothing of the
producer is known, any sequence is taken for its first: then it is the early batch that is out of
order when it comes again. So what follows a batch that was refused for the moment is refused like
it, until that comes again. A leader that is new does the same with what is ahead: the leader
before it may have refused what is missing.

No input or output: the caller says what time it is.
"""

from typing import NamedTuple

from shoal.lite.base.codes import Code, Refused
from shoal.lite.storage.header import BatchHeader
from shoal.model.topics import TopicPartition

# Whoever hears these sends the same batch again.
_FOR_THE_MOMENT = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.NOT_ENOUGH_REPLICAS,
        Code.KAFKA_STORAGE_ERROR,
    }
)
# What was on its way when a batch was refused has come by then.
_PATIENCE_MS = 5_000
_MOST = 10_000
_SEQUENCES = 1 << 31


class _Early(NamedTuple):
    producer_epoch: int
    sequence: int
    refused_ms: int
    # Not the exception: its traceback holds the whole request.
    code: Code
    message: str


class Refusals:
    """What one broker has refused for the moment; of each producer and partition the first."""

    def __init__(self) -> None:
        self._early: dict[tuple[TopicPartition, int], _Early] = {}

    def __bool__(self) -> bool:
        return bool(self._early)

    def note(
        self, partition: TopicPartition, header: BatchHeader, refused: Refused, now_ms: int
    ) -> None:
        """A batch was refused."""
        if header.producer_id < 0 or refused.code not in _FOR_THE_MOMENT:
            return
        key = partition, header.producer_id
        if self.before(partition, header, now_ms) is not None:
            self._early[key] = self._early[key]._replace(refused_ms=now_ms)
            return
        if len(self._early) >= _MOST:
            self._early.clear()
        self._early[key] = _Early(
            header.producer_epoch, header.base_sequence, now_ms, refused.code, str(refused)
        )

    def before(self, partition: TopicPartition, header: BatchHeader, now_ms: int) -> Refused | None:
        """Why a batch that comes before this one was refused; None if none was, or it is back."""
        early = self._early.get((partition, header.producer_id))
        if early is None:
            return None
        is_over = now_ms - early.refused_ms > _PATIENCE_MS
        if is_over or early.producer_epoch != header.producer_epoch:
            del self._early[partition, header.producer_id]
            return None
        distance = (header.base_sequence - early.sequence) % _SEQUENCES
        is_later = 0 < distance < _SEQUENCES // 2
        return Refused(early.code, early.message) if is_later else None

    def written(self, partition: TopicPartition, header: BatchHeader) -> None:
        """A batch was taken: those before it are there, and what follows may come."""
        self._early.pop((partition, header.producer_id), None)
