"""DescribeClientQuotas (48), versions 0 to 1 (KIP-546).

Behaviour
- Always an empty list: Kafka Lite has no quotas.

Versions
- 1 flexible.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import (
        DescribeClientQuotasRequest,
        DescribeClientQuotasResponse,
    )


def handle(
    core: BrokerCore,
    request: "ApiRequest[DescribeClientQuotasRequest, DescribeClientQuotasResponse]",
) -> Answer:
    return request.answer({"error_code": Code.NONE, "error_message": None, "entries": []})


API = register(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, handle)
