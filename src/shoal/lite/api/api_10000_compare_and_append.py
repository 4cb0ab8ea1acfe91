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
from functools import partial

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, RawRequest, register
from shoal.lite.metadata.data.requests import SET, AlterConfigs, ConfigEdit
from shoal.lite.metadata.data.state import MIRROR
from shoal.lite.metadata.rules.features import COMPARE_AND_APPEND
from shoal.lite.partitions.admission.decisions import (
    admit_unit,
    check_log_end,
    check_mirror_epoch,
    check_mirror_takeover,
)
from shoal.lite.partitions.partition import Partition
from shoal.wire.api_keys import ApiKey
from shoal.wire.compare_and_append import (
    EntryAnswer,
    ReceivedEntry,
    decode_request,
    encode_response,
)


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
    end = partition.log.end_offset
    if mismatch := check_log_end(partition.leader, end, entry.expected_end):
        return await _report_log_end(partition, entry, timeout_ms, mismatch)
    done: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
    on_acked = partial(_resolve, done)
    if not entry.records:
        partition.await_replication(timeout_ms=timeout_ms, on_acked=on_acked)
    else:
        headers = admit_unit(entry.records, partition.log, partition.rules)
        end = headers[-1].last_offset + 1
        partition.append_unit(entry.records, headers, timeout_ms=timeout_ms, on_acked=on_acked)
    if (code := await done) != Code.NONE:
        raise ApiError(code, code.name)
    return EntryAnswer(entry.topic, entry.partition, log_end=end)


async def _take_over(core: BrokerCore, entry: ReceivedEntry) -> None:
    """Check the mirror's epoch; a higher one is stored in the metadata before it is used."""
    known = core.state.mirror_epoch(entry.topic, entry.partition)
    check_mirror_epoch(entry.mirror_epoch, known)
    if entry.mirror_epoch > known:
        change = ConfigEdit(str(entry.partition), SET, str(entry.mirror_epoch))
        await core.controller.submit(AlterConfigs(MIRROR, entry.topic, [change]))
        known = core.state.mirror_epoch(entry.topic, entry.partition)
        check_mirror_takeover(entry.mirror_epoch, known)


async def _report_log_end(
    partition: Partition, entry: ReceivedEntry, timeout_ms: int, mismatch: ApiError
) -> EntryAnswer:
    done: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
    end = partition.log.end_offset
    partition.await_replication(timeout_ms=timeout_ms, on_acked=partial(_resolve, done))
    if (code := await done) != Code.NONE:
        raise ApiError(code, f"not all in-sync replicas have the log up to its end {end}")
    return EntryAnswer(entry.topic, entry.partition, mismatch.code, end, str(mismatch))


def _resolve(future: "asyncio.Future[Code]", code: Code) -> None:
    if not future.done():
        future.set_result(code)


API = register(ApiKey.COMPARE_AND_APPEND, 0, 0, handle)
