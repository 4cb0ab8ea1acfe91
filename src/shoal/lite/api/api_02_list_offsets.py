"""ListOffsets (2), versions 1 to 11.

Behaviour
- Timestamp -1: the high watermark, or the last stable offset for read_committed;
  OFFSET_NOT_AVAILABLE while a new leader does not know it. -2: the log start offset. -3 (version 7,
  KIP-734): the newest record. Any other: the first record that is at least as new; offset -1 if no
  record is.
- A lookup by time decodes one batch to find the record.
- Records at or above the offset that -1 returns are not found.
- A partition that is named twice gets INVALID_REQUEST.
- Leader epochs of clients are checked (KIP-320); the response has the epoch of the found record.

Versions
- 2 isolation level. 4 leader epochs. 6 flexible. 7 max timestamp. 8 to 11 tiered storage
  (KIP-405, KIP-1005, KIP-1023), which does not exist here: the earliest local offset (-4) is the
  log start offset, and nothing is in remote storage (-5) or waits to be uploaded (-6).
"""

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.partitions.partition import Partition
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import NO_LEADER_EPOCH, Batch
from shoal.wire.errors import WireError
from shoal.wire.fetch import READ_COMMITTED
from shoal.wire.records.records import Record, decode_records

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import (
        ListOffsetsRequest,
        ListOffsetsRequestPartition,
        ListOffsetsResponse,
        ListOffsetsResponsePartition,
    )

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6
_FIRST_VERSIONS = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_NEVER = 1 << 15
_FIRST_WITH_ISOLATION = 2
_FIRST_WITH_LEADER_EPOCH = 4


class _LookupOptions(NamedTuple):
    version: int
    is_read_committed: bool


class _OffsetResult(NamedTuple):
    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


def handle(
    core: BrokerCore, request: "ApiRequest[ListOffsetsRequest, ListOffsetsResponse]"
) -> Answer:
    body = request.body()
    isolation = body.isolation_level if request.version >= _FIRST_WITH_ISOLATION else 0
    options = _LookupOptions(request.version, isolation == READ_COMMITTED)
    mentions = Counter(
        (topic.name, item.partition_index) for topic in body.topics for item in topic.partitions
    )
    return request.answer(
        {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        _find_partition_offset(core, options, topic.name, item)
                        if mentions[topic.name, item.partition_index] == 1
                        else _error_answer(item, Code.INVALID_REQUEST)
                        for item in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
        }
    )


def _find_partition_offset(
    core: BrokerCore, options: _LookupOptions, topic: str, item: "ListOffsetsRequestPartition"
) -> "ListOffsetsResponsePartition":
    try:
        partition = core.partition(topic, item.partition_index)
        has_epoch = options.version >= _FIRST_WITH_LEADER_EPOCH
        partition.leader.check_epoch(item.current_leader_epoch if has_epoch else NO_LEADER_EPOCH)
        partition.log.require_online()
        result = _find_offset(partition, item.timestamp, options)
    except ApiError as error:
        return _error_answer(item, error.code)
    return {
        "partition_index": item.partition_index,
        "error_code": 0,
        "offset": result.offset,
        "timestamp": result.timestamp,
        "leader_epoch": result.leader_epoch,
    }


def _error_answer(
    item: "ListOffsetsRequestPartition", code: Code
) -> "ListOffsetsResponsePartition":
    return {"partition_index": item.partition_index, "error_code": code}


def _latest_offset(partition: Partition, options: _LookupOptions) -> int:
    latest_offset = partition.leader.latest_offset()
    return partition.last_stable_offset if options.is_read_committed else latest_offset


def _find_offset(partition: Partition, timestamp_ms: int, options: _LookupOptions) -> _OffsetResult:
    log = partition.log
    if timestamp_ms < 0 and options.version < _FIRST_VERSIONS.get(timestamp_ms, _NEVER):
        message = f"version {options.version} does not support timestamp {timestamp_ms}"
        raise ApiError(Code.UNSUPPORTED_VERSION, message)
    if timestamp_ms == _LATEST:
        return _OffsetResult(
            _latest_offset(partition, options), leader_epoch=partition.leader.leader_epoch
        )
    if timestamp_ms in {_EARLIEST, _EARLIEST_LOCAL}:
        return _OffsetResult(log.start_offset, leader_epoch=log.epochs.epoch_of(log.start_offset))
    if timestamp_ms in {_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD}:
        return _OffsetResult()
    if timestamp_ms == _MAX_TIMESTAMP:
        data = log.batch_of_max_time()
        records = _records_of(data, log.start_offset)
        found = max(records, key=lambda record: record.timestamp, default=None)
    else:
        data = log.batch_of_time(timestamp_ms)
        records = _records_of(data, log.start_offset)
        found = next((record for record in records if record.timestamp >= timestamp_ms), None)
    if found is None or found.offset >= _latest_offset(partition, options):
        return _OffsetResult()
    return _OffsetResult(found.offset, found.timestamp, log.epochs.epoch_of(found.offset))


def _records_of(data: bytes | None, start_offset: int) -> list[Record]:
    if data is None:
        return []
    try:
        records = decode_records(Batch(memoryview(data)))
    except WireError as error:
        raise ApiError(Code.CORRUPT_MESSAGE, f"cannot decode a batch: {error}") from error
    return [record for record in records if record.offset >= start_offset]


API = register(ApiKey.LIST_OFFSETS, 1, 11, handle)
