"""LeaveGroup (13), versions 0 to 5.

Behaviour
- Members leave at once, and the others rebalance. An administrator removes static members by
  their instance ids alone.
- Each member gets its own error. In a group that does not exist, every member is unknown.

Versions
- 3 many members at once, by member or instance id (KIP-345). 4 flexible. 5 reasons (KIP-800),
  which are not kept.
"""

from typing import TYPE_CHECKING

from shoal.lite.api.group_requests import member_shard
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.messages import LeavingMember
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.groups import LeaveGroupRequest, LeaveGroupResponse

_FIRST_WITH_MANY = 3


def handle(
    core: BrokerCore, request: "ApiRequest[LeaveGroupRequest, LeaveGroupResponse]"
) -> Answer:
    body = request.body()
    if request.version < _FIRST_WITH_MANY:
        leaving = [LeavingMember(body.member_id)]
    else:
        leaving = [LeavingMember(item.member_id, item.group_instance_id) for item in body.members]
    code = Code.NONE
    codes: list[Code] = []
    try:
        codes = member_shard(core, body.group_id).leave(body.group_id, leaving)
    except ApiError as error:
        code = error.code
    if request.version < _FIRST_WITH_MANY and codes:
        code = codes[0]
    return request.answer(
        {
            "error_code": code,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "error_code": member_code,
                }
                for member, member_code in zip(leaving, codes, strict=False)
            ],
        }
    )


API = register(ApiKey.LEAVE_GROUP, 0, 5, handle)
