"""Heartbeat (12), versions 0 to 4.

Behaviour
- Restarts the session timeout of a member. REBALANCE_IN_PROGRESS: the member must join again.
  UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID: it is no longer a member.

Versions
- 3 static members (KIP-345). 4 flexible.
"""

from shoal.lite.api.group_requests import identity_in, member_shard
from shoal.lite.base.codes import ApiError
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey


def handle(core: BrokerCore, request: ApiRequest) -> Answer:
    body = request.body()
    try:
        shard = member_shard(core, body.group_id)
        code = shard.heartbeat(body.group_id, identity_in(body))
    except ApiError as error:
        code = error.code
    return request.answer(error_code=code)


API = register(ApiKey.HEARTBEAT, 0, 4, handle)
