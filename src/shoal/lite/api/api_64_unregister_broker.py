"""UnregisterBroker (64), version 0 (KIP-631).

Behaviour
- Forgets a broker that has ended and has no replicas; refused otherwise: INVALID_REQUEST, where
  Apache Kafka forgets a broker that runs too, until it registers again.
"""

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.metadata.data.requests import UnregisterBroker
from shoal.wire.api_keys import ApiKey


async def handle(core: BrokerCore, request: Request) -> Answer:
    try:
        await core.controller.submit(UnregisterBroker(int(request.body().broker_id)))
    except Refused as refused:
        return request.answer(error_code=refused.code, error_message=str(refused))
    return request.answer(error_code=Code.NONE, error_message=None)


API = register(ApiKey.UNREGISTER_BROKER, 0, 0, handle)
