"""FindCoordinator (10), versions 0 to 4.

Behaviour
- Every key gets COORDINATOR_NOT_AVAILABLE: there are no groups and no transactions yet, and
  clients try again until they give up.
- It is listed because librdkafka compresses with lz4 only for brokers that list it.

Versions
- 1 transactions too. 3 flexible. 4 many keys at once (KIP-699).
"""

from shoal.lite.api.registry import Answer, Request, register
from shoal.lite.codes import Code
from shoal.lite.core import BrokerCore
from shoal.wire.api_keys import ApiKey

_NOBODY = {
    "node_id": -1,
    "host": "",
    "port": -1,
    "error_code": Code.COORDINATOR_NOT_AVAILABLE,
    "error_message": "this broker has neither consumer groups nor transactions",
}


def handle(core: BrokerCore, request: Request) -> Answer:
    keys = getattr(request.body(), "coordinator_keys", ())
    return request.answer(**_NOBODY, coordinators=[{"key": key, **_NOBODY} for key in keys])


API = register(ApiKey.FIND_COORDINATOR, 0, 4, handle)
