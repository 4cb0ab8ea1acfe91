"""Heartbeat (12), versions 0 to 4.

Behaviour
- Restarts the session timeout of a member. REBALANCE_IN_PROGRESS: the member must join again.
  UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID: it is no longer a member.

Versions
- 3 static members (KIP-345). 4 flexible.
"""

from typing import TYPE_CHECKING

from shoal.lite.api.group_requests import member_shard
from shoal.lite.base.codes import ApiError
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.messages import MemberIdentity
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.groups import HeartbeatRequest, HeartbeatResponse

_FIRST_WITH_STATIC_MEMBERS = 3


def handle(core: BrokerCore, request: "ApiRequest[HeartbeatRequest, HeartbeatResponse]") -> Answer:
    body = request.body()
    instance_id = body.group_instance_id if request.version >= _FIRST_WITH_STATIC_MEMBERS else None
    try:
        shard = member_shard(core, body.group_id)
        identity = MemberIdentity(body.member_id, body.generation_id, instance_id)
        code = shard.heartbeat(body.group_id, identity)
    except ApiError as error:
        code = error.code
    return request.answer({"error_code": code})


API = register(ApiKey.HEARTBEAT, 0, 4, handle)
