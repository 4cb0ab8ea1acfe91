"""SyncGroup (14), versions 0 to 5.

Behaviour
- Members get the assignment of the leader once the group is stored on all in-sync replicas. If
  that fails, all of them get COORDINATOR_NOT_AVAILABLE or NOT_COORDINATOR.
- A member that does not send its request within its rebalance timeout is removed.

Versions
- 3 static members (KIP-345). 4 flexible. 5 protocol type and name, which must match (KIP-559):
  INCONSISTENT_GROUP_PROTOCOL.
"""

from shoal.lite.api.group_requests import identity_in, member_shard
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.messages import SyncAnswer, SyncRequest
from shoal.wire.api_keys import ApiKey

_FIRST_WITH_PROTOCOL = 5


async def handle(core: BrokerCore, request: ApiRequest) -> Answer:
    body = request.body()
    sync = SyncRequest(
        body.group_id,
        identity_in(body),
        getattr(body, "protocol_type", None),
        getattr(body, "protocol_name", None),
        tuple((item.member_id, bytes(item.assignment)) for item in body.assignments),
    )
    must_name = request.version >= _FIRST_WITH_PROTOCOL
    if must_name and (sync.protocol_type is None or sync.protocol is None):
        answer = SyncAnswer(Code.INCONSISTENT_GROUP_PROTOCOL)
    else:
        try:
            answer = await member_shard(core, sync.group).sync(sync)
        except ApiError as error:
            answer = SyncAnswer(error.code)
    return request.answer(
        error_code=answer.code,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


API = register(ApiKey.SYNC_GROUP, 0, 5, handle)
