"""DescribeAcls (29), versions 1 to 3 (KIP-140).

Behaviour
- As in a Kafka without an authorizer: SECURITY_DISABLED.

Versions
- 1 patterns (KIP-290). 2 flexible. 3 user resources (KIP-373).
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import DescribeAclsRequest, DescribeAclsResponse


def handle(
    core: BrokerCore, request: "ApiRequest[DescribeAclsRequest, DescribeAclsResponse]"
) -> Answer:
    return request.answer(
        {
            "error_code": Code.SECURITY_DISABLED,
            "error_message": "No Authorizer is configured on the broker",
            "resources": [],
        }
    )


API = register(ApiKey.DESCRIBE_ACLS, 1, 3, handle)
