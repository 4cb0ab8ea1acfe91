"""Coordinators: state that lives in the partitions of an internal topic.

- `topics`: the internal topics, and which partition a key belongs to.
- `host`: a broker's seats of one kind of coordinator, by what it leads; where a client finds one.
- `seat`: one partition: loading, applying what is committed, appending.

What a coordinator brings along is a `Shard`: the state that one partition's records make. It
changes by `replay` only, with records that are committed, in their order, be they old (loading)
or new (after an `append`). So what it knows is what any later leader of the partition knows.
"""

from shoal.lite.coordinator.host import CoordinatorHost, Home
from shoal.lite.coordinator.loaded_shard import NewRecord, Seat, Shard
from shoal.lite.coordinator.topics import (
    GROUP_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_TOPIC,
    InternalTopic,
    KeyType,
)

__all__ = [
    "GROUP_TOPIC",
    "INTERNAL_TOPICS",
    "TRANSACTION_TOPIC",
    "CoordinatorHost",
    "Home",
    "InternalTopic",
    "KeyType",
    "NewRecord",
    "Seat",
    "Shard",
]
