"""The header of a record batch, all fields at once.

A broker reads every field of every batch that it appends. Unpacking them in one step costs a
quarter of reading each through a view. Unlike `shoal.wire.batch`, nothing is checked here: the
caller decides which error an invalid field gets.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from shoal.wire.batch import (
    CODEC_MASK,
    CONTINUED_BIT,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_END,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    sequence_after,
)

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_START = 12


class BatchHeader(NamedTuple):
    """The fields in the order of the bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """All bytes of the batch, header included."""
        return self.batch_length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        return sequence_after(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def has_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_continued(self) -> bool:
        return bool(self.attributes & CONTINUED_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)


def unpack_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, where at least `HEADER_SIZE` bytes must follow."""
    # The same as `_make`, without one more call and a length check.
    return tuple.__new__(BatchHeader, _HEADER.unpack_from(data, position))


# Lists, not generators: these run for every few batches, and lists are faster.


def newest_ms(headers: Sequence[BatchHeader]) -> int:
    """The largest timestamp of batches."""
    return max([header.max_timestamp for header in headers])


def record_count(headers: Sequence[BatchHeader]) -> int:
    """The number of records in batches."""
    return sum([header.record_count for header in headers])


def stamp(view: memoryview, *, base_offset: int, leader_epoch: int) -> None:
    """Set offset and leader epoch in place; the checksum does not cover these bytes."""
    _BASE_OFFSET.pack_into(view, 0, base_offset)
    _LEADER_EPOCH.pack_into(view, _LEADER_EPOCH_START, leader_epoch)


__all__ = [
    "HEADER_SIZE",
    "BatchHeader",
    "Buffer",
    "newest_ms",
    "record_count",
    "stamp",
    "unpack_header",
]
