"""DescribeGroups (15), versions 0 to 6.

Behaviour
- State, protocol and members. Subscriptions and assignments are returned for stable groups only.
- A group that does not exist is described as Dead, and from version 6 with GROUP_ID_NOT_FOUND.

Versions
- 3 authorized operations: none, there are no ACLs. 4 instance ids (KIP-345). 5 flexible.
  6 error messages (KIP-1043).
"""

from typing import TYPE_CHECKING

from shoal.lite.api.group_requests import NO_OPERATIONS
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.group import ClassicGroup, ClassicGroupState
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.groups import (
        DescribeGroupsRequest,
        DescribeGroupsResponse,
        DescribeGroupsResponseDescribedGroup,
        DescribeGroupsResponseDescribedGroupMember,
    )

_FIRST_WITH_NOT_FOUND = 6


def handle(
    core: BrokerCore, request: "ApiRequest[DescribeGroupsRequest, DescribeGroupsResponse]"
) -> Answer:
    knows_not_found = request.version >= _FIRST_WITH_NOT_FOUND
    return request.answer(
        {
            "groups": [
                _describe_group(core, group_id, knows_not_found=knows_not_found)
                for group_id in request.body().groups
            ]
        }
    )


def _describe_group(
    core: BrokerCore, group_id: str, *, knows_not_found: bool
) -> "DescribeGroupsResponseDescribedGroup":
    try:
        group = core.groups.shard_for(group_id).group(group_id)
    except ApiError as error:
        return _description_without_members(group_id, error.code, "", str(error))
    if group is None:
        if not knows_not_found:
            return _description_without_members(group_id, Code.NONE, ClassicGroupState.DEAD)
        message = f"Group {group_id} not found."
        return _description_without_members(
            group_id, Code.GROUP_ID_NOT_FOUND, ClassicGroupState.DEAD, message
        )
    is_stable = group.state is ClassicGroupState.STABLE
    return {
        **_description_without_members(group_id, Code.NONE, group.state),
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol or "") if is_stable else "",
        "members": _describe_members(group, is_stable=is_stable),
    }


def _description_without_members(
    group_id: str, code: Code, state: str, message: str | None = None
) -> "DescribeGroupsResponseDescribedGroup":
    return {
        "error_code": code,
        "error_message": message,
        "group_id": group_id,
        "group_state": state,
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": NO_OPERATIONS,
    }


def _describe_members(
    group: ClassicGroup, *, is_stable: bool
) -> "list[DescribeGroupsResponseDescribedGroupMember]":
    return [
        {
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "member_metadata": member.metadata(group.protocol) if is_stable else b"",
            "member_assignment": member.assignment if is_stable else b"",
        }
        for member in group.members.values()
    ]


API = register(ApiKey.DESCRIBE_GROUPS, 0, 6, handle)
