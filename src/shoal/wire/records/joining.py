"""Joins batches into larger ones, record by record as blocks of bytes.

    record = length, attributes (1 byte), timestamp delta, offset delta, key, value, headers
                                                                         └── copied as it is

Only the length and both deltas are written again. So keys, values and headers stay as their
producer encoded them, and a record costs a fraction of what decoding and encoding it would.

Rules of this file:
- The CRC is checked first: a new CRC would hide damage.
- What is read of a header is what `Batch` documents; the fields are unpacked once, for speed.
- Timestamps are those that a consumer sees: where the source's broker has set the append time, that
  is the timestamp of each record.
"""

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shoal.wire.batch import CODEC_MASK, HEADER_SIZE, TIMESTAMP_TYPE_BIT, Batch
from shoal.wire.errors import Malformed, Truncated
from shoal.wire.records.compression import Codec, decompress
from shoal.wire.records.records import (
    DEFAULT_LIMIT_BYTES,
    LEAST_RECORD_SIZE,
    Record,
    append_body,
    compress_section,
    write_header,
)
from shoal.wire.records.varint import append_varint, read_varint, read_varlong


def _varint(value: int) -> bytes:
    output = bytearray()
    append_varint(output, value)
    return bytes(output)


# Most lengths and deltas are small; a table is faster than encoding them.
_TABLE_SIZE: Final = 1 << 13
_VARINTS: Final = [_varint(value) for value in range(_TABLE_SIZE)]
_BYTES: Final = [bytes((value,)) for value in range(256)]
_INT64_LEAST: Final = -(1 << 63)
_INT64_MOST: Final = (1 << 63) - 1
# From the first record of a batch to any other, so that the distance of any two fits.
_MAX_AGE_MS: Final = 1 << 61
# Base offset, attributes, last offset delta, base and maximum timestamp, record count.
_FIELDS: Final = struct.Struct(">q13xhiqq14xi")


class Part(NamedTuple):
    """One record: its key, value and headers are in `body`, encoded."""

    offset: int
    timestamp: int
    attributes: int
    body: bytes


def part_of(record: Record) -> Part:
    body = bytearray()
    append_body(body, record)
    return Part(record.offset, record.timestamp, record.attributes & 0xFF, bytes(body))


class SourceBatch(NamedTuple):
    """The records of one batch from an offset on, and which offsets they span."""

    parts: list[Part]
    source_offset: int
    next_offset: int
    codec: int = Codec.NONE
    # It has a record at each offset, all are in `parts`, and it keeps its producers' timestamps.
    is_plain: bool = False
    size: int = 0  # of the records before compression, about


def _parse(data: bytes, count: int, base_offset: int, times: tuple[int, int | None]) -> list[Part]:
    """The records of a section; `times` are the base timestamp, and the append time if it has one.

    Increasing offsets are checked here, their end by the caller.
    """
    if count * LEAST_RECORD_SIZE > len(data):
        raise Malformed(f"{count} records in {len(data)} bytes", position=0)
    base_timestamp, append_time = times
    parts: list[Part] = []
    position, last_delta, size = 0, -1, len(data)
    for _ in range(count):
        start = position
        length, position = read_varint(data, position)
        end = position + length
        if length < LEAST_RECORD_SIZE - 1 or end > size:
            message = f"a record of {length} bytes, but {size - position} bytes are left"
            raise (Truncated if end > size else Malformed)(message, position=start)
        attributes = data[position]
        timestamp, position = read_varlong(data, position + 1)
        delta, position = read_varint(data, position)
        if position > end:
            raise Malformed("a delta reaches past the end of its record", position=start)
        if delta <= last_delta:
            raise Malformed(f"offset delta {delta} follows {last_delta}", position=start)
        last_delta = delta
        timestamp = base_timestamp + timestamp if append_time is None else append_time
        if not _INT64_LEAST <= timestamp <= _INT64_MOST:
            raise Malformed(f"timestamp {timestamp} does not fit 64 bits", position=start)
        parts.append(Part(base_offset + delta, timestamp, attributes, data[position:end]))
        position = end
    if position != size:
        message = f"{size - position} bytes after the last of {count} records"
        raise Malformed(message, position=position)
    return parts


def read_source(batch: Batch, from_offset: int = 0) -> SourceBatch:
    """Read the records of a batch at and above an offset, after its CRC is checked."""
    batch.check_crc()
    view = batch.view
    base_offset, attributes, span, base_timestamp, max_timestamp, count = _FIELDS.unpack_from(view)
    codec = attributes & CODEC_MASK
    section = view[HEADER_SIZE:]
    data = bytes(decompress(codec, section, limit_bytes=DEFAULT_LIMIT_BYTES) if codec else section)
    is_stamped = attributes & TIMESTAMP_TYPE_BIT
    times = (base_timestamp, max_timestamp if is_stamped else None)
    parts = _parse(data, count, base_offset, times)
    if parts and parts[-1].offset > base_offset + span:
        raise Malformed(
            f"offset delta {parts[-1].offset - base_offset} in a batch that spans {span}",
            position=0,
        )
    is_plain = count == span + 1 and not is_stamped
    if from_offset > base_offset:
        parts, is_plain = [part for part in parts if part.offset >= from_offset], False
        base_offset, next_offset = from_offset, base_offset + span + 1
    else:
        next_offset = base_offset + span + 1
    return SourceBatch(parts, base_offset, next_offset, codec, is_plain, len(data))


@dataclass(slots=True)
class BatchJoiner:
    """Builds one batch; `size` is that of its records before compression."""

    keeps_offsets: bool = False  # otherwise records are numbered 0, 1, 2, …
    size: int = 0
    count: int = 0
    _chunks: list[bytes] = field(default_factory=list)
    _base_offset: int = 0
    _base_timestamp: int = 0
    _max_timestamp: int = 0
    _last_delta: int = 0

    def add(self, part: Part) -> None:
        offset, timestamp, attributes, body = part
        if not self.count:
            self._base_offset, self._base_timestamp = offset, timestamp
            self._max_timestamp = timestamp
        elif timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        delta = offset - self._base_offset if self.keeps_offsets else self.count
        age = timestamp - self._base_timestamp
        head = (_VARINTS[age] if 0 <= age < _TABLE_SIZE else _varint(age)) + (
            _VARINTS[delta] if delta < _TABLE_SIZE else _varint(delta)
        )
        length = len(head) + len(body) + 1
        prefix = _VARINTS[length] if length < _TABLE_SIZE else _varint(length)
        self._chunks += (prefix, _BYTES[attributes], head, body)
        self.size += len(prefix) + length
        self.count += 1
        self._last_delta = delta

    def accepts(self, timestamp: int) -> bool:
        """Whether a record of this time fits: the deltas of a batch have 64 bits."""
        return not self.count or abs(timestamp - self._base_timestamp) < _MAX_AGE_MS

    def build(self, codec: int = Codec.NONE) -> Batch:
        """The batch of all records that were added; at least one must have been."""
        output = bytearray(HEADER_SIZE)
        output += b"".join(self._chunks)
        compress_section(output, codec)
        write_header(
            output,
            record_count=self.count,
            last_offset_delta=self._last_delta,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            codec=codec,
            base_offset=self._base_offset if self.keeps_offsets else 0,
        )
        return Batch(memoryview(output))
