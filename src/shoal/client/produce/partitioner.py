"""Chooses the partition of a record that names none.

With a key: murmur2 of the key, as in Kafka, so that all clients choose the same partition. Without:
a random partition that is kept until its batch is full (KIP-480), so that batches are large.
"""

import random
from collections.abc import Callable
from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's variant of the hash, as an unsigned number."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little")
        k = (k * _M) & _MASK
        k ^= k >> 24
        k = (k * _M) & _MASK
        value = ((value * _M) & _MASK) ^ k
    if whole < length:
        value ^= int.from_bytes(data[whole:], "little")
        value = (value * _M) & _MASK
    value ^= value >> 13
    value = (value * _M) & _MASK
    return value ^ (value >> 15)


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition that Kafka's clients choose for this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartitioner:
    """The current partition of records without a key, by topic."""

    def __init__(self, choose: Callable[[int], int] = random.randrange) -> None:
        self._choose = choose
        self._current: dict[str, int] = {}

    def partition(self, topic: str, partitions: int) -> int:
        current = self._current.get(topic)
        if current is None or current >= partitions:
            current = self._current[topic] = self._choose(partitions)
        return current

    def on_batch_complete(self, topic: str, partition: int) -> None:
        """A batch is complete; the next one may go to another partition."""
        if self._current.get(topic) == partition:
            del self._current[topic]
