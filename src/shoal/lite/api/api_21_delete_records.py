"""DeleteRecords (21), versions 0 to 2 (KIP-107).

Behaviour
- Moves the first offset of a partition forward; -1 means to the high watermark. Segments that
  lie wholly before it are removed at once.
- The answer waits until all live replicas have done the same, at most as long as the client
  allows: REQUEST_TIMED_OUT. It tells the lowest first offset among them.
- An offset before the first one changes nothing. One behind the high watermark:
  OFFSET_OUT_OF_RANGE. Topics that are only compacted: POLICY_VIOLATION.

Versions
- 2 flexible.
"""

import asyncio
from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.partitions.partition import Partition
from shoal.wire.api_keys import ApiKey

_TO_HIGH_WATERMARK = -1
_NO_OFFSET = -1


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    patience_s = max(0.0, body.timeout.total_seconds())
    deadline_s = asyncio.get_running_loop().time() + patience_s
    begun: list[tuple[str, list[_Deletion]]] = []
    for topic in body.topics:
        begun.append((topic.name, []))
        for item in topic.partitions:
            begun[-1][1].append(_begun(core, topic.name, item))
            # Each forces its new start to the disk: of many, others have a turn in between.
            await asyncio.sleep(0)
    return request.answer(
        topics=[
            {"name": name, "partitions": [await item.answer(deadline_s) for item in items]}
            for name, items in begun
        ]
    )


class _Deletion:
    """What is deleted of one partition, and how far that has come."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.code = Code.NONE
        self.partition: Partition | None = None
        self.done: asyncio.Future[Code] | None = None

    async def answer(self, deadline_s: float) -> dict[str, Any]:
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


def _begun(core: BrokerCore, topic: str, item: Any) -> _Deletion:
    deletion = _Deletion(item.partition_index)
    try:
        deletion.partition = core.partition(topic, item.partition_index)
        deletion.done = _delete(deletion.partition, item.offset)
    except Refused as refused:
        deletion.code = refused.code
    return deletion


def _delete(partition: Partition, asked: int) -> "asyncio.Future[Code]":
    end = partition.leader.high_watermark
    if not partition.rules.log.deletes:
        message = f"{partition!r}: without delete in cleanup.policy no records are deleted"
        raise Refused(Code.POLICY_VIOLATION, message)
    offset = end if asked == _TO_HIGH_WATERMARK else asked
    if not 0 <= offset <= end:
        raise Refused(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is not in 0 to {end}")
    return partition.delete_before(offset)


API = register(ApiKey.DELETE_RECORDS, 0, 2, handle)
