"""Rules for a single batch: its format, size, checksum and timestamps. Pure.

The errors and their order are Apache Kafka's, but these rules read only the header; see
`record_rules` for the records. What is not checked is listed in
`docs/reference/differences-from-kafka.md`.
"""

from collections.abc import Sequence

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import TopicConfig
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.wire.batch import (
    CHECKED_START,
    CONTINUED_BIT,
    LEAST_BATCH_LENGTH,
    MAGIC,
    NO_PRODUCER_ID,
    TIMESTAMP_TYPE_BIT,
    Batch,
)
from shoal.wire.records.compression import Codec
from shoal.wire.records.crc import crc32c

_FIRST_VERSION_WITH_ZSTD = 7
_LAST_CODEC = max(Codec)
# Attributes that only brokers set; they are cleared in batches of clients.
_BROKERS_BITS = TIMESTAMP_TYPE_BIT | CONTINUED_BIT


def header_of_only_batch(records: memoryview, produce_version: int) -> BatchHeader:
    """Return the header of the one batch that a request may contain for a partition."""
    if len(records) < HEADER_SIZE:
        raise _invalid(
            "the request must contain exactly one batch of format 2 per partition, but has none"
        )
    header = unpack_header(records)
    if header.magic != MAGIC:
        raise _invalid(f"the batch has format {header.magic}; only format 2 is accepted")
    if header.batch_length < LEAST_BATCH_LENGTH:
        message = f"the batch has an invalid length of {header.batch_length} bytes"
        raise ApiError(Code.CORRUPT_MESSAGE, message)
    if header.size != len(records):
        raise _invalid(
            f"the request must contain exactly one batch per partition; the first batch has "
            f"{header.size} bytes, the records have {len(records)}"
        )
    if header.codec > _LAST_CODEC:
        message = f"compression type {header.codec} is unknown"
        raise ApiError(Code.UNSUPPORTED_COMPRESSION_TYPE, message)
    if header.codec == Codec.ZSTD and produce_version < _FIRST_VERSION_WITH_ZSTD:
        message = f"zstd requires Produce version {_FIRST_VERSION_WITH_ZSTD} or later"
        raise ApiError(Code.UNSUPPORTED_COMPRESSION_TYPE, message)
    return header


def check_batch(records: memoryview, header: BatchHeader, rules: TopicConfig) -> None:
    """Raise `ApiError` if the batch may not be appended."""
    if header.base_offset != 0:
        raise _invalid(f"the base offset must be 0, not {header.base_offset}")
    if len(records) > rules.max_message_bytes:
        raise batch_too_large(records, rules)
    if crc32c(records[CHECKED_START:]) != header.crc:
        raise ApiError(Code.CORRUPT_MESSAGE, "the checksum of the batch does not match its bytes")
    if header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count:
        raise _invalid(
            f"the batch has {header.record_count} records, but a last offset delta of "
            f"{header.last_offset_delta}"
        )
    if header.is_control:
        raise _invalid("clients may not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(f"producer {header.producer_id} sent a batch without a sequence number")
    if len(records) > rules.log.segment_bytes:
        message = (
            f"the batch has {len(records)} bytes, but segment.bytes is {rules.log.segment_bytes}"
        )
        raise ApiError(Code.RECORD_LIST_TOO_LARGE, message)


def batch_too_large(records: memoryview, rules: TopicConfig) -> ApiError:
    limit = rules.max_message_bytes
    message = f"the batch has {len(records)} bytes, but max.message.bytes is {limit}"
    return ApiError(Code.MESSAGE_TOO_LARGE, message)


def apply_timestamps(
    records: memoryview, header: BatchHeader, rules: TopicConfig, now_ms: int
) -> BatchHeader:
    """Check or replace the timestamps, as the topic requires; return the resulting header."""
    if rules.uses_append_time:
        if header.has_append_time:
            raise ApiError(
                Code.INVALID_TIMESTAMP, "only brokers may set the LogAppendTime attribute"
            )
        attributes = (header.attributes | TIMESTAMP_TYPE_BIT) & ~CONTINUED_BIT
        Batch(records).edit(attributes=attributes, max_timestamp=now_ms)
        return unpack_header(records)
    if header.max_timestamp > now_ms + rules.timestamp_after_max_ms:
        message = f"timestamp {header.max_timestamp} is too far in the future"
        raise ApiError(Code.INVALID_TIMESTAMP, message)
    if 0 <= header.base_timestamp < now_ms - rules.timestamp_before_max_ms:
        message = f"timestamp {header.base_timestamp} is too far in the past"
        raise ApiError(Code.INVALID_TIMESTAMP, message)
    if header.attributes & _BROKERS_BITS:
        Batch(records).edit(attributes=header.attributes & ~_BROKERS_BITS)
        return unpack_header(records)
    return header


# Batches of a mirror: several, with their own offsets


def unpack_unit(records: memoryview, next_offset: int, rules: TopicConfig) -> list[BatchHeader]:
    """Return the headers of all batches; `ApiError` if one of them may not be written."""
    headers: list[BatchHeader] = []
    position = 0
    while position < len(records):
        if len(records) - position < HEADER_SIZE:
            raise _invalid(f"{len(records) - position} bytes after the last batch")
        header = unpack_header(records, position)
        end = position + header.size
        if header.batch_length < LEAST_BATCH_LENGTH or end > len(records):
            raise _invalid(f"a batch of {header.size} bytes is incomplete")
        _check_mirrored(records[position:end], header, next_offset, rules)
        headers.append(header)
        next_offset = header.last_offset + 1
        position = end
    return headers


def _check_mirrored(
    batch: memoryview, header: BatchHeader, next_offset: int, rules: TopicConfig
) -> None:
    if header.magic != MAGIC or header.codec > _LAST_CODEC:
        raise _invalid(
            f"format {header.magic} or compression {header.codec} of a batch is not supported"
        )
    if header.size > rules.max_message_bytes:
        message = (
            f"a batch of {header.size} bytes exceeds max.message.bytes={rules.max_message_bytes}"
        )
        raise ApiError(Code.MESSAGE_TOO_LARGE, message)
    if crc32c(batch[CHECKED_START:]) != header.crc:
        message = f"the batch at offset {header.base_offset} contradicts its checksum"
        raise ApiError(Code.CORRUPT_MESSAGE, message)
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        raise _invalid(
            f"a batch at offset {header.base_offset} is below the next offset {next_offset}"
        )
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise _invalid(
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    if header.producer_id != NO_PRODUCER_ID or header.is_control or header.is_transactional:
        raise _invalid(
            "batches with producer ids, transactions or markers cannot be mirrored this way"
        )


def set_continued_bits(records: memoryview, headers: Sequence[BatchHeader]) -> list[BatchHeader]:
    """Set the continued bit in all batches but the last, and return the new headers."""
    new_headers = []
    position = 0
    for number, header in enumerate(headers, 1):
        view = records[position : position + header.size]
        attributes = header.attributes & ~CONTINUED_BIT
        if number < len(headers):
            attributes |= CONTINUED_BIT
        if attributes != header.attributes:
            Batch(view).edit(attributes=attributes)
            new_headers.append(unpack_header(view))
        else:
            new_headers.append(header)
        position += header.size
    return new_headers


def _invalid(message: str) -> ApiError:
    return ApiError(Code.INVALID_RECORD, message)
