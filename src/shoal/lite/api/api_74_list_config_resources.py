"""ListConfigResources (74), versions 0 to 1 (KIP-714, KIP-1142).

Behaviour
- The resources that have configs: topics and brokers. Version 0 asks for client metrics only, and
  gets an empty list. An unknown type: UNSUPPORTED_VERSION.
"""

from typing import TYPE_CHECKING

from shoal.lite.api.config_resources import BROKER_RESOURCE, TOPIC_RESOURCE
from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import ListConfigResourcesRequest, ListConfigResourcesResponse

_BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 8, 16, 32
_KNOWN = {TOPIC_RESOURCE, BROKER_RESOURCE, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP}


def handle(
    core: BrokerCore, request: "ApiRequest[ListConfigResourcesRequest, ListConfigResourcesResponse]"
) -> Answer:
    if request.version == 0:
        return request.answer({"error_code": Code.NONE, "config_resources": []})
    wanted = set(request.body().resource_types) or _KNOWN
    if not wanted <= _KNOWN:
        return request.answer({"error_code": Code.UNSUPPORTED_VERSION, "config_resources": []})
    brokers = [str(broker_id) for broker_id in core.state.brokers]
    names = {TOPIC_RESOURCE: list(core.state.topics), BROKER_RESOURCE: brokers}
    return request.answer(
        {
            "error_code": Code.NONE,
            "config_resources": [
                {"resource_name": name, "resource_type": kind}
                for kind in sorted(wanted & names.keys())
                for name in names[kind]
            ],
        }
    )


API = register(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, handle)
