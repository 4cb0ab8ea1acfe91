"""DescribeConfigs (32), versions 1 to 4.

Behaviour
- Every setting of a topic or a broker with its value, where that comes from, and, if asked for,
  all places that have one (synonyms). For all brokers at once (an empty name) only the
  dynamic settings are told.

Versions
- 1 synonyms and sources (KIP-226). 3 types and documentation (KIP-569). 4 flexible.

Gaps
- No documentation texts. Settings of brokers are those that Kafka Lite knows.
"""

from typing import Any

from shoal.lite.api.config_resources import Resource, resource_of
from shoal.lite.api.registry import Answer, Request, register
from shoal.lite.codes import Code, Refused
from shoal.lite.configs import BROKER_SETTINGS, TOPIC_SETTINGS, Setting, Source
from shoal.lite.controller.state import ALL_BROKERS, TOPIC
from shoal.lite.core import BrokerCore
from shoal.wire.api_keys import ApiKey


def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    return request.answer(
        results=[
            _described(core, item, with_synonyms=body.include_synonyms) for item in body.resources
        ]
    )


def _described(core: BrokerCore, item: Any, *, with_synonyms: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": item.resource_type,
        "resource_name": item.resource_name,
        "configs": [],
    }
    try:
        resource = resource_of(core, item.resource_type, item.resource_name)
    except Refused as refused:
        return answer | {"error_code": refused.code, "error_message": str(refused)}
    keys = item.configuration_keys
    answer["configs"] = [
        _setting(core, resource, setting, with_synonyms=with_synonyms)
        for setting in _settings(core, resource)
        if keys is None or setting.name in keys
    ]
    return answer


def _settings(core: BrokerCore, resource: Resource) -> list[Setting]:
    if resource.kind == TOPIC:
        return list(TOPIC_SETTINGS.values())
    if resource.name == ALL_BROKERS:
        return [BROKER_SETTINGS[name] for name in core.state.broker_configs(ALL_BROKERS)]
    return list(BROKER_SETTINGS.values())


def _setting(
    core: BrokerCore, resource: Resource, setting: Setting, *, with_synonyms: bool
) -> dict[str, Any]:
    synonyms = _synonyms(core, resource, setting)
    _, value, source = synonyms[0]
    return {
        "name": setting.name,
        "value": value,
        "read_only": False,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [
            {"name": name, "value": value, "source": source}
            for name, value, source in (synonyms if with_synonyms else [])
        ],
        "config_type": setting.kind,
        "documentation": None,
    }


def _synonyms(
    core: BrokerCore, resource: Resource, setting: Setting
) -> list[tuple[str, str, Source]]:
    """Every place that has a value, nearest first."""
    layers = core.layers
    found: list[tuple[str, str, Source]] = []
    broker_name: str | None = setting.name
    if resource.kind == TOPIC:
        overrides = core.state.topic_configs(resource.name)
        if setting.name in overrides:
            found.append((setting.name, overrides[setting.name], Source.TOPIC))
        broker_name = setting.synonym
    for values, source in (
        (layers.dynamic, Source.DYNAMIC_BROKER),
        (layers.dynamic_default, Source.DYNAMIC_DEFAULT_BROKER),
        (layers.static, Source.STATIC_BROKER),
    ):
        if broker_name is not None and broker_name in values:
            found.append((broker_name, values[broker_name], source))
    found.append((broker_name or setting.name, setting.default, Source.DEFAULT))
    return found


API = register(ApiKey.DESCRIBE_CONFIGS, 1, 4, handle)
