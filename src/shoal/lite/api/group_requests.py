"""Shared by the group APIs: find the shard of a group, and convert times."""

import datetime as dt
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.coordinator.groups.shard import GroupShard

# Stands for a missing topic id on the wire.
NO_TOPIC_ID = UUID(int=0)
_MILLISECOND = dt.timedelta(milliseconds=1)
# Kafka's value for unknown authorized operations: there are no ACLs here.
NO_OPERATIONS = -(1 << 31)


def member_shard(core: BrokerCore, group_id: str) -> GroupShard:
    """The shard of a group; `ApiError` if the id is empty or another broker coordinates it."""
    if not group_id:
        raise ApiError(Code.INVALID_GROUP_ID, "the group id must not be empty")
    return core.groups.shard_for(group_id)


def milliseconds(value: dt.timedelta) -> int:
    return value // _MILLISECOND
