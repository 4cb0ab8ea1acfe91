"""Checks of a batch before it is appended. Pure.

The errors and their order are Apache Kafka's, but these checks read only the header.
`record_rules` reads the records if the topic requires it. What is not checked is listed in
`docs/reference/differences-from-kafka.md`.
"""

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import TopicConfig
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.wire.batch import (
    CHECKED_START,
    CONTINUED_BIT,
    LEAST_BATCH_LENGTH,
    MAGIC,
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
        limit = rules.max_message_bytes
        message = f"the batch has {len(records)} bytes, but max.message.bytes is {limit}"
        raise ApiError(Code.MESSAGE_TOO_LARGE, message)
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


def _invalid(message: str) -> ApiError:
    return ApiError(Code.INVALID_RECORD, message)
