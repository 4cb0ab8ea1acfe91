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

from shoal.wire.batch import (
    CHECKED_START,
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    Batch,
)
from shoal.wire.errors import Malformed, Truncated
from shoal.wire.records.compression import Codec, decompress
from shoal.wire.records.crc import crc32c
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
_CONTINUED: Final = 0x80  # of a byte of a varint: another one follows
_INT64_LEAST: Final = -(1 << 63)
_INT64_MOST: Final = (1 << 63) - 1
# From the first record of a batch to any other, so that the distance of any two fits.
_MAX_AGE_MS: Final = 1 << 61
# Of a batch with one record: offset, length, leader epoch, magic, CRC, attributes, last delta, base
# timestamp and record count; and the first bytes of the record.
_TINY: Final = struct.Struct(">qiibIhiq22xi5B")
# So that the length of its record takes at most two bytes.
_LARGEST_TINY: Final = 2000
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


class TinyRun(NamedTuple):
    """Batches of one record each that were joined, at the offsets from `first` to `last`."""

    first: int
    last: int
    joined: int  # their number
    end: int  # of their bytes in the record set
    is_full: bool  # the next one does not fit
    # The leader epochs that begin in it, with their first offset.
    epochs: list[tuple[int, int]]


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

    def add_tiny(  # noqa: C901, PLR0912 - without calls, because it is for each record
        self, data: bytes, position: int, offset: int, limit_bytes: int
    ) -> TinyRun:
        """Add the batches of one record each from a position of a record set on, in one pass.

        They have no attributes, and offsets from `offset` on without a gap. The pass ends before
        any other batch, and before one whose checksum is wrong.
        """
        unpack, chunks, varints = _TINY.unpack_from, self._chunks, _VARINTS
        count, size, first, epochs = self.count, self.size, offset, []
        base_timestamp, newest = self._base_timestamp, self._max_timestamp
        last_epoch, is_full, end = -1, False, len(data) - _TINY.size
        keeps_offsets = self.keeps_offsets
        while position <= end and not keeps_offsets:
            at, length, epoch, magic, crc, bits, span, time, records, a, b, c, d, e = unpack(
                data, position
            )
            next_at = position + LENGTH_END + length
            if bits or span or magic != MAGIC or records != 1 or length > _LARGEST_TINY:
                break
            if a < _CONTINUED and not c and not d:  # the length has one byte, and both deltas are 0
                head, record_length, kind = HEADER_SIZE + 4, a >> 1, b
            elif a >= _CONTINUED and b < _CONTINUED and not d and not e:
                head, record_length, kind = HEADER_SIZE + 5, (a & 127 | b << 7) >> 1, c
            else:
                break
            body_size = record_length - 3
            if (
                a & 1
                or body_size < LEAST_RECORD_SIZE - 4
                or position + head + body_size != next_at
                or next_at > len(data)
                or (at != offset if offset != first else not offset <= at < _INT64_MOST)
                or crc32c(data[position + CHECKED_START : next_at]) != crc
            ):
                break
            if not count:
                base_timestamp = newest = time
            age = time - base_timestamp
            if 0 <= age < _TABLE_SIZE and count < _TABLE_SIZE:
                deltas = varints[age] + varints[count]
            elif abs(age) < _MAX_AGE_MS:
                deltas = _varint(age) + _varint(count)
            else:
                break
            record_length = body_size + len(deltas) + 1
            prefix = varints[record_length] + _BYTES[kind] + deltas
            if count and size + len(prefix) + body_size > limit_bytes:
                is_full = True
                break
            if offset == first:
                first = at
            if epoch != last_epoch:
                last_epoch = epoch
                epochs.append((epoch, at))
            chunks.append(prefix)
            chunks.append(data[position + head : next_at])
            size += len(prefix) + body_size
            newest = max(newest, time)
            count, offset, position = count + 1, at + 1, next_at
        added, self.count, self.size = count - self.count, count, size
        self._base_timestamp, self._max_timestamp = base_timestamp, newest
        self._last_delta = count - 1
        return TinyRun(first, offset - 1, added, position, is_full, epochs)

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
