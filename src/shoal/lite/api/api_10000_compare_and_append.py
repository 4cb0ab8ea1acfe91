"""CompareAndAppend (10000, Shoal's own), version 0: mirrors write at the offsets of their source.

Behaviour
- Each entry has the log end that the mirror expects, the mirror's epoch, and any number of batches
  with their offsets. They are written if the log ends there: all of them, or none (see `units`).
- Offsets may have gaps, but never decrease. Batches with a producer id, transactional batches and
  control batches are refused: INVALID_RECORD. Batches are stored unchanged, except for the leader
  epoch and the bit that marks which batches were written together.
- If the log ends elsewhere: OFFSET_OUT_OF_RANGE with the actual end, once all in-sync replicas have
  it; the mirror continues from there. So a repeated request writes nothing twice.
- A higher mirror epoch takes the partition over. It is stored in the metadata, so it holds under
  every later leader. A lower one: PRODUCER_FENCED. An entry without records takes over, and gets
  the log end.
- Otherwise as Produce with acks=all.
- The feature `shoal.compare-and-append` switches it off: UNSUPPORTED_VERSION.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import TopicConfig
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, RawRequest, register
from shoal.lite.metadata.data.requests import SET, AlterConfigs, ConfigEdit
from shoal.lite.metadata.data.state import MIRROR
from shoal.lite.metadata.rules.features import COMPARE_AND_APPEND
from shoal.lite.partitions.partition import Partition
from shoal.lite.replication.leader import ALL_ACKS
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import (
    CHECKED_START,
    CONTINUED_BIT,
    LEAST_BATCH_LENGTH,
    MAGIC,
    NO_PRODUCER_ID,
    Batch,
)
from shoal.wire.compare_and_append import (
    EntryAnswer,
    ReceivedEntry,
    decode_request,
    encode_response,
)
from shoal.wire.records.compression import Codec
from shoal.wire.records.crc import crc32c


async def handle(core: BrokerCore, request: RawRequest) -> Answer:
    timeout_ms, entries = decode_request(request.frame, request.header.body_position)
    answers = await asyncio.gather(
        *(_handle_entry(core, entry, max(0, timeout_ms)) for entry in entries)
    )
    return [encode_response(correlation_id=request.header.correlation_id, answers=answers)]


async def _handle_entry(core: BrokerCore, entry: ReceivedEntry, timeout_ms: int) -> EntryAnswer:
    try:
        return await _append_entry(core, entry, timeout_ms)
    except ApiError as error:
        return EntryAnswer(entry.topic, entry.partition, error.code, error_message=str(error))


async def _append_entry(core: BrokerCore, entry: ReceivedEntry, timeout_ms: int) -> EntryAnswer:
    if not core.state.features()[COMPARE_AND_APPEND]:
        raise ApiError(
            Code.UNSUPPORTED_VERSION,
            "CompareAndAppend is disabled: feature shoal.compare-and-append is 0",
        )
    partition = core.partition(entry.topic, entry.partition)
    _ = partition.leader
    await _take_over(core, entry)
    # No await from here to the append: nothing can change the log in between.
    partition = core.partition(entry.topic, entry.partition)
    partition.leader.check_acks(ALL_ACKS)
    done: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
    on_acked = partial(_resolve, done)
    end = partition.log.end_offset
    if entry.expected_end != end:
        return await _report_log_end(partition, entry, timeout_ms)
    if not entry.records:
        partition.await_replication(timeout_ms=timeout_ms, on_acked=on_acked)
    else:
        headers = _validate_batches(entry.records, end, partition.rules)
        if not partition.log.can_reach(headers[-1].last_offset):
            raise _record_error(
                f"offset {headers[-1].last_offset} is too far above the log end {end}"
            )
        headers = _set_continued_bits(entry.records, headers)
        end = headers[-1].last_offset + 1
        partition.append_unit(entry.records, headers, timeout_ms=timeout_ms, on_acked=on_acked)
    if (code := await done) != Code.NONE:
        raise ApiError(code, code.name)
    return EntryAnswer(entry.topic, entry.partition, log_end=end)


async def _take_over(core: BrokerCore, entry: ReceivedEntry) -> None:
    """Check the mirror's epoch; a higher one is stored in the metadata before it is used."""
    known = core.state.mirror_epoch(entry.topic, entry.partition)
    if entry.mirror_epoch < known or entry.mirror_epoch < 0:
        message = (
            f"a mirror of epoch {known} has taken over; this mirror has epoch {entry.mirror_epoch}"
        )
        raise ApiError(Code.PRODUCER_FENCED, message)
    if entry.mirror_epoch > known:
        change = ConfigEdit(str(entry.partition), SET, str(entry.mirror_epoch))
        await core.controller.submit(AlterConfigs(MIRROR, entry.topic, [change]))
        # Another mirror may have taken over at the same time: read the epoch again.
        known = core.state.mirror_epoch(entry.topic, entry.partition)
        if entry.mirror_epoch != known:
            raise ApiError(Code.PRODUCER_FENCED, f"a mirror of epoch {known} has taken over")


async def _report_log_end(
    partition: Partition, entry: ReceivedEntry, timeout_ms: int
) -> EntryAnswer:
    done: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
    end = partition.log.end_offset
    partition.await_replication(timeout_ms=timeout_ms, on_acked=partial(_resolve, done))
    if (code := await done) != Code.NONE:
        raise ApiError(code, f"not all in-sync replicas have the log up to its end {end}")
    message = f"the log ends at {end}, not at {entry.expected_end}"
    return EntryAnswer(entry.topic, entry.partition, Code.OFFSET_OUT_OF_RANGE, end, message)


def _resolve(future: "asyncio.Future[Code]", code: Code) -> None:
    if not future.done():
        future.set_result(code)


def _validate_batches(
    records: memoryview, next_offset: int, rules: TopicConfig
) -> list[BatchHeader]:
    """The headers of all batches; `ApiError` if one of them may not be written."""
    headers: list[BatchHeader] = []
    position = 0
    while position < len(records):
        if len(records) - position < HEADER_SIZE:
            raise _record_error(f"{len(records) - position} bytes after the last batch")
        header = unpack_header(records, position)
        end = position + header.size
        if header.batch_length < LEAST_BATCH_LENGTH or end > len(records):
            raise _record_error(f"a batch of {header.size} bytes is incomplete")
        _validate_batch(records[position:end], header, next_offset, rules)
        headers.append(header)
        next_offset = header.last_offset + 1
        position = end
    return headers


def _validate_batch(
    batch: memoryview, header: BatchHeader, next_offset: int, rules: TopicConfig
) -> None:
    if header.magic != MAGIC or header.codec > max(Codec):
        raise _record_error(
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
        raise _record_error(
            f"a batch at offset {header.base_offset} is below the next offset {next_offset}"
        )
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise _record_error(
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    if header.producer_id != NO_PRODUCER_ID or header.is_control or header.is_transactional:
        raise _record_error(
            "batches with producer ids, transactions or markers cannot be mirrored this way"
        )


def _set_continued_bits(records: memoryview, headers: Sequence[BatchHeader]) -> list[BatchHeader]:
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


def _record_error(message: str) -> ApiError:
    return ApiError(Code.INVALID_RECORD, message)


API = register(ApiKey.COMPARE_AND_APPEND, 0, 0, handle)
