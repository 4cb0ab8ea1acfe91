"""The key of each lane: one that Kafka's default partitioner sends to that very partition.

Plain keys "0", "1", … would leave many partitions without a lane, and a mirror that
partitions by key would then mix lanes. So keys are searched. All of them begin with
`KEY_PREFIX`, by which a reader knows a record of ours even if its value is damaged.
"""

from functools import lru_cache

from shoal.client.partitioner import partition_for_key
from shoal.model.errors import UsageError

KEY_PREFIX = b"shoal."
MOST_LANES = 10_000


@lru_cache(maxsize=64)
def lane_keys(lanes: int) -> tuple[bytes, ...]:
    """For each lane, the first key that belongs to the partition of the same number."""
    if not 1 <= lanes <= MOST_LANES:
        raise UsageError(f"{lanes} lanes", remedy=f"use 1 to {MOST_LANES}")
    keys: dict[int, bytes] = {}
    candidate = 0
    while len(keys) < lanes:
        key = KEY_PREFIX + str(candidate).encode()
        keys.setdefault(partition_for_key(key, lanes), key)
        candidate += 1
    return tuple(keys[lane] for lane in range(lanes))
