"""JoinGroup (11), versions 0 to 9.

Behaviour
- Answered when the next generation begins: when all members have joined, or when the longest of
  their rebalance timeouts is over. The first generation of a group waits for
  `group.initial.rebalance.delay.ms`, which is 0 here, as in Kafka's server.properties for
  development; Kafka's own default is 3 s.
- INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID,
  FENCED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED: as in Apache Kafka.
- A static member that comes back while the group is stable gets its old assignment without a
  rebalance (KIP-345).

Versions
- 1 rebalance timeouts. 4 members join again with the id that they get (KIP-394). 5 static
  members. 6 flexible. 7 protocol type (KIP-559). 8 reasons (KIP-800), which are not kept.
  9 a leader that need not assign (KIP-814).
"""

from typing import TYPE_CHECKING

from shoal.lite.api.group_requests import member_shard, milliseconds
from shoal.lite.base.codes import ApiError
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.messages import GroupProtocol, JoinAnswer, JoinRequest
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.groups import JoinGroupRequest, JoinGroupResponse

_FIRST_WITH_KNOWN_ID = 4
_FIRST_WITH_STATIC_MEMBERS = 5
_FIRST_WITH_PROTOCOL_TYPE = 7
_FIRST_WITH_SKIP = 9


async def handle(
    core: BrokerCore, request: "ApiRequest[JoinGroupRequest, JoinGroupResponse]"
) -> Answer:
    body = request.body()
    session_timeout_ms = milliseconds(body.session_timeout)
    join = JoinRequest(
        body.group_id,
        body.member_id,
        body.protocol_type,
        tuple(GroupProtocol(item.name, bytes(item.metadata)) for item in body.protocols),
        session_timeout_ms,
        milliseconds(body.rebalance_timeout) if request.version >= 1 else session_timeout_ms,
        instance_id=body.group_instance_id
        if request.version >= _FIRST_WITH_STATIC_MEMBERS
        else None,
        client_id=request.header.client_id or "",
        client_host=request.client_host,
        needs_known_id=request.version >= _FIRST_WITH_KNOWN_ID,
        can_skip_assignment=request.version >= _FIRST_WITH_SKIP,
    )
    try:
        answer = await member_shard(core, join.group).join(join)
    except ApiError as error:
        answer = JoinAnswer(error.code, join.member_id)
    # Before version 7 the protocol name is not nullable.
    no_protocol = None if request.version >= _FIRST_WITH_PROTOCOL_TYPE else ""
    return request.answer(
        {
            "error_code": answer.code,
            "generation_id": answer.generation,
            "protocol_type": answer.protocol_type,
            "protocol_name": no_protocol if answer.protocol is None else answer.protocol,
            "leader": answer.leader,
            "skip_assignment": answer.skip_assignment,
            "member_id": answer.member_id,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "metadata": member.metadata,
                }
                for member in answer.members
            ],
        }
    )


API = register(ApiKey.JOIN_GROUP, 0, 9, handle)
