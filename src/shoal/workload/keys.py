"""The key of each lane: one that Kafka's default partitioner sends to that very partition.

Plain keys "0", "1", … would leave many partitions without a lane, and a mirror that
partitions by key would then mix lanes. So keys are searched. All of them begin with
`KEY_PREFIX`, by which a reader knows a record of ours even if its value is damaged.
"""

from functools import lru_cache

from shoal.model.errors import UsageError

KEY_PREFIX = b"shoal."
MOST_LANES = 10_000

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit MurmurHash 2, without a sign."""
    mixed = _SEED ^ len(data)
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little")
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        mixed = (mixed * _MULTIPLIER & _MASK) ^ word
    if whole < len(data):
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    mixed = (mixed ^ mixed >> 13) * _MULTIPLIER & _MASK
    return mixed ^ mixed >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Where Kafka's default partitioner puts this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=64)
def lane_keys(lanes: int) -> tuple[bytes, ...]:
    """For each lane, the first key that belongs to the partition of the same number."""
    if not 1 <= lanes <= MOST_LANES:
        raise UsageError(f"{lanes} lanes", remedy=f"use 1 to {MOST_LANES}")
    keys: dict[int, bytes] = {}
    candidate = 0
    while len(keys) < lanes:
        key = KEY_PREFIX + str(candidate).encode()
        keys.setdefault(partition_of(key, lanes), key)
        candidate += 1
    return tuple(keys[lane] for lane in range(lanes))
