"""OffsetForLeaderEpoch (23), versions 2 to 4 (KIP-101, KIP-320).

Behaviour
- The end of a leader epoch: the largest epoch that is not above the requested one, and the offset
  after its last record, which is the log end offset for the current epoch. A client whose position
  is above that offset has read records that were truncated since.
- Epoch -1 and offset -1 if the requested epoch is above all known epochs.
- Only the leader answers; the leader epochs of clients are checked.

Versions
- 3 replica id. 4 flexible.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.replication.history import end_of_epoch
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochRequestPartition,
        OffsetForLeaderEpochResponse,
        OffsetForLeaderEpochResponseEndOffset,
    )


def handle(
    core: BrokerCore,
    request: "ApiRequest[OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse]",
) -> Answer:
    return request.answer(
        {
            "topics": [
                {
                    "topic": topic.topic,
                    "partitions": [
                        _find_epoch_end(core, topic.topic, item) for item in topic.partitions
                    ],
                }
                for topic in request.body().topics
            ]
        }
    )


def _find_epoch_end(
    core: BrokerCore, topic: str, item: "OffsetForLeaderEpochRequestPartition"
) -> "OffsetForLeaderEpochResponseEndOffset":
    answer: OffsetForLeaderEpochResponseEndOffset = {
        "partition": item.partition,
        "error_code": Code.NONE,
    }
    try:
        partition = core.partition(topic, item.partition)
        partition.leader.check_epoch(item.current_leader_epoch)
    except ApiError as error:
        return answer | {"error_code": error.code}
    log = partition.log
    end = end_of_epoch(log.epochs, item.leader_epoch, log.end_offset)
    if end is None:
        return answer
    return answer | {"leader_epoch": end.epoch, "end_offset": end.end_offset}


API = register(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, handle)
