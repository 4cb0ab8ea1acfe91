"""AddRaftVoter (80), versions 0 to 1 (KIP-853).

Behaviour
- Forwarded to the active controller, which makes an observer that has caught up a voter:
  INVALID_REQUEST if it has not caught up, or is a voter already.

Versions
- 1 may request a response before the change is committed; the response always waits for it.
"""

from typing import TYPE_CHECKING, Never

from shoal.client.errors import ClientError
from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import (
        AddRaftVoterResponse,
        RemoveRaftVoterResponse,
    )


async def handle(
    core: BrokerCore,
    request: "ApiRequest[Never, AddRaftVoterResponse | RemoveRaftVoterResponse]",
) -> Answer:
    try:
        return [await core.controller.forward(request.header, request.frame)]
    except ClientError as error:
        return request.answer({"error_code": Code.NOT_CONTROLLER, "error_message": str(error)})


API = register(ApiKey.ADD_RAFT_VOTER, 0, 1, handle)
