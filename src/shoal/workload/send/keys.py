"""Keys of messages, which Kafka's default partitioner sends to the partition of their lane.

Plain keys "0", "1", … would leave many partitions without a lane, and a mirror that partitions by
key would then mix lanes. So suitable keys are searched. All start with `KEY_PREFIX`, by which a
reader recognises a message of shoal even if its value is damaged.

- A lane has one key (`lane_keys`).
- On a compacted topic a lane has many keys, most of them used once: the last of eight successive
  messages has the key of an earlier one (`first_of_key`). Two producers never share a key, nor do
  two incarnations of one id, nor two topics, since a mirror may merge topics.
- Markers have a key of their own for each producer, topic and lane: on a compacted topic they must
  not supersede messages, or markers of other producers.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from shoal.client.produce.partitioner import partition_for_key
from shoal.model.errors import UsageError
from shoal.wire.records.crc import crc32c

Longs = np.ndarray[Any, np.dtype[np.int64]]

KEY_PREFIX = b"shoal."
MAX_LANES = 10_000
_MESSAGES_PER_REPEAT = 8


@lru_cache(maxsize=64)
def lane_keys(lanes: int) -> tuple[bytes, ...]:
    """For each lane, the first key that belongs to the partition with the number of the lane."""
    if not 1 <= lanes <= MAX_LANES:
        raise UsageError(f"{lanes} lanes are out of range", remedy=f"use 1 to {MAX_LANES}")
    keys: dict[int, bytes] = {}
    candidate = 0
    while len(keys) < lanes:
        key = KEY_PREFIX + str(candidate).encode()
        keys.setdefault(partition_for_key(key, lanes), key)
        candidate += 1
    return tuple(keys[lane] for lane in range(lanes))


def first_of_key(sequences: Longs) -> Longs:
    """For each message of a lane with many keys, the sequence of the first one of the same key.

    Every other repeat has a key that is eight messages old; the others reach back over half of all
    messages. So some messages are superseded soon, and some long after they were copied.
    """
    block, place = np.divmod(sequences, _MESSAGES_PER_REPEAT)
    repeated = np.where(block % 2 == 0, block, block // 2) * _MESSAGES_PER_REPEAT
    return np.where(place == _MESSAGES_PER_REPEAT - 1, repeated, sequences)


def own_key_start(producer: str, topic: str, *, incarnation: int, of_marker: bool) -> bytes:
    """The start of all keys of one producer to one topic; a number of 13 digits follows."""
    owner = crc32c(f"{producer};{topic}".encode())
    if incarnation:  # two producers that share an id must not supersede each other's messages
        owner = crc32c(b";%d" % incarnation, owner)
    return KEY_PREFIX + b"%08x%s" % (owner, b"-" if of_marker else b".")
