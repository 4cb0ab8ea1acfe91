"""DescribeCluster (60), versions 0 to 2 (KIP-700).

Behaviour
- The cluster's id, its brokers, and the broker that accepts requests for the controller.

Versions
- 1 asks for brokers or controllers (KIP-919); a broker describes brokers only:
  MISMATCHED_ENDPOINT_TYPE. 2 includes fenced brokers on request (KIP-1073).
"""

from typing import TYPE_CHECKING

from shoal.lite.api.descriptions import CLUSTER_OPERATIONS, NOT_ASKED
from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import DescribeClusterRequest, DescribeClusterResponse

_BROKERS, _CONTROLLERS = 1, 2
_FIRST_WITH_FENCED = 2


def handle(
    core: BrokerCore, request: "ApiRequest[DescribeClusterRequest, DescribeClusterResponse]"
) -> Answer:
    body, state = request.body(), core.state
    kind = body.endpoint_type if request.version >= 1 else _BROKERS
    if kind != _BROKERS:
        known = Code.MISMATCHED_ENDPOINT_TYPE
        return request.answer(
            {
                "error_code": known if kind == _CONTROLLERS else Code.UNSUPPORTED_ENDPOINT_TYPE,
                "error_message": "The request was sent to an endpoint of type BROKER",
                "endpoint_type": _BROKERS,
                "cluster_id": "",
                "controller_id": -1,
                "brokers": [],
                "cluster_authorized_operations": NOT_ASKED,
            }
        )
    brokers = core.brokers_for_clients()
    if request.version >= _FIRST_WITH_FENCED and body.include_fenced_brokers:
        brokers = list(state.brokers.values())
    with_operations = body.include_cluster_authorized_operations
    return request.answer(
        {
            "error_code": Code.NONE,
            "error_message": None,
            "endpoint_type": _BROKERS,
            "cluster_id": state.cluster_id,
            "controller_id": core.spec.broker_id,
            "brokers": [
                {
                    "broker_id": broker.broker_id,
                    "host": broker.host,
                    "port": broker.port,
                    "rack": broker.rack,
                    "is_fenced": not state.is_active(broker.broker_id),
                }
                for broker in brokers
            ],
            "cluster_authorized_operations": CLUSTER_OPERATIONS if with_operations else NOT_ASKED,
        }
    )


API = register(ApiKey.DESCRIBE_CLUSTER, 0, 2, handle)
