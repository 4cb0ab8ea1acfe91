"""OffsetDelete (47), version 0.

Behaviour
- Deletes offsets of topics to which no member of the group is subscribed; in a group without
  members, any offsets (KIP-496). GROUP_SUBSCRIBED_TO_TOPIC and UNKNOWN_TOPIC_OR_PARTITION for
  single partitions, GROUP_ID_NOT_FOUND for the whole request, NON_EMPTY_GROUP if the members are
  not consumers. Where their subscriptions are not known yet, or cannot be read, every topic counts
  as subscribed.
- A partition without an offset gets the same answer as one with an offset.
"""

from typing import TYPE_CHECKING

from shoal.lite.api.group_requests import member_shard
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.group import CONSUMER, ClassicGroup, ClassicGroupState
from shoal.lite.coordinator.groups.records import OffsetKey
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.groups import (
        OffsetDeleteRequest,
        OffsetDeleteRequestTopic,
        OffsetDeleteResponse,
        OffsetDeleteResponseTopic,
    )


async def handle(
    core: BrokerCore, request: "ApiRequest[OffsetDeleteRequest, OffsetDeleteResponse]"
) -> Answer:
    body = request.body()
    try:
        shard = member_shard(core, body.group_id)
        wanted = _topics_in_use(body.group_id, shard.group(body.group_id))
        codes = {
            (item.name, partition.partition_index): _check_partition(
                core, item.name, partition.partition_index, wanted
            )
            for item in body.topics
            for partition in item.partitions
        }
        await shard.delete_offsets(
            OffsetKey(body.group_id, *place) for place, code in codes.items() if code == Code.NONE
        )
    except ApiError as error:
        return request.answer({"error_code": error.code, "topics": []})
    return request.answer(
        {"error_code": Code.NONE, "topics": [_topic_result(item, codes) for item in body.topics]}
    )


def _topics_in_use(group_id: str, group: ClassicGroup | None) -> set[str] | None:
    """The topics that members subscribe to, None for all; `ApiError` if nothing can be deleted."""
    if group is None or group.state is ClassicGroupState.DEAD:
        raise ApiError(Code.GROUP_ID_NOT_FOUND, f"group {group_id!r} does not exist")
    if group.state is ClassicGroupState.EMPTY:
        return set()
    if group.protocol_type != CONSUMER:
        raise ApiError(
            Code.NON_EMPTY_GROUP, f"group {group_id!r} has members that are not consumers"
        )
    return group.subscriptions()


def _check_partition(core: BrokerCore, name: str, index: int, wanted: set[str] | None) -> Code:
    topic = core.state.topics.get(name)
    if topic is None or index not in topic.partitions:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    is_wanted = wanted is None or name in wanted
    return Code.GROUP_SUBSCRIBED_TO_TOPIC if is_wanted else Code.NONE


def _topic_result(
    item: "OffsetDeleteRequestTopic", codes: dict[tuple[str, int], Code]
) -> "OffsetDeleteResponseTopic":
    return {
        "name": item.name,
        "partitions": [
            {
                "partition_index": partition.partition_index,
                "error_code": codes[item.name, partition.partition_index],
            }
            for partition in item.partitions
        ],
    }


API = register(ApiKey.OFFSET_DELETE, 0, 0, handle)
