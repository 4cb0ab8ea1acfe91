"""OffsetForLeaderEpoch (23), versions 2 to 4 (KIP-101, KIP-320).

Behaviour
- Where the records of a leader epoch end: the largest epoch that is not above the asked one, and
  the offset behind its last record, which for the current epoch is the end of the log. A client
  whose position lies behind that has read what was given up since.
- Epoch -1 and offset -1 if that cannot be told: for epochs above all that are known here.
- Only the leader answers; the leader epochs of clients are checked.

Versions
- 3 replica id. 4 flexible.
"""

from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.replication.history import end_of_epoch
from shoal.wire.api_keys import ApiKey


def handle(core: BrokerCore, request: Request) -> Answer:
    return request.answer(
        topics=[
            {
                "topic": topic.topic,
                "partitions": [_answered(core, topic.topic, item) for item in topic.partitions],
            }
            for topic in request.body().topics
        ]
    )


def _answered(core: BrokerCore, topic: str, item: Any) -> dict[str, Any]:
    answer = {"partition": item.partition, "error_code": Code.NONE}
    try:
        partition = core.partition(topic, item.partition)
        partition.leader.check_epoch(item.current_leader_epoch)
    except Refused as refused:
        return answer | {"error_code": refused.code}
    log = partition.log
    end = end_of_epoch(log.epochs, item.leader_epoch, log.end_offset)
    if end is None:
        return answer
    return answer | {"leader_epoch": end.epoch, "end_offset": end.end_offset}


API = register(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, handle)
