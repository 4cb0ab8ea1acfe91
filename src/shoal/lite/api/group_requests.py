"""Shared by the group APIs: find the shard of a group, and read the fields of their requests."""

import datetime as dt
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.coordinator.groups.messages import NO_GENERATION, MemberIdentity
from shoal.lite.coordinator.groups.shard import GroupShard

_MILLISECOND = dt.timedelta(milliseconds=1)
# Kafka's value for unknown authorized operations: there are no ACLs here.
NO_OPERATIONS = -(1 << 31)


def member_shard(core: BrokerCore, group_id: str) -> GroupShard:
    """The shard of a group; `ApiError` if the id is empty or another broker coordinates it."""
    if not group_id:
        raise ApiError(Code.INVALID_GROUP_ID, "the group id must not be empty")
    return core.groups.shard_for(group_id)


def identity_in(body: Any, generation: str = "generation_id") -> MemberIdentity:
    """The member that sends the request, in any version of it."""
    return MemberIdentity(
        getattr(body, "member_id", ""),
        getattr(body, generation, NO_GENERATION),
        getattr(body, "group_instance_id", None),
    )


def milliseconds(value: dt.timedelta) -> int:
    return value // _MILLISECOND


def topic_of(core: BrokerCore, item: Any) -> tuple[str | None, UUID | None]:
    """Name and id of a topic, of which a request has one; the name is None if it is unknown."""
    topic_id: UUID | None = getattr(item, "topic_id", None)
    if hasattr(item, "name"):
        name: str = item.name
        return name, None
    return core.state.topic_names.get(topic_id or UUID(int=0)), topic_id


def topic_entry(name: str | None, topic_id: UUID | None, partitions: Iterable[Any]) -> Any:
    """The entry of a topic in a response; the version decides whether name or id is sent."""
    return {"name": name or "", "topic_id": topic_id, "partitions": list(partitions)}
