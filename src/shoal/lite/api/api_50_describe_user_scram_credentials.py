"""DescribeUserScramCredentials (50), version 0 (KIP-554).

Behaviour
- Kafka Lite has no users: a named user gets RESOURCE_NOT_FOUND.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import (
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
    )

    _Request = ApiRequest[DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse]


def handle(
    core: BrokerCore,
    request: "_Request",
) -> Answer:
    return request.answer(
        {
            "error_code": Code.NONE,
            "error_message": None,
            "results": [
                {
                    "user": user.name,
                    "error_code": Code.RESOURCE_NOT_FOUND,
                    "error_message": "Attempt to describe a user credential that does not exist: "
                    f"{user.name}",
                    "credential_infos": [],
                }
                for user in request.body().users or ()
            ],
        }
    )


API = register(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, handle)
