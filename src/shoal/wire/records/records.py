"""The records of a batch, one at a time: the simple codec, and the reference for `columns`.

    record = length, attributes (1 byte), timestamp delta, offset delta, key, value, headers
    key, value = length (-1 for null), bytes
    headers = count, then key (never null) and value of each

Lengths, deltas and counts are zigzag varints. Offsets and timestamps are relative to the batch's
base; if the batch has the broker's append time, that is the timestamp of every record.

Rules of this file:
- Every length is checked against the end of the record, and the record against the section, before
  it is used; counts are checked against the bytes before a list is created.
- Positions in errors count from the start of the decompressed records section.
- A decoded batch is exact: as many records as announced, nothing after the last one, increasing
  offsets in the range of the header. Gaps of compaction are kept.
- The CRC is not checked here (see `Batch.check_crc`): mirrors and brokers check it once.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, TypedDict, Unpack

from shoal.model.errors import UsageError
from shoal.wire.batch import (
    CHECKED_START,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Batch,
)
from shoal.wire.errors import Malformed, Truncated
from shoal.wire.records.compression import Codec, compress, decompress
from shoal.wire.records.crc import crc32c
from shoal.wire.records.varint import append_varint, read_varint, read_varlong

# The default limit of a batch's decompressed size.
DEFAULT_LIMIT_BYTES = 256 * 1024 * 1024
# Length, attributes, two deltas, two nulls, no headers.
LEAST_RECORD_SIZE = 7
# Header keys are UTF-8 by convention only: this preserves the bytes of those that are not.
KEY_ERRORS = "surrogateescape"

_INT64_LEAST, _INT64_MOST = -(1 << 63), (1 << 63) - 1
_UNCHECKED = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record, with its absolute offset and its timestamp in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    attributes: int = 0


class BatchOptions(TypedDict, total=False):
    """The header fields of a new batch that do not follow from its records."""

    codec: int
    base_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control: bool


class _Base(NamedTuple):
    offset: int
    last_offset_delta: int
    timestamp: int
    append_time: int | None


def decode_records(batch: Batch, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> list[Record]:
    """All records of a batch; `limit_bytes` limits its decompressed size."""
    data = bytes(decompress(batch.codec, batch.records, limit_bytes=limit_bytes))
    if batch.record_count * LEAST_RECORD_SIZE > len(data):
        raise Malformed(f"{batch.record_count} records in {len(data)} bytes", position=0)
    base = _Base(
        batch.base_offset,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None,
    )
    records = []
    position = 0
    previous_offset = base.offset - 1
    for _ in range(batch.record_count):
        start = position
        record, position = _decode_record(data, position, base)
        if record.offset <= previous_offset:
            message = f"offset {record.offset} follows {previous_offset}"
            raise Malformed(message, position=start)
        previous_offset = record.offset
        records.append(record)
    if position != len(data):
        message = f"{len(data) - position} bytes after the last of {len(records)} records"
        raise Malformed(message, position=position)
    return records


def _decode_record(data: bytes, position: int, base: _Base) -> tuple[Record, int]:
    start = position
    length, position = read_varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        message = f"a record of {length} bytes, but {len(data) - position} bytes are left"
        raise (Malformed if length < 0 else Truncated)(message, position=start)
    if length == 0:
        raise Malformed("an empty record", position=start)
    attributes = data[position]
    timestamp_delta, position = read_varlong(data, position + 1)
    offset_delta, position = read_varint(data, position)
    key, position = _decode_bytes(data, position, end)
    value, position = _decode_bytes(data, position, end)
    header_count, position = read_varint(data, position)
    headers: tuple[Header, ...] = ()
    if header_count:
        headers, position = _decode_headers(data, position, end, header_count)
    if position != end:
        message = f"a record of {length} bytes whose fields take {position - end + length}"
        raise Malformed(message, position=start)
    if not 0 <= offset_delta <= base.last_offset_delta:
        message = f"offset delta {offset_delta} in a batch that spans {base.last_offset_delta}"
        raise Malformed(message, position=start)
    timestamp = base.append_time
    if timestamp is None:
        timestamp = base.timestamp + timestamp_delta
        if not _INT64_LEAST <= timestamp <= _INT64_MOST:
            raise Malformed(f"timestamp {timestamp} does not fit 64 bits", position=start)
    return Record(base.offset + offset_delta, timestamp, key, value, headers, attributes), position


def _decode_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, start = read_varint(data, position)
    if length > end - start or length < -1:
        message = f"a field of {length} bytes, but the record has {end - start} left"
        raise Malformed(message, position=position)
    if length == -1:
        return None, start
    return data[start : start + length], start + length


def _decode_headers(
    data: bytes, position: int, end: int, count: int
) -> tuple[tuple[Header, ...], int]:
    if not 0 <= count <= (end - position) // 2:
        message = f"{count} headers, but the record has {end - position} bytes left"
        raise Malformed(message, position=position)
    headers = []
    for _ in range(count):
        start = position
        key, position = _decode_bytes(data, position, end)
        if key is None:
            raise Malformed("a header without a key", position=start)
        value, position = _decode_bytes(data, position, end)
        headers.append((key.decode(errors=KEY_ERRORS), value))
    return tuple(headers), position


def decode_headers(section: bytes) -> tuple[Header, ...]:
    """Decode a header section: the count, then keys and values."""
    count, position = read_varint(section, 0)
    headers, position = _decode_headers(section, position, len(section), count)
    if position != len(section):
        raise Malformed("bytes after the last header", position=position)
    return headers


def encode_batch(
    records: Sequence[Record],
    *,
    keep_offsets: bool = False,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    **options: Unpack[BatchOptions],
) -> bytearray:
    """One batch of all the records, ready to send or to store.

    Offset deltas are 0, 1, 2, … and ignore the offsets of the records, as brokers require of
    producers. With `keep_offsets` they are the distances to `base_offset`, so that a batch with
    gaps of compaction can be written again unchanged; `last_offset_delta` then keeps a gap at
    its end. `base_timestamp` defaults to that of the first record; compaction stores the delete
    horizon there.
    """
    if not records:
        raise UsageError("a batch needs at least one record")
    base_offset = options.get("base_offset", 0)
    if base_timestamp is None:
        base_timestamp = records[0].timestamp
    output = bytearray(HEADER_SIZE)
    offset_delta = -1
    for record in records:
        previous_delta = offset_delta
        offset_delta = record.offset - base_offset if keep_offsets else previous_delta + 1
        if offset_delta <= previous_delta:
            message = (
                f"offset {record.offset} is out of order in a batch with base offset {base_offset}"
            )
            raise UsageError(message)
        body = _encode_record(record, offset_delta, record.timestamp - base_timestamp)
        append_varint(output, len(body))
        output += body
    if last_offset_delta is not None and last_offset_delta < offset_delta:
        raise UsageError(
            f"last offset delta {last_offset_delta} is below that of a record, {offset_delta}"
        )
    timestamps = [record.timestamp for record in records]
    check_timestamps(min(*timestamps, base_timestamp), max(*timestamps, base_timestamp))
    compress_section(output, options.get("codec", Codec.NONE))
    write_header(
        output,
        record_count=len(records),
        last_offset_delta=offset_delta if last_offset_delta is None else last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max(timestamps),
        **options,
    )
    return output


def _encode_record(record: Record, offset_delta: int, timestamp_delta: int) -> bytearray:
    output = bytearray((record.attributes & 0xFF,))
    append_varint(output, timestamp_delta)
    append_varint(output, offset_delta)
    append_body(output, record)
    return output


def append_body(output: bytearray, record: Record) -> None:
    """Append key, value and headers of a record: what does not depend on its batch."""
    _append_bytes(output, record.key)
    _append_bytes(output, record.value)
    append_headers(output, record.headers)


def _append_bytes(output: bytearray, value: bytes | None) -> None:
    if value is None:
        append_varint(output, -1)
    else:
        append_varint(output, len(value))
        output += value


def append_headers(output: bytearray, headers: Sequence[Header]) -> None:
    """Append the header section of one record: the count, then keys and values."""
    append_varint(output, len(headers))
    for key, value in headers:
        _append_bytes(output, key.encode(errors=KEY_ERRORS))
        _append_bytes(output, value)


def check_timestamps(least: int, most: int) -> None:
    """Refuse timestamps whose distance does not fit a delta of 64 bits."""
    if most - least > _INT64_MOST:
        raise UsageError(f"timestamps {least} and {most} do not fit into one batch")


def compress_section(output: bytearray, codec: int) -> None:
    """Replace the records after the header by their compressed form."""
    if codec != Codec.NONE:
        with memoryview(output) as view, view[HEADER_SIZE:] as section:
            compressed = compress(codec, section)
        output[HEADER_SIZE:] = compressed


def write_header(
    output: bytearray,
    *,
    record_count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    **options: Unpack[BatchOptions],
) -> None:
    """Write the first 61 bytes, CRC included, for the records that already follow them."""
    attributes = int(options.get("codec", Codec.NONE))
    attributes |= TRANSACTIONAL_BIT if options.get("is_transactional") else 0
    attributes |= CONTROL_BIT if options.get("is_control") else 0
    try:
        _CHECKED.pack_into(
            output,
            CHECKED_START,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            options.get("producer_id", NO_PRODUCER_ID),
            options.get("producer_epoch", NO_PRODUCER_EPOCH),
            options.get("base_sequence", NO_SEQUENCE),
            record_count,
        )
        with memoryview(output) as view, view[CHECKED_START:] as checked:
            crc = crc32c(checked)
        _UNCHECKED.pack_into(
            output,
            0,
            options.get("base_offset", 0),
            len(output) - LENGTH_END,
            options.get("leader_epoch", NO_LEADER_EPOCH),
            MAGIC,
            crc,
        )
    except struct.error as error:
        raise UsageError(f"a value does not fit its header field: {error}") from error


class ControlType(IntEnum):
    """The type of a control record. Only the first two occur in ordinary topics."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class ControlMarker(NamedTuple):
    """A control record; `type` is a plain number if it is unknown."""

    type: int
    coordinator_epoch: int | None


