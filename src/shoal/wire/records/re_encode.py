"""Re-encodes batches: with other timestamps, or without their first records.

Rules of this file:
- The CRC is checked first: a new CRC would hide damage.
- Codec, offsets, keys, values and headers are kept.
- `with_append_time` changes timestamps only. It copies each record as a block of bytes, and
  compresses again only if the records have different timestamps.
- `trim` keeps the header fields that a consumer sees: producer, sequence, transaction, leader epoch
  and timestamp type.
"""

from shoal.wire.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_BIT,
    Batch,
    sequence_after,
)
from shoal.wire.errors import Malformed, Truncated
from shoal.wire.records.compression import decompress
from shoal.wire.records.records import (
    DEFAULT_LIMIT_BYTES,
    BatchOptions,
    compress_section,
    decode_records,
    encode_batch,
    write_header,
)
from shoal.wire.records.varint import append_varint, read_varint, read_varlong


def with_append_time(batch: Batch) -> Batch:
    """A copy in which the broker's append time is the create time of every record.

    With the timestamp type LogAppendTime all records have the batch's maximum timestamp.
    """
    batch.check_crc()
    section = _with_equal_times(batch)
    output = bytearray(HEADER_SIZE)
    if section is None:
        output += batch.records
    else:
        output += section
        compress_section(output, batch.codec)
    write_header(
        output,
        record_count=batch.record_count,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=batch.max_timestamp,
        max_timestamp=batch.max_timestamp,
        **_options(batch),
    )
    return Batch(memoryview(output))


def _with_equal_times(batch: Batch) -> bytearray | None:
    """The uncompressed records with timestamp deltas of 0; None if they already are 0."""
    data = bytes(decompress(batch.codec, batch.records, limit_bytes=DEFAULT_LIMIT_BYTES))
    output = bytearray()
    position, is_changed = 0, False
    for _ in range(batch.record_count):
        start = position
        length, position = read_varint(data, position)
        end = position + length
        if length < 2 or end > len(data):
            message = f"a record of {length} bytes, but {len(data) - position} bytes are left"
            raise (Truncated if length >= 2 else Malformed)(message, position=start)
        delta, rest = read_varlong(data, position + 1)
        if rest > end:
            raise Malformed("a timestamp reaches past the end of its record", position=start)
        if not delta:
            output += data[start:end]
        else:
            is_changed = True
            append_varint(output, end - rest + 2)
            output.append(data[position])
            output.append(0)
            output += data[rest:end]
        position = end
    if position != len(data):
        message = f"{len(data) - position} bytes after the last of {batch.record_count} records"
        raise Malformed(message, position=position)
    return output if is_changed else None


def trim(batch: Batch, *, from_offset: int) -> Batch | None:
    """A batch with the records from an offset on, at their offsets; None without any."""
    batch.check_crc()
    records = [record for record in decode_records(batch) if record.offset >= from_offset]
    if not records:
        return None
    options = _options(batch)
    options["base_offset"] = from_offset
    if batch.base_sequence != NO_SEQUENCE:
        options["base_sequence"] = sequence_after(
            batch.base_sequence, from_offset - batch.base_offset
        )
    trimmed = Batch(
        memoryview(
            encode_batch(
                records,
                keep_offsets=True,
                last_offset_delta=batch.last_offset - from_offset,
                **options,
            )
        )
    )
    keep_timestamp_type(trimmed, like=batch)
    return trimmed


def keep_timestamp_type(batch: Batch, *, like: Batch) -> None:
    """Give a batch the append time of the batch `like`, if that has one."""
    if like.timestamp_type == LOG_APPEND_TIME:
        batch.edit(
            attributes=batch.attributes | TIMESTAMP_TYPE_BIT, max_timestamp=like.max_timestamp
        )


def _options(batch: Batch) -> BatchOptions:
    return {
        "codec": batch.codec,
        "base_offset": batch.base_offset,
        "leader_epoch": batch.leader_epoch,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "is_transactional": batch.is_transactional,
        "is_control": batch.is_control,
    }
