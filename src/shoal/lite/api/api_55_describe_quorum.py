"""DescribeQuorum (55), versions 0 to 2 (KIP-595, 836, 853).

Behaviour
- Forwarded to the active controller: the voters, the observers, and the log end offset of each.
- If no controller becomes active in time: NOT_CONTROLLER.
"""

from typing import TYPE_CHECKING

from shoal.client.errors import ClientError
from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import DescribeQuorumRequest, DescribeQuorumResponse


async def handle(
    core: BrokerCore, request: "ApiRequest[DescribeQuorumRequest, DescribeQuorumResponse]"
) -> Answer:
    try:
        return [await core.controller.forward(request.header, request.frame)]
    except ClientError as error:
        code = Code.NOT_CONTROLLER
        return request.answer(
            {"error_code": code, "error_message": str(error), "topics": [], "nodes": []}
        )


API = register(ApiKey.DESCRIBE_QUORUM, 0, 2, handle)
