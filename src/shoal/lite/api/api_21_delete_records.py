"""DeleteRecords (21), versions 0 to 2 (KIP-107).

Behaviour
- Moves the log start offset of a partition forward; -1 means to the high watermark. Segments that
  lie completely before it are removed at once.
- The response waits until all live replicas have done the same, at most the request's timeout:
  REQUEST_TIMED_OUT. It has the lowest log start offset of these replicas (the low watermark).
- An offset before the log start offset changes nothing. An offset above the high watermark:
  OFFSET_OUT_OF_RANGE. Topics that are only compacted: POLICY_VIOLATION.

Versions
- 2 flexible.
"""

import asyncio
from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.partitions.partition import Partition
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import (
        DeleteRecordsRequest,
        DeleteRecordsRequestPartition,
        DeleteRecordsResponse,
        DeleteRecordsResponsePartition,
    )

_TO_HIGH_WATERMARK = -1
_NO_OFFSET = -1


async def handle(
    core: BrokerCore, request: "ApiRequest[DeleteRecordsRequest, DeleteRecordsResponse]"
) -> Answer:
    body = request.body()
    timeout_s = max(0.0, body.timeout.total_seconds())
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    deletions: list[tuple[str, list[_Deletion]]] = []
    for topic in body.topics:
        deletions.append((topic.name, []))
        for item in topic.partitions:
            deletions[-1][1].append(_begin_deletion(core, topic.name, item))
            # Each deletion syncs its new start offset to disk: let other work run in between.
            await asyncio.sleep(0)
    return request.answer(
        {
            "topics": [
                {"name": name, "partitions": [await item.answer(deadline_s) for item in items]}
                for name, items in deletions
            ]
        }
    )


class _Deletion:
    """The deletion in one partition, and its result."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.code = Code.NONE
        self.partition: Partition | None = None
        self.done: asyncio.Future[Code] | None = None

    async def answer(self, deadline_s: float) -> "DeleteRecordsResponsePartition":
        if self.done is not None:
            try:
                async with asyncio.timeout_at(deadline_s):
                    self.code = await self.done
            except TimeoutError:
                self.code = Code.REQUEST_TIMED_OUT
        low_watermark = _NO_OFFSET
        if self.code == Code.NONE and self.partition is not None:
            leader = self.partition.replica.leader
            low_watermark = _NO_OFFSET if leader is None else leader.low_watermark
        return {
            "partition_index": self.index,
            "low_watermark": low_watermark,
            "error_code": self.code,
        }


def _begin_deletion(
    core: BrokerCore, topic: str, item: "DeleteRecordsRequestPartition"
) -> _Deletion:
    deletion = _Deletion(item.partition_index)
    try:
        deletion.partition = core.partition(topic, item.partition_index)
        deletion.done = _delete(deletion.partition, item.offset)
    except ApiError as error:
        deletion.code = error.code
    return deletion


def _delete(partition: Partition, requested_offset: int) -> "asyncio.Future[Code]":
    end = partition.leader.high_watermark
    if not partition.rules.log.deletes:
        message = (
            f"{partition!r}: records cannot be deleted: cleanup.policy does not contain delete"
        )
        raise ApiError(Code.POLICY_VIOLATION, message)
    offset = end if requested_offset == _TO_HIGH_WATERMARK else requested_offset
    if not 0 <= offset <= end:
        raise ApiError(
            Code.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is not between 0 and the high watermark {end}",
        )
    future: asyncio.Future[Code] = asyncio.get_running_loop().create_future()

    def on_deleted(code: Code) -> None:
        # The request may have timed out.
        if not future.done():
            future.set_result(code)

    partition.delete_before(offset, on_deleted)
    return future


API = register(ApiKey.DELETE_RECORDS, 0, 2, handle)
