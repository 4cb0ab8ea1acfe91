"""Heartbeat (12), versions 0 to 4.

Behaviour
- A sign of life, which starts the member's session anew. REBALANCE_IN_PROGRESS tells it to join
  again; UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID that it is out.

Versions
- 3 static members (KIP-345). 4 flexible.
"""

from shoal.lite.api.group_requests import identity_in, member_shard
from shoal.lite.base.codes import Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.wire.api_keys import ApiKey


def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    try:
        shard = member_shard(core, body.group_id)
        code = shard.heartbeat(body.group_id, identity_in(body))
    except Refused as refused:
        code = refused.code
    return request.answer(error_code=code)


API = register(ApiKey.HEARTBEAT, 0, 4, handle)
