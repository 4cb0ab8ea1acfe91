"""Helpers for answers to the fetches of consumers and followers."""

from collections.abc import Sequence

from shoal.lite.base.codes import Code
from shoal.lite.broker.registry import Answer, RawRequest
from shoal.lite.storage.slices import LogSlice
from shoal.wire.fetch import (
    NO_SESSION_ID,
    PartitionAnswer,
    encode_fetch_response,
)
from shoal.wire.record_messages import NodeEndpoint

Fetched = PartitionAnswer[memoryview | LogSlice]


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
