"""What a topic may demand of single records: keys, timestamps, a codec of its own. Pure.

Most topics demand nothing, and their batches are never unpacked. The others are:

- compacted topics: a record without a key has no place there;
- topics with `message.timestamp.before.max.ms`: the header names only the newest timestamp;
- topics with a `compression.type`: batches in another codec are packed anew. Producer, sequence
  and timestamps stay as they were.

What a batch unpacks to is limited, whatever it says of itself.
"""

from typing import Final

from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.configs import TopicRules
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.wire.batch import Batch
from shoal.wire.errors import LimitExceeded, WireError
from shoal.wire.records.compression import compress, decompress
from shoal.wire.records.records import decode_records, write_header

_CODEC_MASK: Final = 0b111
_UNPACKED_LIMIT_BYTES: Final = 128 * 1024 * 1024


class RecordsRefused(Refused):
    """Single records are to blame: which of the batch, and why (KIP-467)."""

    def __init__(self, code: Code, errors: list[tuple[int, str]]) -> None:
        super().__init__(code, f"{len(errors)} record(s) are refused; the first: {errors[0][1]}")
        self.errors = errors


def are_demanded(header: BatchHeader, rules: TopicRules) -> bool:
    """Whether the topic wants to see the records of a batch."""
    return rules.looks_inside or (rules.codec is not None and rules.codec != header.codec)


def checked_and_packed(
    view: memoryview, header: BatchHeader, rules: TopicRules, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """The batch as the topic wants it; `Refused` if it may not be written."""
    try:
        if rules.looks_inside:
            _check_records(view, header, rules, now_ms)
        if rules.codec is None or rules.codec == header.codec:
            return view, header
        packed = _packed(view, header, rules)
    except LimitExceeded as error:
        raise Refused(Code.MESSAGE_TOO_LARGE, f"a batch unpacks to too much: {error}") from error
    except WireError as error:
        raise Refused(Code.INVALID_RECORD, f"a batch cannot be unpacked: {error}") from error
    if len(packed) > rules.max_message_bytes:
        message = f"{len(packed)} bytes in the topic's codec; max.message.bytes is "
        raise Refused(Code.MESSAGE_TOO_LARGE, f"{message}{rules.max_message_bytes}")
    return memoryview(packed), unpack_header(packed)


def _check_records(view: memoryview, header: BatchHeader, rules: TopicRules, now_ms: int) -> None:
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
            message = f"timestamp {time} is not in {oldest_ms} to {newest_ms}"
            out_of_time.append((index, message))
    if without_key:
        raise RecordsRefused(Code.INVALID_RECORD, without_key)
    if out_of_time:
        raise RecordsRefused(Code.INVALID_TIMESTAMP, out_of_time)


def _packed(view: memoryview, header: BatchHeader, rules: TopicRules) -> bytearray:
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
    # Everything else that the header says stays.
    Batch(memoryview(packed)).edit(attributes=(header.attributes & ~_CODEC_MASK) | codec)
    return packed
