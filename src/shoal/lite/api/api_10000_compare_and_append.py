"""CompareAndAppend (10000, ours), version 0: how mirrors write, at the offsets of their source.

Behaviour
- Each entry names the end that the mirror expects, its epoch, and any number of batches with
  their offsets. They are written if the log ends there: all of them, or none (`log.units`).
- Offsets may leave gaps, but never go back. Producer ids, transactions and control batches do
  not come this way: INVALID_RECORD. Batches are not changed, but for the leader's epoch and a
  bit that says which were written together.
- The log ends elsewhere: OFFSET_OUT_OF_RANGE, with the true end, once that is on all in-sync
  replicas: a mirror goes on from there. So a repeated request writes nothing twice.
- A higher mirror's epoch takes the partition over, by way of the metadata: it holds whoever
  leads. A lower one: PRODUCER_FENCED. An entry without records takes over, and tells the end.
- Otherwise as Produce with acks=all.
- It is switched off by the feature `shoal.compare-and-append`: UNSUPPORTED_VERSION.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.configs import TopicRules
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.metadata.data.requests import SET, AlterConfigs, ConfigChange
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


async def handle(core: BrokerCore, request: Request) -> Answer:
    timeout_ms, entries = decode_request(request.frame, request.header.body_position)
    answers = await asyncio.gather(
        *(_answered(core, entry, max(0, timeout_ms)) for entry in entries)
    )
    return [encode_response(correlation_id=request.header.correlation_id, answers=answers)]


async def _answered(core: BrokerCore, entry: ReceivedEntry, timeout_ms: int) -> EntryAnswer:
    try:
        return await _appended(core, entry, timeout_ms)
    except Refused as refused:
        return EntryAnswer(entry.topic, entry.partition, refused.code, error_message=str(refused))


async def _appended(core: BrokerCore, entry: ReceivedEntry, timeout_ms: int) -> EntryAnswer:
    if not core.state.features()[COMPARE_AND_APPEND]:
        raise Refused(Code.UNSUPPORTED_VERSION, "this cluster takes no mirrors' appends")
    partition = core.partition(entry.topic, entry.partition)
    _ = partition.leader
    await _take_over(core, entry)
    # From here to the writing nothing else runs.
    partition = core.partition(entry.topic, entry.partition)
    partition.leader.check_acks(ALL_ACKS)
    done: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
    on_acked = partial(_resolve, done)
    end = partition.log.end_offset
    if entry.expected_end != end:
        return await _mismatch(partition, entry, timeout_ms)
    if not entry.records:
        partition.await_end(timeout_ms=timeout_ms, on_acked=on_acked)
    else:
        headers = _checked(entry.records, end, partition.rules)
        if not partition.log.can_reach(headers[-1].last_offset):
            raise _invalid(f"offset {headers[-1].last_offset} is too far behind the end {end}")
        headers = _bound_together(entry.records, headers)
        end = headers[-1].last_offset + 1
        partition.append_unit(entry.records, headers, timeout_ms=timeout_ms, on_acked=on_acked)
    if (code := await done) != Code.NONE:
        raise Refused(code, code.name)
    return EntryAnswer(entry.topic, entry.partition, log_end=end)


async def _take_over(core: BrokerCore, entry: ReceivedEntry) -> None:
    """Compare the mirror's epoch; a higher one is written down before it counts."""
    known = core.state.mirror_epoch(entry.topic, entry.partition)
    if entry.mirror_epoch < known or entry.mirror_epoch < 0:
        message = f"a mirror of epoch {known} has taken over; this one is of {entry.mirror_epoch}"
        raise Refused(Code.PRODUCER_FENCED, message)
    if entry.mirror_epoch > known:
        change = ConfigChange(str(entry.partition), SET, str(entry.mirror_epoch))
        await core.controller.submit(AlterConfigs(MIRROR, entry.topic, [change]))
        # Another mirror may have been faster; what this broker has seen by now decides.
        known = core.state.mirror_epoch(entry.topic, entry.partition)
        if entry.mirror_epoch != known:
            raise Refused(Code.PRODUCER_FENCED, f"a mirror of epoch {known} has taken over")


async def _mismatch(partition: Partition, entry: ReceivedEntry, timeout_ms: int) -> EntryAnswer:
    done: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
    end = partition.log.end_offset
    partition.await_end(timeout_ms=timeout_ms, on_acked=partial(_resolve, done))
    if (code := await done) != Code.NONE:
        raise Refused(code, f"the log ends at {end}, but not yet on all in-sync replicas")
    message = f"the log ends at {end}, not at {entry.expected_end}"
    return EntryAnswer(entry.topic, entry.partition, Code.OFFSET_OUT_OF_RANGE, end, message)


def _resolve(future: "asyncio.Future[Code]", code: Code) -> None:
    if not future.done():
        future.set_result(code)


def _checked(records: memoryview, next_offset: int, rules: TopicRules) -> list[BatchHeader]:
    """The headers of all batches; `Refused` unless every one may be written."""
    headers: list[BatchHeader] = []
    position = 0
    while position < len(records):
        if len(records) - position < HEADER_SIZE:
            raise _invalid(f"{len(records) - position} bytes behind the last batch")
        header = unpack_header(records, position)
        end = position + header.size
        if header.batch_length < LEAST_BATCH_LENGTH or end > len(records):
            raise _invalid(f"a batch of {header.size} bytes, of which not all are there")
        _check(records[position:end], header, next_offset, rules)
        headers.append(header)
        next_offset = header.last_offset + 1
        position = end
    return headers


def _check(batch: memoryview, header: BatchHeader, next_offset: int, rules: TopicRules) -> None:
    if header.magic != MAGIC or header.codec > max(Codec):
        raise _invalid(f"a batch of format {header.magic}, compression {header.codec}")
    if header.size > rules.max_message_bytes:
        message = f"{header.size} bytes; max.message.bytes is {rules.max_message_bytes}"
        raise Refused(Code.MESSAGE_TOO_LARGE, message)
    if crc32c(batch[CHECKED_START:]) != header.crc:
        message = f"the checksum of the batch at {header.base_offset} is not that of its bytes"
        raise Refused(Code.CORRUPT_MESSAGE, message)
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        raise _invalid(f"a batch at {header.base_offset} does not follow {next_offset}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise _invalid(
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    if header.producer_id != NO_PRODUCER_ID or header.is_control or header.is_transactional:
        raise _invalid("producer ids, transactions and markers cannot be mirrored this way")


def _bound_together(records: memoryview, headers: Sequence[BatchHeader]) -> list[BatchHeader]:
    """The headers, with the bit that says which batches were written together, and only there."""
    bound = []
    position = 0
    for number, header in enumerate(headers, 1):
        view = records[position : position + header.size]
        attributes = header.attributes & ~CONTINUED_BIT
        if number < len(headers):
            attributes |= CONTINUED_BIT
        if attributes != header.attributes:
            Batch(view).edit(attributes=attributes)
            bound.append(unpack_header(view))
        else:
            bound.append(header)
        position += header.size
    return bound


def _invalid(message: str) -> Refused:
    return Refused(Code.INVALID_RECORD, message)


API = register(ApiKey.COMPARE_AND_APPEND, 0, 0, handle)
