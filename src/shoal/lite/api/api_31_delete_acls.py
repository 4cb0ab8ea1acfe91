"""DeleteAcls (31), versions 1 to 3 (KIP-140).

Behaviour
- As in a Kafka without an authorizer: SECURITY_DISABLED for each filter.

Versions
- 1 patterns (KIP-290). 2 flexible. 3 user resources (KIP-373).
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import (
        DeleteAclsRequest,
        DeleteAclsResponse,
        DeleteAclsResponseFilter,
    )


def handle(
    core: BrokerCore, request: "ApiRequest[DeleteAclsRequest, DeleteAclsResponse]"
) -> Answer:
    refusal: DeleteAclsResponseFilter = {
        "error_code": Code.SECURITY_DISABLED,
        "error_message": "No Authorizer is configured.",
        "matching_acls": [],
    }
    return request.answer({"filter_results": [refusal for _ in request.body().filters]})


API = register(ApiKey.DELETE_ACLS, 1, 3, handle)
