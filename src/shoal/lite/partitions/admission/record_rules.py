"""Checks of single records that a topic's configuration requires. Pure.

Most topics require none, and their batches are never decompressed. The exceptions are:

- compacted topics: every record needs a key;
- topics with `message.timestamp.before.max.ms`: the header contains only the newest timestamp;
- topics with a `compression.type`: batches in another codec are recompressed. Producer, sequence
  and timestamps are unchanged.

The decompressed size of a batch is limited, and its header is not trusted.
"""

from typing import Final

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import TopicConfig
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.wire.batch import Batch
from shoal.wire.errors import LimitExceeded, WireError
from shoal.wire.records.compression import compress, decompress
from shoal.wire.records.records import decode_records, write_header

_CODEC_MASK: Final = 0b111
_UNPACKED_LIMIT_BYTES: Final = 128 * 1024 * 1024


class InvalidRecords(ApiError):
    """Some records of a batch are invalid; `errors` has their indexes and messages (KIP-467)."""

    def __init__(self, code: Code, errors: list[tuple[int, str]]) -> None:
        super().__init__(code, f"{len(errors)} record(s) are invalid; the first: {errors[0][1]}")
        self.errors = errors


def needs_record_checks(header: BatchHeader, rules: TopicConfig) -> bool:
    """Return whether the topic's configuration requires looking at the records of a batch."""
    return rules.needs_record_inspection or (
        rules.codec is not None and rules.codec != header.codec
    )


def validate_and_recompress(
    view: memoryview, header: BatchHeader, rules: TopicConfig, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """Return the batch in the topic's codec; `ApiError` if it may not be written."""
    try:
        if rules.needs_record_inspection:
            _check_records(view, header, rules, now_ms)
        if rules.codec is None or rules.codec == header.codec:
            return view, header
        packed = _recompress(view, header, rules)
    except LimitExceeded as error:
        raise ApiError(
            Code.MESSAGE_TOO_LARGE, f"the decompressed batch is too large: {error}"
        ) from error
    except WireError as error:
        raise ApiError(Code.INVALID_RECORD, f"the batch cannot be decompressed: {error}") from error
    if len(packed) > rules.max_message_bytes:
        message = f"the recompressed batch has {len(packed)} bytes, but max.message.bytes is "
        raise ApiError(Code.MESSAGE_TOO_LARGE, f"{message}{rules.max_message_bytes}")
    return memoryview(packed), unpack_header(packed)


def _check_records(view: memoryview, header: BatchHeader, rules: TopicConfig, now_ms: int) -> None:
    oldest_ms = now_ms - rules.timestamp_before_max_ms
    newest_ms = now_ms + rules.timestamp_after_max_ms
    checks_times = not rules.uses_append_time
    without_key: list[tuple[int, str]] = []
    out_of_time: list[tuple[int, str]] = []
    for index, record in enumerate(decode_records(Batch(view), limit_bytes=_UNPACKED_LIMIT_BYTES)):
        if record.key is None and rules.is_compacted:
            message = "Compacted topic cannot accept message without key"
            without_key.append((index, message))
        elif (
            checks_times
            and (time := record.timestamp) >= 0
            and not (oldest_ms <= time <= newest_ms)
        ):
            message = f"timestamp {time} is not in the range {oldest_ms} to {newest_ms}"
            out_of_time.append((index, message))
    if without_key:
        raise InvalidRecords(Code.INVALID_RECORD, without_key)
    if out_of_time:
        raise InvalidRecords(Code.INVALID_TIMESTAMP, out_of_time)


def _recompress(view: memoryview, header: BatchHeader, rules: TopicConfig) -> bytearray:
    codec = rules.codec or 0
    section = decompress(header.codec, view[HEADER_SIZE:], limit_bytes=_UNPACKED_LIMIT_BYTES)
    packed = bytearray(HEADER_SIZE)
    packed += compress(codec, section, level=rules.codec_level)
    write_header(
        packed,
        record_count=header.record_count,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    # All other attributes of the header are kept.
    Batch(memoryview(packed)).edit(attributes=(header.attributes & ~_CODEC_MASK) | codec)
    return packed
