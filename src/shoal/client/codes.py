"""Kafka's error codes, and what each means for an attempt.

Rules of this file:
- Retriable flags come from kio's table, which is loaded on first use.
- `outcome_of` has three values (ok, failed, unknown) and prefers unknown: a code is "failed" only
  if every broker sends it before the append. That depends on `acks`: with acks=all a leader that
  loses leadership while it waits for followers answers NOT_LEADER_OR_FOLLOWER (or
  UNKNOWN_TOPIC_OR_PARTITION, or a storage error) after the append.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from shoal.model.findings import Outcome
from shoal.wire.error_codes import Code

__all__ = [
    "ACKS_ALL",
    "COORDINATOR_MOVED",
    "COORDINATOR_RETRY",
    "INVALIDATES_METADATA",
    "Code",
    "CodeFacts",
    "facts_of",
    "outcome_of",
]

# The metadata is out of date: refresh it before the next attempt.
INVALIDATES_METADATA: Final = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.NOT_CONTROLLER,
        Code.KAFKA_STORAGE_ERROR,
        Code.LISTENER_NOT_FOUND,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
    }
)

# A retry helps: the coordinator has moved, or is not ready yet.
COORDINATOR_MOVED: Final = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
COORDINATOR_RETRY: Final = COORDINATOR_MOVED | {
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.CONCURRENT_TRANSACTIONS,
    Code.REQUEST_TIMED_OUT,
}

_REFUSED_BEFORE_APPEND: Final = frozenset(
    {
        Code.CORRUPT_MESSAGE,
        Code.LEADER_NOT_AVAILABLE,
        Code.MESSAGE_TOO_LARGE,
        # The transaction could not be verified, which happens before the append (KIP-890).
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.INVALID_TOPIC_EXCEPTION,
        Code.RECORD_LIST_TOO_LARGE,
        Code.NOT_ENOUGH_REPLICAS,
        Code.INVALID_REQUIRED_ACKS,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.INVALID_TIMESTAMP,
        Code.UNSUPPORTED_VERSION,
        Code.INVALID_REQUEST,
        Code.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        Code.POLICY_VIOLATION,
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_TXN_STATE,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.CONCURRENT_TRANSACTIONS,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.UNKNOWN_PRODUCER_ID,
        Code.UNSUPPORTED_COMPRESSION_TYPE,
        Code.INVALID_RECORD,
        Code.THROTTLING_QUOTA_EXCEEDED,
        Code.PRODUCER_FENCED,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
        Code.TRANSACTION_ABORTABLE,
    }
)
# Sent before the append, unless the leader waits for followers after it.
_REFUSED_UNLESS_ALL: Final = frozenset(
    {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NOT_LEADER_OR_FOLLOWER}
)

ACKS_ALL: Final = -1


def outcome_of(code: int, *, acks: int) -> Outcome:
    """The outcome of an attempt with this error code: appended, not appended, or unknown."""
    if code in {Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER}:
        return Outcome.OK
    if code in _REFUSED_BEFORE_APPEND or (code in _REFUSED_UNLESS_ALL and acks != ACKS_ALL):
        return Outcome.FAILED
    return Outcome.UNKNOWN


class CodeFacts(NamedTuple):
    """Facts about a code, from Kafka's documentation."""

    name: str
    retriable: bool
    meaning: str


@lru_cache(maxsize=256)
def facts_of(code: int) -> CodeFacts:
    """Name and flags of a code; a code that is not in the table is named by its number."""
    from kio.schema.errors import ErrorCode

    try:
        known = ErrorCode(code)
    except ValueError:
        return CodeFacts(f"UNKNOWN_CODE_{code}", retriable=False, meaning="")
    return CodeFacts(known.name.upper(), known.retriable, _MEANINGS.get(code, ""))


# Sentences for the codes that users often see; the others have only a name.
_MEANINGS: Final[dict[int, str]] = {
    -1: "unexpected error of the broker",
    1: "the offset is not within the log",
    2: "the batch does not match its checksum",
    3: "the broker does not know this topic or partition",
    5: "the partition has no leader at the moment",
    6: "the broker is not the partition's leader",
    7: "the request timed out on the broker",
    10: "the batch is larger than the topic allows",
    17: "the topic name is not valid",
    19: "fewer replicas are in sync than min.insync.replicas requires",
    20: "written, but fewer replicas are in sync than min.insync.replicas requires",
    29: "not allowed to use this topic",
    32: "a timestamp is outside the range that the topic allows",
    36: "the topic already exists",
    38: "the replication factor is larger than the number of brokers, or below 1",
    45: "the sequence number does not follow the last one",
    47: "the producer's epoch is older than the broker's",
    51: "the previous transaction of this producer is not complete yet",
    58: "wrong user name or password",
    59: "the broker no longer has the state of this producer",
    87: "the broker refused the batch as invalid",
    90: "a newer producer with the same transactional.id has fenced this one",
    100: "the broker does not know this topic id; the topic may have been recreated",
}
