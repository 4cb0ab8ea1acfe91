"""DescribeQuorum (55), versions 0 to 2 (KIP-595, 836, 853).

Behaviour
- Passed on to the active controller: who votes, who follows, and how far each of them is.
- While no controller is active: NOT_CONTROLLER, after a while.
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
        code = Code.NOT_CONTROLLER
        return request.answer(error_code=code, error_message=str(error), topics=[], nodes=[])


API = register(ApiKey.DESCRIBE_QUORUM, 0, 2, handle)
