"""DeleteGroups (42), versions 0 to 2.

Behaviour
- A group without members goes with all its offsets: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, each by
  itself. The answer is sent when that is on all in-sync replicas.

Versions
- 2 flexible.
"""

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.wire.api_keys import ApiKey


async def handle(core: BrokerCore, request: Request) -> Answer:
    results = []
    for group_id in request.body().groups_names:
        code = Code.NONE
        try:
            await core.groups.shard_for(group_id).delete(group_id)
        except Refused as refused:
            code = refused.code
        results.append({"group_id": group_id, "error_code": code})
    return request.answer(results=results)


API = register(ApiKey.DELETE_GROUPS, 0, 2, handle)
