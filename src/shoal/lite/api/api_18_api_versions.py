"""ApiVersions (18), versions 0 to 4.

Behaviour
- Lists all registered APIs except Shoal's own, which a feature announces instead.
- An unsupported version gets a response of version 0 with UNSUPPORTED_VERSION and the supported
  versions of ApiVersions (KIP-511). The response header never has tagged fields.
- From version 3 the client sends its name and version; illegal characters get INVALID_REQUEST.

Versions
- 1 throttle time. 3 flexible, names and versions of clients, features (KIP-584). 4 features may
  begin at 0; in older versions such features are left out of the supported ones.
"""

import re
from typing import TYPE_CHECKING

from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import APIS, Answer, Api, ApiRequest, register
from shoal.lite.metadata.rules.features import FEATURES
from shoal.wire.api_keys import OWN_KEYS, ApiKey
from shoal.wire.building import build
from shoal.wire.messages import encode_response, response_class

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        ApiVersionsResponseVersion,
    )

_FIRST_WITH_CLIENT_NAMES = 3
_FIRST_WITH_FEATURES_FROM_0 = 4
_LEGAL_CLIENT = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(
    core: BrokerCore, request: "ApiRequest[ApiVersionsRequest, ApiVersionsResponse]"
) -> Answer:
    body = request.body()
    names = []
    if request.version >= _FIRST_WITH_CLIENT_NAMES:
        names = [body.client_software_name, body.client_software_version]
    if not all(_LEGAL_CLIENT.fullmatch(name) for name in names):
        return request.answer({"error_code": Code.INVALID_REQUEST, "api_keys": []})
    return request.answer(
        {
            "error_code": Code.NONE,
            "api_keys": [_range(api) for key, api in sorted(APIS.items()) if key not in OWN_KEYS],
            "supported_features": [
                {"name": name, "min_version": feature.least, "max_version": feature.most}
                for name, feature in FEATURES.items()
                if feature.least > 0 or request.version >= _FIRST_WITH_FEATURES_FROM_0
            ],
            "finalized_features_epoch": core.state.applied_count,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, level in core.state.features().items()
                if level > 0
            ],
        }
    )


def refuse_version(correlation_id: int) -> Answer:
    """The response to an unsupported version of ApiVersions."""
    values = {"error_code": Code.UNSUPPORTED_VERSION, "api_keys": [_range(API)]}
    response = build(response_class(ApiKey.API_VERSIONS, 0), values)
    return [encode_response(response, correlation_id=correlation_id)]


def _range(api: Api) -> "ApiVersionsResponseVersion":
    return {
        "api_key": api.key,
        "min_version": api.advertised_least,
        "max_version": api.most,
    }


API = register(ApiKey.API_VERSIONS, 0, 4, handle)
