"""Coordinators: state that is stored in the partitions of an internal topic.

- `topics`: the internal topics, and which partition a key belongs to.
- `host`: the coordinators of one kind on a broker, one per partition that it leads.
- `loaded_shard`: one partition: loading, replaying committed records, appending.

Each kind of coordinator implements a `Shard`: the state that results from one partition's records.
It changes only by `replay`, with committed records in their order, both old ones (loading) and new
ones (after an `append`). So its state is what any later leader of the partition would load.
"""

from shoal.lite.coordinator.host import CoordinatorBroker, CoordinatorHost
from shoal.lite.coordinator.loaded_shard import LoadedShard, NewRecord, Shard
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
    "CoordinatorBroker",
    "CoordinatorHost",
    "InternalTopic",
    "KeyType",
    "LoadedShard",
    "NewRecord",
    "Shard",
]
