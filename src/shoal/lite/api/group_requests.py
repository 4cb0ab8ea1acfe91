"""What the APIs of groups share: finding the shard of a group, and its refusals."""

import datetime as dt
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.coordinator.groups.messages import NO_GENERATION, Identity
from shoal.lite.coordinator.groups.shard import GroupShard

_MILLISECOND = dt.timedelta(milliseconds=1)
# "Not asked for, or nobody knows": there are no ACLs.
NO_OPERATIONS = -(1 << 31)


def member_shard(core: BrokerCore, group_id: str) -> GroupShard:
    """The shard of a group that has members; `Refused` if it is not here, or cannot be."""
    if not group_id:
        raise Refused(Code.INVALID_GROUP_ID, "a group needs an id")
    return core.groups.shard_for(group_id)


def identity_in(body: Any, generation: str = "generation_id") -> Identity:
    """Who speaks, in a request of any version."""
    return Identity(
        getattr(body, "member_id", ""),
        getattr(body, generation, NO_GENERATION),
        getattr(body, "group_instance_id", None),
    )


def milliseconds(value: dt.timedelta) -> int:
    return value // _MILLISECOND


def topic_of(core: BrokerCore, item: Any) -> tuple[str | None, UUID | None]:
    """Name and id of a topic in a request that has one of them; the name is None if unknown."""
    topic_id: UUID | None = getattr(item, "topic_id", None)
    if hasattr(item, "name"):
        name: str = item.name
        return name, None
    return core.state.topic_names.get(topic_id or UUID(int=0)), topic_id


def described_topic(name: str | None, topic_id: UUID | None, partitions: Iterable[Any]) -> Any:
    """A topic in a response, by its name or, in versions that have it, its id."""
    return {"name": name or "", "topic_id": topic_id, "partitions": list(partitions)}
