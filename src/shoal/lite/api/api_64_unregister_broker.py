"""UnregisterBroker (64), version 0 (KIP-631).

Behaviour
- Removes a broker that is shut down and has no replicas; otherwise INVALID_REQUEST. Apache Kafka
  also removes a running broker, until it registers again.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.metadata.data.requests import UnregisterBroker
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(
    core: BrokerCore, request: "ApiRequest[UnregisterBrokerRequest, UnregisterBrokerResponse]"
) -> Answer:
    try:
        await core.controller.submit(UnregisterBroker(int(request.body().broker_id)))
    except ApiError as error:
        return request.answer({"error_code": error.code, "error_message": str(error)})
    return request.answer({"error_code": Code.NONE, "error_message": None})


API = register(ApiKey.UNREGISTER_BROKER, 0, 0, handle)
