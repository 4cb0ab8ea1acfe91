"""DescribeConfigs (32), versions 1 to 4.

Behaviour
- Every setting of a topic or a broker with its value, where that comes from, and, if asked for,
  all places that have one (synonyms). For all brokers at once (an empty name) only the
  dynamic settings are told.
- Passwords, and settings that nobody knows, are not shown.

Versions
- 1 synonyms and sources (KIP-226). 3 types and documentation (KIP-569). 4 flexible.

Gaps
- The documentation tells only whether Kafka Lite does something with the setting.
- Levels of loggers, client metrics and settings of groups are not served: INVALID_REQUEST.
"""

from typing import Any, NamedTuple

from shoal.lite.api.config_resources import Resource, resource_of
from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.configs import Layers
from shoal.lite.base.settings import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    Change,
    Setting,
    Source,
    broker_setting,
)
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.metadata.data.state import ALL_BROKERS, TOPIC
from shoal.wire.api_keys import ApiKey


class _Synonym(NamedTuple):
    """A place that has a value."""

    name: str
    value: str | None
    source: Source


def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    return request.answer(results=[_described(core, body, item) for item in body.resources])


def _described(core: BrokerCore, body: Any, item: Any) -> dict[str, Any]:
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
    layers = core.layers
    overrides = core.state.topic_configs(resource.name) if resource.kind == TOPIC else None
    for setting in _settings(core, resource):
        if keys is None or setting.name in keys:
            if overrides is None:
                told = _told_of_broker(layers, setting, is_all=resource.name == ALL_BROKERS)
            else:
                told = _told_of_topic(layers, setting, overrides)
            answer["configs"].append(_config(setting, told, body))
    return answer


def _settings(core: BrokerCore, resource: Resource) -> list[Setting]:
    if resource.kind == TOPIC:
        settings = TOPIC_SETTINGS
    elif resource.name == ALL_BROKERS:
        return [broker_setting(name) for name in core.state.broker_configs(ALL_BROKERS)]
    else:
        given = core.state.broker_configs(resource.name)
        settings = BROKER_SETTINGS | {name: broker_setting(name) for name in given}
    return [setting for setting in settings.values() if not setting.is_hidden]


class _Told(NamedTuple):
    """What there is to say about a setting."""

    value: str | None
    source: Source
    synonyms: list[_Synonym]
    is_read_only: bool


def _told_of_broker(layers: Layers, setting: Setting, *, is_all: bool) -> _Told:
    synonyms = _synonyms(layers, setting)
    if is_all:
        synonyms = [one for one in synonyms if one.source is Source.DYNAMIC_DEFAULT_BROKER]
    is_read_only = setting.change is Change.START
    if not synonyms:
        return _Told(setting.default, Source.DEFAULT, synonyms, is_read_only)
    return _Told(synonyms[0].value, synonyms[0].source, synonyms, is_read_only)


def _told_of_topic(layers: Layers, setting: Setting, overrides: dict[str, str]) -> _Told:
    synonyms = []
    if setting.name in overrides:
        synonyms.append(_Synonym(setting.name, overrides[setting.name], Source.TOPIC))
    if setting.synonym is not None:
        synonyms += _synonyms(layers, broker_setting(setting.synonym))
    return _Told(*layers.topic_value(setting.name, overrides), synonyms, is_read_only=False)


def _config(setting: Setting, told: _Told, body: Any) -> dict[str, Any]:
    wants_documentation = getattr(body, "include_documentation", False)
    return {
        "name": setting.name,
        "value": None if setting.is_secret else told.value,
        "read_only": told.is_read_only,
        "config_source": told.source,
        "is_sensitive": setting.is_secret,
        "synonyms": [
            {"name": one.name, "value": one.value, "source": one.source}
            for one in (told.synonyms if body.include_synonyms else ())
        ],
        "config_type": setting.kind,
        "documentation": setting.documentation if wants_documentation else None,
    }


def _synonyms(layers: Layers, setting: Setting) -> list[_Synonym]:
    """Every place that has a value for a broker's setting, the strongest first."""
    found = [
        _Synonym(setting.name, None if setting.is_secret else value, source)
        for value, source in layers.given(setting.name)
    ]
    if setting.default is not None:
        found.append(_Synonym(setting.name, setting.default, Source.DEFAULT))
    return found


API = register(ApiKey.DESCRIBE_CONFIGS, 1, 4, handle)
