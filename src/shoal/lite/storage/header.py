"""The header of a record batch, all fields at once.

A broker looks at every field of every batch that it appends. Unpacking them in one step costs
a quarter of asking a view for each, and unlike the view of `shoal.wire.batch` nothing is judged
here: which error a wrong field earns is for the caller to say.
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
    """The header at `position`; there must be `HEADER_SIZE` bytes."""
    # As `_make` does, which is a call and a count more.
    return tuple.__new__(BatchHeader, _HEADER.unpack_from(data, position))


# Lists, not generators: these are for every few batches.


def newest_ms(headers: Sequence[BatchHeader]) -> int:
    """The largest timestamp of batches."""
    return max([header.max_timestamp for header in headers])


def record_count(headers: Sequence[BatchHeader]) -> int:
    """How many records batches have."""
    return sum([header.record_count for header in headers])


def stamp(view: memoryview, *, base_offset: int, leader_epoch: int) -> None:
    """Write what the leader of a partition decides: bytes that the checksum does not cover."""
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
