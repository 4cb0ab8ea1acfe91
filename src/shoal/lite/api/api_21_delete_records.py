"""DeleteRecords (21), versions 0 to 2 (KIP-107).

Behaviour
- Moves the first offset of a partition forward; -1 means to the high watermark. Segments that
  lie wholly before it are removed at once. The answer tells the new first offset.
- An offset before the first one changes nothing. One behind the high watermark:
  OFFSET_OUT_OF_RANGE.
- Followers do the same when they hear of it at their next fetch; the answer does not wait for
  them, where Apache Kafka's does.

Versions
- 2 flexible.
"""

from typing import Any

from shoal.lite.api.registry import Answer, Request, register
from shoal.lite.codes import Code, Refused
from shoal.lite.core import BrokerCore
from shoal.wire.api_keys import ApiKey

_TO_HIGH_WATERMARK = -1


def handle(core: BrokerCore, request: Request) -> Answer:
    return request.answer(
        topics=[
            {
                "name": topic.name,
                "partitions": [_deleted(core, topic.name, item) for item in topic.partitions],
            }
            for topic in request.body().topics
        ]
    )


def _deleted(core: BrokerCore, topic: str, item: Any) -> dict[str, Any]:
    try:
        low_watermark, code = _low_watermark(core, topic, item), Code.NONE
    except Refused as refused:
        low_watermark, code = -1, refused.code
    return {
        "partition_index": item.partition_index,
        "low_watermark": low_watermark,
        "error_code": code,
    }


def _low_watermark(core: BrokerCore, topic: str, item: Any) -> int:
    partition = core.partition(topic, item.partition_index)
    end = partition.leader.high_watermark
    offset = end if item.offset == _TO_HIGH_WATERMARK else item.offset
    if not 0 <= offset <= end:
        raise Refused(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is not in 0 to {end}")
    partition.log.delete_before(offset)
    return partition.log.start_offset


API = register(ApiKey.DELETE_RECORDS, 0, 2, handle)
