"""The internal topics, and which of their partitions a group or a transactional id belongs to.

They are made when first needed, with Apache Kafka's names, settings and formats. Kafka gives
them 50 partitions; here the default is 8, because a test cluster must be up in a blink and three
brokers need no more. `offsets.topic.num.partitions` and `transaction.state.log.num.partitions`
change that for a cluster that has not made them yet.
"""

from dataclasses import dataclass
from enum import IntEnum

_INT_SIGN = 1 << 31


class KeyType(IntEnum):
    """What clients look for a coordinator of, by the numbers of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic, and the broker settings that say how it is made."""

    name: str
    partitions_setting: str
    factor_setting: str
    segment_setting: str
    # What Apache Kafka writes down for it, beside the size of its segments.
    compression: str


GROUP_TOPIC = InternalTopic(
    "__consumer_offsets",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "offsets.topic.segment.bytes",
    "producer",
)
TRANSACTION_TOPIC = InternalTopic(
    "__transaction_state",
    "transaction.state.log.num.partitions",
    "transaction.state.log.replication.factor",
    "transaction.state.log.segment.bytes",
    "uncompressed",
)
INTERNAL_TOPICS = {topic.name: topic for topic in (GROUP_TOPIC, TRANSACTION_TOPIC)}


def partition_of(key: str, count: int) -> int:
    """Which of `count` partitions a key belongs to: Java's hash of the string."""
    value = 0
    data = key.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(data), 2):
        unit = data[position] << 8 | data[position + 1]
        value = (31 * value + unit) & 0xFFFF_FFFF
    # The one number without a positive counterpart counts as 0.
    value = value if value < _INT_SIGN else (2 * _INT_SIGN - value) % _INT_SIGN
    return value % count
