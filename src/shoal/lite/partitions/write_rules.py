"""What a broker demands of a batch that a client wants written. Pure.

The same refusals, in the same order, as Apache Kafka's; but only the header is looked at here.
`record_rules` looks at records where a topic demands it; `docs/gaps.md` says what else passes.
"""

from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.configs import TopicRules
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
# What only a broker says of a batch; from a client it means nothing.
_BROKERS_BITS = TIMESTAMP_TYPE_BIT | CONTINUED_BIT


def header_of_only_batch(records: memoryview, produce_version: int) -> BatchHeader:
    """The header of the one batch that a partition may get in a request."""
    if len(records) < HEADER_SIZE:
        raise _invalid("a partition needs exactly one batch of format 2, and got none")
    header = unpack_header(records)
    if header.magic != MAGIC:
        raise _invalid(f"a batch of format {header.magic}; only format 2 is accepted")
    if header.batch_length < LEAST_BATCH_LENGTH:
        message = f"a batch that says it has {header.batch_length} bytes after its length"
        raise Refused(Code.CORRUPT_MESSAGE, message)
    if header.size != len(records):
        raise _invalid(
            f"a partition needs exactly one batch; the first has {header.size} bytes, "
            f"there are {len(records)}"
        )
    if header.codec > _LAST_CODEC:
        message = f"there is no compression {header.codec}"
        raise Refused(Code.UNSUPPORTED_COMPRESSION_TYPE, message)
    if header.codec == Codec.ZSTD and produce_version < _FIRST_VERSION_WITH_ZSTD:
        message = f"zstd needs Produce version {_FIRST_VERSION_WITH_ZSTD}"
        raise Refused(Code.UNSUPPORTED_COMPRESSION_TYPE, message)
    return header


def check_batch(records: memoryview, header: BatchHeader, rules: TopicRules) -> None:
    """Raise `Refused` unless the batch may be written."""
    if header.base_offset != 0:
        raise _invalid(f"the base offset must be 0, not {header.base_offset}")
    if len(records) > rules.max_message_bytes:
        message = f"{len(records)} bytes; max.message.bytes is {rules.max_message_bytes}"
        raise Refused(Code.MESSAGE_TOO_LARGE, message)
    if crc32c(records[CHECKED_START:]) != header.crc:
        raise Refused(Code.CORRUPT_MESSAGE, "the checksum of the batch is not that of its bytes")
    if header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count:
        raise _invalid(
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    if header.is_control:
        raise _invalid("clients may not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(f"producer {header.producer_id} sent no sequence")
    if len(records) > rules.log.segment_bytes:
        message = f"{len(records)} bytes; segment.bytes is {rules.log.segment_bytes}"
        raise Refused(Code.RECORD_LIST_TOO_LARGE, message)


def apply_timestamps(
    records: memoryview, header: BatchHeader, rules: TopicRules, now_ms: int
) -> BatchHeader:
    """Check the timestamps, or replace them, as the topic says; returns the header that results."""
    if rules.uses_append_time:
        if header.has_append_time:
            raise Refused(Code.INVALID_TIMESTAMP, "only brokers set the append time")
        attributes = (header.attributes | TIMESTAMP_TYPE_BIT) & ~CONTINUED_BIT
        Batch(records).edit(attributes=attributes, max_timestamp=now_ms)
        return unpack_header(records)
    if header.max_timestamp > now_ms + rules.timestamp_after_max_ms:
        message = f"timestamp {header.max_timestamp} is too far in the future"
        raise Refused(Code.INVALID_TIMESTAMP, message)
    if 0 <= header.base_timestamp < now_ms - rules.timestamp_before_max_ms:
        message = f"timestamp {header.base_timestamp} is too far in the past"
        raise Refused(Code.INVALID_TIMESTAMP, message)
    if header.attributes & _BROKERS_BITS:
        Batch(records).edit(attributes=header.attributes & ~_BROKERS_BITS)
        return unpack_header(records)
    return header


def _invalid(message: str) -> Refused:
    return Refused(Code.INVALID_RECORD, message)
