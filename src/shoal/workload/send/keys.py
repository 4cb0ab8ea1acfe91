"""Keys of messages: those that Kafka's default partitioner sends to the lane's very partition.

Plain keys "0", "1", … would leave many partitions without a lane, and a mirror that
partitions by key would then mix lanes. So keys are searched. All of them begin with
`KEY_PREFIX`, by which a reader knows a record of ours even if its value is damaged.

- A lane has one key (`lane_keys`).
- Where the topic is compacted it has many, and most are written once: of eight messages in a
  row the last has the key of an earlier one (`first_of_key`). No two producers share a key,
  nor do two incarnations of one id,
  nor two topics, as a mirror may merge them.
- Markers have a key of their own, one for each producer, topic and lane: where a log is
  compacted they must not supersede messages, nor one producer's markers another's.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from shoal.client.produce.partitioner import partition_for_key
from shoal.model.errors import UsageError
from shoal.wire.records.crc import crc32c

Longs = np.ndarray[Any, np.dtype[np.int64]]

KEY_PREFIX = b"shoal."
MOST_LANES = 10_000
_MESSAGES_PER_REPEAT = 8


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


def first_of_key(sequences: Longs) -> Longs:
    """For each message of a lane with many keys, the sequence of the first one of the same key.

    Every other repeat is of a key eight messages old, the rest reach back over half of all
    messages: so some are superseded at once, and some when they have long been copied.
    """
    block, place = np.divmod(sequences, _MESSAGES_PER_REPEAT)
    repeated = np.where(block % 2 == 0, block, block // 2) * _MESSAGES_PER_REPEAT
    return np.where(place == _MESSAGES_PER_REPEAT - 1, repeated, sequences)


def own_key_start(producer: str, topic: str, *, incarnation: int, of_marker: bool) -> bytes:
    """What all keys of one producer to one topic begin with; a number of 13 digits follows."""
    owner = crc32c(f"{producer};{topic}".encode())
    if incarnation:  # two producers that share an id must not supersede each other's messages
        owner = crc32c(b";%d" % incarnation, owner)
    return KEY_PREFIX + b"%08x%s" % (owner, b"-" if of_marker else b".")
