"""DescribeCluster (60), versions 0 to 1 (KIP-700).

Behaviour
- The cluster's id, its brokers, and the broker that takes requests for the controller.
- Version 1 asks for brokers or controllers (KIP-919); controllers are not endpoints of their
  own here: UNSUPPORTED_ENDPOINT_TYPE.

Gaps
- Authorized operations are not told (there are no ACLs). 2.
"""

from shoal.lite.api.registry import Answer, Request, register
from shoal.lite.codes import Code
from shoal.lite.core import BrokerCore
from shoal.wire.api_keys import ApiKey

_BROKERS = 1


def handle(core: BrokerCore, request: Request) -> Answer:
    state = core.state
    wants_brokers = getattr(request.body(), "endpoint_type", _BROKERS) == _BROKERS
    return request.answer(
        error_code=Code.NONE if wants_brokers else Code.UNSUPPORTED_ENDPOINT_TYPE,
        cluster_id=state.cluster_id,
        controller_id=core.spec.broker_id,
        brokers=[
            {
                "broker_id": broker.broker_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
            }
            for broker in core.listed_brokers()
            if wants_brokers
        ],
    )


API = register(ApiKey.DESCRIBE_CLUSTER, 0, 1, handle)
