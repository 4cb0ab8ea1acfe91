"""OffsetDelete (47), version 0.

Behaviour
- Offsets of topics that the members of a group do not want any more; of a group without members
  any (KIP-496). GROUP_SUBSCRIBED_TO_TOPIC and UNKNOWN_TOPIC_OR_PARTITION for single partitions,
  GROUP_ID_NOT_FOUND for the whole, NON_EMPTY_GROUP if the members are no consumers.
- Partitions without an offset are answered as if there had been one.
"""

from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.coordinator.groups.group import Group, State
from shoal.lite.coordinator.groups.records import OffsetKey
from shoal.wire.api_keys import ApiKey


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    try:
        shard = core.groups.shard_for(body.group_id)
        wanted = _wanted_topics(body.group_id, shard.group(body.group_id))
        codes = {item.name: _judged(core, item.name, wanted) for item in body.topics}
        await shard.delete_offsets(
            OffsetKey(body.group_id, item.name, partition.partition_index)
            for item in body.topics
            for partition in item.partitions
            if codes[item.name] == Code.NONE
        )
    except Refused as refused:
        return request.answer(error_code=refused.code, topics=[])
    return request.answer(
        error_code=Code.NONE, topics=[_answered(item, codes) for item in body.topics]
    )


def _wanted_topics(group_id: str, group: Group | None) -> set[str]:
    """The topics whose offsets are in use; `Refused` if that cannot be known."""
    if group is None or group.state is State.DEAD:
        raise Refused(Code.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
    if group.state is State.EMPTY:
        return set()
    wanted = group.subscriptions()
    if wanted is None:
        raise Refused(Code.NON_EMPTY_GROUP, f"{group_id!r} has members that are no consumers")
    return wanted


def _judged(core: BrokerCore, topic: str, wanted: set[str]) -> Code:
    if topic not in core.state.topics:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    return Code.GROUP_SUBSCRIBED_TO_TOPIC if topic in wanted else Code.NONE


def _answered(item: Any, codes: dict[str, Code]) -> dict[str, Any]:
    return {
        "name": item.name,
        "partitions": [
            {"partition_index": partition.partition_index, "error_code": codes[item.name]}
            for partition in item.partitions
        ],
    }


API = register(ApiKey.OFFSET_DELETE, 0, 0, handle)
