"""CreateAcls (30), versions 1 to 3 (KIP-140).

Behaviour
- As in a Kafka without an authorizer: SECURITY_DISABLED for each.

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
        CreateAclsRequest,
        CreateAclsResponse,
        CreateAclsResponseAclCreation,
    )


def handle(
    core: BrokerCore, request: "ApiRequest[CreateAclsRequest, CreateAclsResponse]"
) -> Answer:
    refusal: CreateAclsResponseAclCreation = {
        "error_code": Code.SECURITY_DISABLED,
        "error_message": "No Authorizer is configured.",
    }
    return request.answer({"results": [refusal for _ in request.body().creations]})


API = register(ApiKey.CREATE_ACLS, 1, 3, handle)