def decode_control(record: Record) -> ControlMarker:
    """Decode the record of a control batch."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise Malformed(f"the control record at offset {record.offset} has no type")
    version, kind = _CONTROL_KEY.unpack_from(record.key)
    if version < 0:
        raise Malformed(
            f"the control record at offset {record.offset} has invalid version {version}"
        )
    if kind not in {ControlType.ABORT, ControlType.COMMIT}:
        return ControlMarker(kind, None)
    if record.value is None or len(record.value) < _CONTROL_VALUE.size:
        raise Malformed(
            f"the transaction marker at offset {record.offset} has no coordinator epoch"
        )
    return ControlMarker(ControlType(kind), _CONTROL_VALUE.unpack_from(record.value)[1])


def encode_control_batch(
    kind: ControlType,
    *,
    timestamp: int,
    coordinator_epoch: int,
    **options: Unpack[BatchOptions],
) -> bytearray:
    """The control batch that a broker writes at the end of a transaction."""
    record = Record(
        offset=options.get("base_offset", 0),
        timestamp=timestamp,
        key=_CONTROL_KEY.pack(0, kind),
        value=_CONTROL_VALUE.pack(0, coordinator_epoch),
    )
    options["is_transactional"] = True
    options["is_control"] = True
    return encode_batch([record], **options)
