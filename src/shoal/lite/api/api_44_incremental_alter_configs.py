"""IncrementalAlterConfigs (44), versions 0 to 1 (KIP-339).

Behaviour
- Changes configs of topics, of this broker, and of all brokers (an empty name): set, delete and,
  for lists, append and subtract. All changes of one resource are made, or none.
- `validate_only` checks and changes nothing.

Versions
- 1 flexible.
"""

from typing import TYPE_CHECKING

from shoal.lite.api.config_resources import (
    change_settings,
    check_repeated,
    find_repeated_resources,
    find_resource,
)
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.metadata.data.requests import ConfigEdit
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import (
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsRequestResource,
        IncrementalAlterConfigsResponse,
        IncrementalAlterConfigsResponseResource,
    )


async def handle(
    core: BrokerCore,
    request: "ApiRequest[IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse]",
) -> Answer:
    body = request.body()
    repeated = find_repeated_resources(
        (item.resource_type, item.resource_name) for item in body.resources
    )
    responses = [
        await _alter_settings(core, item, repeated, validate_only=body.validate_only)
        for item in body.resources
    ]
    return request.answer({"responses": responses})


async def _alter_settings(
    core: BrokerCore,
    item: "IncrementalAlterConfigsRequestResource",
    repeated: set[tuple[int, str]],
    *,
    validate_only: bool,
) -> "IncrementalAlterConfigsResponseResource":
    answer: IncrementalAlterConfigsResponseResource = {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": item.resource_type,
        "resource_name": item.resource_name,
    }
    changes = [
        ConfigEdit(config.name, config.config_operation, config.value) for config in item.configs
    ]
    try:
        check_repeated((item.resource_type, item.resource_name), repeated)
        resource = find_resource(core, item.resource_type, item.resource_name)
        await change_settings(core, resource, changes, validate_only=validate_only)
    except ApiError as error:
        answer |= {"error_code": error.code, "error_message": str(error)}
    return answer


API = register(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, handle)
