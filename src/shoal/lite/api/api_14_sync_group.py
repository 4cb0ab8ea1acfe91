"""SyncGroup (14), versions 0 to 5.

Behaviour
- Members get the assignment of the leader once the group is stored on all in-sync replicas. If
  that fails, all of them get COORDINATOR_NOT_AVAILABLE or NOT_COORDINATOR.
- A member that does not send its request within its rebalance timeout is removed.

Versions
- 3 static members (KIP-345). 4 flexible. 5 protocol type and name, which must match (KIP-559):
  INCONSISTENT_GROUP_PROTOCOL.
"""

from typing import TYPE_CHECKING

from shoal.lite.api.group_requests import member_shard
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.messages import MemberIdentity, SyncAnswer, SyncRequest
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.groups import SyncGroupRequest, SyncGroupResponse

_FIRST_WITH_STATIC_MEMBERS = 3
_FIRST_WITH_PROTOCOL = 5


async def handle(
    core: BrokerCore, request: "ApiRequest[SyncGroupRequest, SyncGroupResponse]"
) -> Answer:
    body = request.body()
    must_name = request.version >= _FIRST_WITH_PROTOCOL
    instance_id = body.group_instance_id if request.version >= _FIRST_WITH_STATIC_MEMBERS else None
    sync = SyncRequest(
        body.group_id,
        MemberIdentity(body.member_id, body.generation_id, instance_id),
        body.protocol_type if must_name else None,
        body.protocol_name if must_name else None,
        tuple((item.member_id, bytes(item.assignment)) for item in body.assignments),
    )
    if must_name and (sync.protocol_type is None or sync.protocol is None):
        answer = SyncAnswer(Code.INCONSISTENT_GROUP_PROTOCOL)
    else:
        try:
            answer = await member_shard(core, sync.group).sync(sync)
        except ApiError as error:
            answer = SyncAnswer(error.code)
    return request.answer(
        {
            "error_code": answer.code,
            "protocol_type": answer.protocol_type,
            "protocol_name": answer.protocol,
            "assignment": answer.assignment,
        }
    )


API = register(ApiKey.SYNC_GROUP, 0, 5, handle)
