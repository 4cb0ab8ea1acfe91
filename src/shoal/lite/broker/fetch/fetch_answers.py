"""Helpers for answers to the fetches of consumers and followers."""

from collections.abc import Sequence

from shoal.lite.base.codes import Code
from shoal.lite.broker.registry import Answer, RawRequest
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.slices import LogSlice
from shoal.wire.fetch import (
    NO_OFFSET,
    NO_SESSION_ID,
    FetchPartition,
    PartitionAnswer,
    encode_fetch_response,
)
from shoal.wire.record_messages import NodeEndpoint

# Smaller record sets are cheaper to read and send with the rest of the response.
_LEAST_SENT_FROM_FILE_BYTES = 100 * 1024


Fetched = PartitionAnswer[memoryview | LogSlice]


def as_records(log: PartitionLog, records: LogSlice) -> memoryview | LogSlice:
    """Return a record set for an answer; large ones are sent from their file.

    Raise `LogOffline` if the log cannot be read.
    """
    if records.size < _LEAST_SENT_FROM_FILE_BYTES:
        return memoryview(log.content(records))
    return records


def error_answer(item: FetchPartition, code: Code, log_start_offset: int = NO_OFFSET) -> Fetched:
    return PartitionAnswer(
        item.topic,
        item.topic_id,
        item.partition,
        error_code=code,
        high_watermark=NO_OFFSET,
        last_stable_offset=NO_OFFSET,
        log_start_offset=log_start_offset,
    )


def encode_answer(
    request: RawRequest,
    partitions: Sequence[Fetched],
    error_code: Code = Code.NONE,
    *,
    session_id: int = NO_SESSION_ID,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> Answer:
    return encode_fetch_response(
        request.version,
        correlation_id=request.header.correlation_id,
        session_id=session_id,
        error_code=error_code,
        partitions=partitions,
        node_endpoints=node_endpoints,
    )
