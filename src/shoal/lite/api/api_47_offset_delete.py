"""OffsetDelete (47), version 0.

Behaviour
- Deletes offsets of topics to which no member of the group is subscribed; in a group without
  members, any offsets (KIP-496). GROUP_SUBSCRIBED_TO_TOPIC and UNKNOWN_TOPIC_OR_PARTITION for
  single partitions, GROUP_ID_NOT_FOUND for the whole request, NON_EMPTY_GROUP if the members are
  not consumers.
- A partition without an offset gets the same answer as one with an offset.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.group import ClassicGroup, ClassicGroupState
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
        shard = core.groups.shard_for(body.group_id)
        wanted = _topics_in_use(body.group_id, shard.group(body.group_id))
        codes = {item.name: _check_topic(core, item.name, wanted) for item in body.topics}
        await shard.delete_offsets(
            OffsetKey(body.group_id, item.name, partition.partition_index)
            for item in body.topics
            for partition in item.partitions
            if codes[item.name] == Code.NONE
        )
    except ApiError as error:
        return request.answer({"error_code": error.code, "topics": []})
    return request.answer(
        {"error_code": Code.NONE, "topics": [_topic_result(item, codes) for item in body.topics]}
    )


def _topics_in_use(group_id: str, group: ClassicGroup | None) -> set[str]:
    """The topics that members are subscribed to; `ApiError` if that is unknown."""
    if group is None or group.state is ClassicGroupState.DEAD:
        raise ApiError(Code.GROUP_ID_NOT_FOUND, f"group {group_id!r} does not exist")
    if group.state is ClassicGroupState.EMPTY:
        return set()
    wanted = group.subscriptions()
    if wanted is None:
        raise ApiError(
            Code.NON_EMPTY_GROUP, f"group {group_id!r} has members that are not consumers"
        )
    return wanted


def _check_topic(core: BrokerCore, topic: str, wanted: set[str]) -> Code:
    if topic not in core.state.topics:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    return Code.GROUP_SUBSCRIBED_TO_TOPIC if topic in wanted else Code.NONE


def _topic_result(
    item: "OffsetDeleteRequestTopic", codes: dict[str, Code]
) -> "OffsetDeleteResponseTopic":
    return {
        "name": item.name,
        "partitions": [
            {"partition_index": partition.partition_index, "error_code": codes[item.name]}
            for partition in item.partitions
        ],
    }


API = register(ApiKey.OFFSET_DELETE, 0, 0, handle)
