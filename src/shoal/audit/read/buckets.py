"""Stream buckets: every stream has a fixed bucket, so that streams can be divided among tasks.

The bucket is a hash of producer, incarnation, topic and source partition. Lanes that share a source
partition share a bucket, because their batches are counted together. Workers do not sort rows by
bucket: a row group of theirs may have rows of all buckets, of which tasks take their own. Files of
`regroup` have a row group for each range of buckets, and say which in their schema metadata.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.audit.arrays import Array, Ints, Rows, ints
from shoal.audit.read.read import PRODUCER_NUMBER, Vocabulary

if TYPE_CHECKING:
    from shoal.audit.context import Stream

BUCKET_BITS: Final = 16
BUCKETS: Final = 1 << BUCKET_BITS
ALL_BUCKETS: Final = (0, BUCKETS)

Partitions = Mapping[str, int]  # how many each source topic has

_WORD: Final = (1 << 64) - 1
_PRODUCER_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_TOPIC_FACTOR: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_HOME_FACTOR: Final = np.uint64(0x165667B19E3779F9)
_MIX_FACTOR: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_SHIFT: Final = np.uint64(31)
_BUCKET_SHIFT: Final = np.uint64(64 - BUCKET_BITS)


def bucket_of_rows(rows: Rows, words: Vocabulary, partitions: Partitions) -> Ints:
    """Return the bucket of each row, from its producer number, topic and lane."""
    producers = np.array(
        [_hash_producer(name, incarnation) for name, incarnation in words.producers],
        dtype=np.uint64,
    )
    topics = np.array([_hash_text(name) for name in words.names], dtype=np.uint64)
    counts = ints([partitions.get(name, 0) for name in words.names])
    if not len(rows["lane"]):
        return ints()
    return _buckets(
        producers[rows[PRODUCER_NUMBER]],
        topics[rows["topic"]],
        _homes(rows["lane"], counts[rows["topic"]]),
    )


def bucket_of_streams(streams: Iterable["Stream"], partitions: Partitions) -> Ints:
    """Return the bucket of each stream; the same as that of its rows."""
    listed = list(streams)
    if not listed:
        return ints()
    producers = np.array(
        [_hash_producer(s.producer, s.incarnation) for s in listed], dtype=np.uint64
    )
    topics = np.array([_hash_text(stream.topic) for stream in listed], dtype=np.uint64)
    lanes = ints([stream.lane for stream in listed])
    counts = ints([partitions.get(stream.topic, 0) for stream in listed])
    return _buckets(producers, topics, _homes(lanes, counts))


def split_buckets(shares: int) -> tuple[int, ...]:
    """Return the edges of ranges of buckets of about the same size."""
    return tuple(BUCKETS * number // shares for number in range(shares + 1))


def describe_ranges(ranges: Iterable[tuple[int, int]], partitions: Partitions) -> bytes:
    """Return the value of `BUCKETS_KEY`: the ranges of the row groups, and what they rest on."""
    return json.dumps({"ranges": list(ranges), "partitions": _digest(partitions)}).encode()


def read_ranges(stored: bytes | None, partitions: Partitions) -> list[tuple[int, int]] | None:
    """Return the buckets of each row group of a file; None if they are not known.

    That is so if it is not regrouped, or for other numbers of partitions than those of this audit.
    """
    if stored is None:
        return None
    content = json.loads(stored)
    if content["partitions"] != _digest(partitions):
        return None
    return [(low, high) for low, high in content["ranges"]]


def _digest(partitions: Partitions) -> str:
    return hashlib.sha256(json.dumps(sorted(partitions.items())).encode()).hexdigest()


def _hash_text(text: str) -> int:
    return zlib.crc32(text.encode())


def _hash_producer(name: str, incarnation: int) -> int:
    return (_hash_text(name) ^ (incarnation << 32)) & _WORD


def _homes(lanes: Array, partitions: Ints) -> Ints:
    """Return the source partition of each lane, as `AuditContext.source_partition` does."""
    wide = lanes.astype(np.int64)
    known = partitions > 0
    if not known.any():
        return np.maximum(wide, 0)
    return np.where(known, wide % np.where(known, partitions, 1), np.maximum(wide, 0))


def _buckets(producers: Array, topics: Array, homes: Ints) -> Ints:
    # Unsigned arithmetic wraps around.
    mixed: Array = producers * _PRODUCER_FACTOR + topics * _TOPIC_FACTOR
    mixed = mixed + homes.astype(np.uint64) * _HOME_FACTOR
    mixed = (mixed ^ (mixed >> _MIX_SHIFT)) * _MIX_FACTOR
    found: Ints = ((mixed ^ (mixed >> _MIX_SHIFT)) >> _BUCKET_SHIFT).astype(np.int64)
    return found
