"""A transactional id and the state of its transaction. Values only.

There are two protocols. In the first, the client adds partitions to a transaction, and producer id
and epoch stay the same from one transaction to the next. In the second (KIP-890,
transaction.version 2) brokers add partitions, and each end of a transaction raises the producer
epoch: late requests of an earlier transaction cannot become part of the next one.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from shoal.model.topics import TopicPartition
from shoal.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

LARGEST_EPOCH: Final = (1 << 15) - 1
NO_TIME_MS: Final = -1
# The transaction.version values that introduced the protocols (version 1 changed only records).
FIRST_PROTOCOL: Final = 0
SECOND_PROTOCOL: Final = 2


class TxnState(IntEnum):
    """The state of a transaction, by the numbers in its records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name that Apache Kafka uses in answers."""
        return _TITLES[self]


_TITLES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
PREPARED: Final = frozenset({TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT})
COMPLETE: Final = frozenset({TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})
# No transaction is open; the transactional id may expire.
AT_REST: Final = COMPLETE | {TxnState.EMPTY}


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


NO_IDENTITY: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TxnState
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME_MS
    # The previous producer id, whose epochs are exhausted; and the next one.
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    # The previous epoch, if its producer may still request this one: it did not receive the answer
    # to InitProducerId, or its transaction timed out. It is not stored in the records: another
    # coordinator cannot distinguish a retry from a zombie.
    last_epoch: int = NO_PRODUCER_EPOCH
    # The protocol of the transaction.
    protocol: int = FIRST_PROTOCOL

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.epoch)

    @property
    def is_exhausted(self) -> bool:
        return is_exhausted(self.epoch)


def is_exhausted(epoch: int) -> bool:
    """Return whether the next producer needs a new id; the last epoch is reserved for fencing."""
    return epoch >= LARGEST_EPOCH - 1
