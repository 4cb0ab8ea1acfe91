"""AlterConfigs (33), versions 0 to 2 (KIP-133).

Behaviour
- Replaces all configs of a topic, of this broker, or of all brokers (an empty name): a config that
  the request does not name is reset to its default. All changes of one resource are made, or none.
- `validate_only` checks and changes nothing.

Versions
- 2 flexible.
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
from shoal.lite.metadata.data.requests import DELETE, SET, ConfigEdit
from shoal.lite.metadata.data.state import TOPIC
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import (
        AlterConfigsRequest,
        AlterConfigsRequestResource,
        AlterConfigsResponse,
        AlterConfigsResponseResource,
    )


async def handle(
    core: BrokerCore, request: "ApiRequest[AlterConfigsRequest, AlterConfigsResponse]"
) -> Answer:
    body = request.body()
    repeated = find_repeated_resources(
        (item.resource_type, item.resource_name) for item in body.resources
    )
    responses = [
        await _replace_settings(core, item, repeated, validate_only=body.validate_only)
        for item in body.resources
    ]
    return request.answer({"responses": responses})


async def _replace_settings(
    core: BrokerCore,
    item: "AlterConfigsRequestResource",
    repeated: set[tuple[int, str]],
    *,
    validate_only: bool,
) -> "AlterConfigsResponseResource":
    answer: AlterConfigsResponseResource = {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": item.resource_type,
        "resource_name": item.resource_name,
    }
    try:
        check_repeated((item.resource_type, item.resource_name), repeated)
        resource = find_resource(core, item.resource_type, item.resource_name)
        state = core.state
        of = state.topic_configs if resource.kind == TOPIC else state.broker_configs
        changes = [ConfigEdit(config.name, SET, config.value) for config in item.configs]
        named = {config.name for config in item.configs}
        changes += [
            ConfigEdit(name, DELETE, None) for name in of(resource.name) if name not in named
        ]
        await change_settings(core, resource, changes, validate_only=validate_only)
    except ApiError as error:
        answer |= {"error_code": error.code, "error_message": str(error)}
    return answer


API = register(ApiKey.ALTER_CONFIGS, 0, 2, handle)
