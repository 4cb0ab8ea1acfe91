"""What answers to consumers and to followers have in common."""

from collections.abc import Sequence
from typing import cast

from shoal.lite.api.registry import Answer, Request
from shoal.lite.codes import Code
from shoal.lite.log.slices import LogSlice
from shoal.wire.fetch import (
    NO_OFFSET,
    NO_SESSION_ID,
    FetchedPartition,
    FetchPartition,
    encode_fetch_response,
)

# Less than this is cheaper to read and to send along with the rest of the response.
_LEAST_SENT_FROM_FILE_BYTES = 16 * 1024


def as_records(records: LogSlice) -> memoryview:
    """A record set for the encoder, which leaves large ones in their file."""
    if len(records) < _LEAST_SENT_FROM_FILE_BYTES:
        return memoryview(bytes(records))
    # The encoder puts record sets among its parts as they are: the connection sends this one
    # from the file. Only its length is looked at on the way.
    return cast("memoryview", [records])


def failed(item: FetchPartition, code: Code, log_start_offset: int = NO_OFFSET) -> FetchedPartition:
    return FetchedPartition(
        item.topic,
        item.topic_id,
        item.partition,
        error_code=code,
        high_watermark=NO_OFFSET,
        last_stable_offset=NO_OFFSET,
        log_start_offset=log_start_offset,
    )


def encoded(
    request: Request, partitions: Sequence[FetchedPartition], error_code: Code = Code.NONE
) -> Answer:
    return encode_fetch_response(
        request.version,
        correlation_id=request.header.correlation_id,
        session_id=NO_SESSION_ID,
        error_code=error_code,
        partitions=partitions,
    )
