"""Kafka's error codes, and what each means for a try.

Rules of this file:
- Retriable flags come from kio's table, loaded when they are first asked for.
- `outcome_of` is three-valued (ok, failed, unknown) and errs on the side of unknown: a code is
  "failed" only if every broker sends it before it appends. That depends on `acks`: with
  acks=all a leader that loses its place while it waits for followers answers
  NOT_LEADER_OR_FOLLOWER (or UNKNOWN_TOPIC_OR_PARTITION, or a storage error) after the append.
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

# What we know of the cluster is out of date: look again before the next try.
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

# Another coordinator, or the same one a little later, will answer.
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
        # The transaction could not be verified, which comes first (KIP-890).
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
# Before the append only if nobody waits for followers after it.
_REFUSED_UNLESS_ALL: Final = frozenset(
    {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NOT_LEADER_OR_FOLLOWER}
)

ACKS_ALL: Final = -1


def outcome_of(code: int, *, acks: int) -> Outcome:
    """What one answered try says about its batch: appended, not appended, cannot tell."""
    if code in {Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER}:
        return Outcome.OK
    if code in _REFUSED_BEFORE_APPEND or (code in _REFUSED_UNLESS_ALL and acks != ACKS_ALL):
        return Outcome.FAILED
    return Outcome.UNKNOWN


class CodeFacts(NamedTuple):
    """What Kafka's documentation says of a code."""

    name: str
    retriable: bool
    meaning: str


@lru_cache(maxsize=256)
def facts_of(code: int) -> CodeFacts:
    """Name and flags of any code; one that is newer than our table is named by its number."""
    from kio.schema.errors import ErrorCode

    try:
        known = ErrorCode(code)
    except ValueError:
        return CodeFacts(f"UNKNOWN_CODE_{code}", retriable=False, meaning="")
    return CodeFacts(known.name.upper(), known.retriable, _MEANINGS.get(code, ""))


# Sentences for the codes that users meet; the others are named only.
_MEANINGS: Final[dict[int, str]] = {
    -1: "the broker met an error that it did not expect",
    1: "the offset is outside what the log holds",
    2: "the batch does not match its checksum",
    3: "the broker does not know this topic or partition",
    5: "the partition has no leader at the moment",
    6: "the broker is not the partition's leader",
    7: "the broker gave up waiting",
    10: "the batch is larger than the topic allows",
    17: "the topic name is not legal",
    19: "fewer replicas are in sync than min.insync.replicas asks for",
    20: "written, but fewer replicas are in sync than min.insync.replicas asks for",
    29: "not allowed to use this topic",
    32: "a timestamp is outside what the topic allows",
    36: "the topic exists already",
    38: "the replication factor is larger than the number of brokers, or below 1",
    45: "the sequence number does not follow the last one",
    47: "the producer's epoch is older than the broker's",
    51: "another transaction of this producer is still being completed",
    58: "user name or password is wrong",
    59: "the broker has forgotten this producer",
    87: "the broker refused the batch as it is",
    90: "another producer with the same transactional.id has taken over",
    100: "the broker does not know this topic id: was the topic made again?",
}
