"""The internal topics, and which of their partitions a group or a transactional id belongs to.

They are created when first needed, with Apache Kafka's names, settings and formats. Kafka gives
them 50 partitions; here the default is 8, because a test cluster must start quickly and 8 are
enough for three brokers. `offsets.topic.num.partitions` and `transaction.state.log.num.partitions`
change that for a cluster that has not created them yet.
"""

from dataclasses import dataclass
from enum import IntEnum

_INT_SIGN = 1 << 31


class KeyType(IntEnum):
    """The key types of FindCoordinator, by their numbers."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """An internal topic, and the broker settings with which it is created."""

    name: str
    partitions_setting: str
    factor_setting: str
    segment_setting: str
    # The compression.type that Apache Kafka sets for it.
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
    """Return which of `count` partitions a key belongs to, by Java's string hash."""
    value = 0
    data = key.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(data), 2):
        unit = data[position] << 8 | data[position + 1]
        value = (31 * value + unit) & 0xFFFF_FFFF
    # The one number without a positive counterpart becomes 0.
    value = value if value < _INT_SIGN else (2 * _INT_SIGN - value) % _INT_SIGN
    return value % count
