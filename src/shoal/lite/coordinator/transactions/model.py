"""A transactional id and the state of its transaction. Values only.

Two protocols. In the first, partitions are announced by the client, and producer id and epoch
stay what they are from one transaction to the next. In the second (KIP-890, transaction version
2) brokers announce partitions, and each end gives the producer a new epoch: what an earlier
transaction left on its way cannot slip into the next.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from shoal.model.topics import TopicPartition
from shoal.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

LARGEST_EPOCH: Final = (1 << 15) - 1
NO_TIME_MS: Final = -1
# The transaction versions in which the protocols came (there is a version 1, of records alone).
FIRST_PROTOCOL: Final = 0
SECOND_PROTOCOL: Final = 2


class State(IntEnum):
    """Where a transaction is, by the numbers that stand in its records."""

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
        """As Apache Kafka writes it in answers."""
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
PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
COMPLETE: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
# Nothing is under way; what is left may be forgotten after a time.
AT_REST: Final = COMPLETE | {State.EMPTY}


class Identity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


NOBODY: Final = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Everything that is known of a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME_MS
    # The id before the last one, whose epochs were used up; and the one after this.
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    # The epoch before this one, if its producer may still ask for this one: it asked before and
    # missed the answer, or its transaction was aborted for it. Not in the records: another
    # coordinator cannot tell a repeated question from a zombie's.
    last_epoch: int = NO_PRODUCER_EPOCH
    # By which protocol the transaction is carried out.
    protocol: int = FIRST_PROTOCOL

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.epoch)

    @property
    def is_exhausted(self) -> bool:
        return is_exhausted(self.epoch)


def is_exhausted(epoch: int) -> bool:
    """Whether a producer with this epoch gets a new id next; the last epoch is for fencing."""
    return epoch >= LARGEST_EPOCH - 1
