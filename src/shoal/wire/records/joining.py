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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shoal.wire.batch import (
    CHECKED_START,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Batch,
)
from shoal.wire.errors import Malformed, Truncated, WireError
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
# Offset, length, leader epoch, magic, CRC, attributes, last delta, base timestamp and record count.
_SMALL: Final = struct.Struct(">qiibIhiq22xi")
# So that the length of a record takes at most two bytes.
_LARGEST_SMALL: Final = 2000
_OF_TRANSACTION: Final = TRANSACTIONAL_BIT | CONTROL_BIT
_LEAST_BODY: Final = LEAST_RECORD_SIZE - 4
_LEAST_BATCH: Final = HEADER_SIZE + LEAST_RECORD_SIZE
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


class SmallRun(NamedTuple):
    """What `BatchJoiner.add_small` found."""

    spans: list[tuple[int, int]]  # offsets of joined records: the first, and how many follow on
    joined: int  # batches with records
    controls: int  # control batches, which were left out
    end: int  # of all of them in the record set
    next_offset: int
    is_full: bool  # the next one does not fit
    # The leader epochs that begin in it, with their first offset.
    epochs: list[tuple[int, int]]


class _Found:
    """What `BatchJoiner.add_small` has found so far."""

    __slots__ = ("behind", "controls", "epochs", "joined", "spans")

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self.epochs: list[tuple[int, int]] = []
        self.joined = self.controls = 0
        self.behind = -1

    def note(self, offset: int, records: int) -> None:
        """Another batch was joined."""
        self.joined += 1
        if offset == self.behind:
            first, count = self.spans[-1]
            self.spans[-1] = first, count + records
        else:
            self.spans.append((offset, records))
        self.behind = offset + records


_Renumbered = tuple[Sequence[bytes], int, int]


def _renumber_one(section: bytes, number: int, age_ms: int) -> _Renumbered | None:
    """As `_renumber`, for the only record of a batch, whose deltas are 0."""
    first, second = section[0], section[1]
    if first < _CONTINUED:
        length, body = first, 4
    elif second < _CONTINUED:
        length, body = first & 127 | second << 7, 5
    else:
        return None
    size = len(section) - body
    if length & 1 or size < _LEAST_BODY or length >> 1 != size + 3:
        return None
    if section[body - 1] or section[body - 2]:
        return None
    deltas = (_VARINTS[age_ms] if 0 <= age_ms < _TABLE_SIZE else _varint(age_ms)) + (
        _VARINTS[number] if number < _TABLE_SIZE else _varint(number)
    )
    prefix = _VARINTS[size + len(deltas) + 1] + _BYTES[section[body - 3]] + deltas
    return (prefix, section[body:]), len(prefix) + size, 0


def _renumber(section: bytes, records: int, *, number: int, age_ms: int) -> _Renumbered | None:
    """The records of a section as chunks of another batch, numbered from `number` on.

    `age_ms` is the age of the section's base timestamp in that batch. Also returns their size, and
    the newest timestamp after the base. None if a record is unusual, or wrong.
    """
    chunks: list[bytes] = []
    position, size, newest, end = 0, 0, 0, len(section)
    try:
        for delta in range(records):
            length, position = read_varint(section, position)
            after = position + length
            kind = section[position]
            time = section[position + 1]
            if time < _CONTINUED:
                time, start = time >> 1 ^ -(time & 1), position + 2
            else:
                time, start = read_varlong(section, position + 1)
            found = section[start]
            if found < _CONTINUED:
                found, start = found >> 1 ^ -(found & 1), start + 1
            else:
                found, start = read_varint(section, start)
            if found != delta or after - start < _LEAST_BODY or after > end:
                return None
            age, index = age_ms + time, number + delta
            if not -_MAX_AGE_MS < age < _MAX_AGE_MS:
                return None
            deltas = (_VARINTS[age] if 0 <= age < _TABLE_SIZE else _varint(age)) + (
                _VARINTS[index] if index < _TABLE_SIZE else _varint(index)
            )
            prefix = _VARINTS[after - start + len(deltas) + 1] + _BYTES[kind] + deltas
            chunks.append(prefix)
            chunks.append(section[start:after])
            size += len(prefix) + after - start
            newest = max(newest, time)
            position = after
    except (IndexError, WireError):
        return None
    return (chunks, size, newest) if position == end else None


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

    def add_small(
        self, data: bytes, position: int, offset: int, *, limit_bytes: int, has_aborted: bool
    ) -> SmallRun:
        """Add the small batches of a record set from a position and an offset on, in one pass.

        They are not compressed, have a record at each offset, and times of their producers. Of
        transactions they are only if none was aborted; then control batches are left out. The pass
        ends before any other batch, and before one whose checksum is wrong.
        """
        unpack, found = _SMALL.unpack_from, _Found()
        count, last_epoch, is_full = self.count, -1, False
        end = -1 if self.keeps_offsets else len(data) - _LEAST_BATCH
        while position <= end:
            at, length, epoch, magic, crc, bits, span, time, records = unpack(data, position)
            next_at = position + LENGTH_END + length
            if (
                not position + _LEAST_BATCH <= next_at <= len(data)
                or length > _LARGEST_SMALL
                or magic != MAGIC
                or not 0 <= span < _TABLE_SIZE
                or not offset <= at < _INT64_MOST - _TABLE_SIZE
                or (bits and (has_aborted or bits & ~_OF_TRANSACTION))
            ):
                break
            if bits & CONTROL_BIT:
                found.controls += 1
            else:
                age = time - self._base_timestamp if count else 0
                if (
                    records != span + 1
                    or crc32c(data[position + CHECKED_START : next_at]) != crc
                    or not -_MAX_AGE_MS < age < _MAX_AGE_MS
                ):
                    break
                section = data[position + HEADER_SIZE : next_at]
                if records == 1:
                    added = _renumber_one(section, count, age)
                else:
                    added = _renumber(section, records, number=count, age_ms=age)
                if added is None:
                    break
                chunks, size, newest = added
                if count and self.size + size > limit_bytes:
                    is_full = True
                    break
                if not count:
                    self._base_timestamp = self._max_timestamp = time
                self._chunks += chunks
                self.size += size
                self._max_timestamp = max(self._max_timestamp, time + newest)
                count += records
                found.note(at, records)
            if epoch != last_epoch:
                last_epoch = epoch
                found.epochs.append((epoch, at))
            offset, position = at + span + 1, next_at
        self.count, self._last_delta = count, count - 1
        return SmallRun(
            found.spans, found.joined, found.controls, position, offset, is_full, found.epochs
        )

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
