"""AlterConfigs (33), versions 0 to 2 (KIP-133).

Behaviour
- Replaces all settings of a topic, of this broker, or of all brokers (an empty name): what the
  request does not name has its default again. All changes of one resource are made, or none.
- `validate_only` checks and changes nothing.

Versions
- 2 flexible.
"""

from typing import Any

from shoal.lite.api.config_resources import change_settings, resource_of
from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.metadata.data.requests import DELETE, SET, ConfigChange
from shoal.lite.metadata.data.state import TOPIC
from shoal.wire.api_keys import ApiKey


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    responses = [
        await _replaced(core, item, validate_only=body.validate_only) for item in body.resources
    ]
    return request.answer(responses=responses)


async def _replaced(core: BrokerCore, item: Any, *, validate_only: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": item.resource_type,
        "resource_name": item.resource_name,
    }
    try:
        resource = resource_of(core, item.resource_type, item.resource_name)
        state = core.state
        of = state.topic_configs if resource.kind == TOPIC else state.broker_configs
        changes = [ConfigChange(config.name, SET, config.value) for config in item.configs]
        named = {config.name for config in item.configs}
        changes += [
            ConfigChange(name, DELETE, None) for name in of(resource.name) if name not in named
        ]
        await change_settings(core, resource, changes, validate_only=validate_only)
    except Refused as refused:
        answer |= {"error_code": refused.code, "error_message": str(refused)}
    return answer


API = register(ApiKey.ALTER_CONFIGS, 0, 2, handle)
