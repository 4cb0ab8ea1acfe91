"""AddRaftVoter (80), versions 0 to 1 (KIP-853).

Behaviour
- Passed on to the active controller, which gives a controller a vote that follows the metadata
  and has caught up: INVALID_REQUEST if it has not, or votes already.

Versions
- 1 may be answered before the change is committed; it never is.
"""

from shoal.client.errors import ClientError
from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.wire.api_keys import ApiKey


async def handle(core: BrokerCore, request: Request) -> Answer:
    try:
        return [await core.controller.forward(request.header, request.frame)]
    except ClientError as error:
        return request.answer(error_code=Code.NOT_CONTROLLER, error_message=str(error))


API = register(ApiKey.ADD_RAFT_VOTER, 0, 1, handle)
