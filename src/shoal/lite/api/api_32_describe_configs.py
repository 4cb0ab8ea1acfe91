"""DescribeConfigs (32), versions 1 to 4.

Behaviour
- Every config of a topic or a broker with its value, its source and, on request, its synonyms: all
  places that set it. No names, or an empty list of them, means all. For all brokers at once (an
  empty resource name) only the dynamic configs are returned.
- Passwords, and configs that Kafka Lite does not know, have no value.

Versions
- 1 synonyms and sources (KIP-226). 3 types and documentation (KIP-569). 4 flexible.

Gaps
- The documentation says only whether Kafka Lite uses the config.
- Logger levels, client metrics and group configs are not served: INVALID_REQUEST.
"""

from typing import TYPE_CHECKING, NamedTuple

from shoal.lite.api.config_resources import ConfigResource, find_resource
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import Layers
from shoal.lite.base.settings import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    ConfigSetting,
    ConfigSource,
    UpdateMode,
    broker_setting,
)
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.metadata.data.state import ALL_BROKERS, TOPIC
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import (
        DescribeConfigsRequest,
        DescribeConfigsRequestResource,
        DescribeConfigsResponse,
        DescribeConfigsResponseResource,
        DescribeConfigsResponseResult,
    )

_FIRST_WITH_DOCUMENTATION = 3


class _Synonym(NamedTuple):
    """A place that sets a config, and the value there."""

    name: str
    value: str | None
    source: ConfigSource


def handle(
    core: BrokerCore, request: "ApiRequest[DescribeConfigsRequest, DescribeConfigsResponse]"
) -> Answer:
    body = request.body()
    with_documentation = request.version >= _FIRST_WITH_DOCUMENTATION and body.include_documentation
    return request.answer(
        {
            "results": [
                _describe_resource(core, body, item, with_documentation=with_documentation)
                for item in body.resources
            ]
        }
    )


def _describe_resource(
    core: BrokerCore,
    body: "DescribeConfigsRequest",
    item: "DescribeConfigsRequestResource",
    *,
    with_documentation: bool,
) -> "DescribeConfigsResponseResult":
    configs: list[DescribeConfigsResponseResource] = []
    answer: DescribeConfigsResponseResult = {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": item.resource_type,
        "resource_name": item.resource_name,
        "configs": configs,
    }
    try:
        resource = find_resource(core, item.resource_type, item.resource_name)
    except ApiError as error:
        return answer | {"error_code": error.code, "error_message": str(error)}
    keys = item.configuration_keys
    layers = core.layers
    overrides = core.state.topic_configs(resource.name) if resource.kind == TOPIC else None
    for setting in _settings(core, resource):
        if not keys or setting.name in keys:
            if overrides is None:
                description = _describe_broker_setting(
                    layers, setting, is_all=resource.name == ALL_BROKERS
                )
            else:
                description = _describe_topic_setting(layers, setting, overrides)
            config = _config(
                setting,
                description,
                with_synonyms=body.include_synonyms,
                with_documentation=with_documentation,
            )
            configs.append(config)
    return answer


def _settings(core: BrokerCore, resource: ConfigResource) -> list[ConfigSetting]:
    if resource.kind == TOPIC:
        settings = TOPIC_SETTINGS
    elif resource.name == ALL_BROKERS:
        return [broker_setting(name) for name in core.state.broker_configs(ALL_BROKERS)]
    else:
        given = core.state.broker_configs(resource.name)
        settings = BROKER_SETTINGS | {name: broker_setting(name) for name in given}
    return [setting for setting in settings.values() if not setting.is_hidden]


class _SettingDescription(NamedTuple):
    """The effective value of a config, and where it comes from."""

    value: str | None
    source: ConfigSource
    synonyms: list[_Synonym]
    is_read_only: bool


def _describe_broker_setting(
    layers: Layers, setting: ConfigSetting, *, is_all: bool
) -> _SettingDescription:
    synonyms = _synonyms(layers, setting)
    if is_all:
        synonyms = [one for one in synonyms if one.source is ConfigSource.DYNAMIC_DEFAULT_BROKER]
    is_read_only = setting.change is UpdateMode.START
    if not synonyms:
        return _SettingDescription(setting.default, ConfigSource.DEFAULT, synonyms, is_read_only)
    return _SettingDescription(synonyms[0].value, synonyms[0].source, synonyms, is_read_only)


def _describe_topic_setting(
    layers: Layers, setting: ConfigSetting, overrides: dict[str, str]
) -> _SettingDescription:
    synonyms = []
    if setting.name in overrides:
        synonyms.append(_Synonym(setting.name, overrides[setting.name], ConfigSource.TOPIC))
    if setting.synonym is not None:
        synonyms += _synonyms(layers, broker_setting(setting.synonym))
    return _SettingDescription(
        *layers.topic_value(setting.name, overrides), synonyms, is_read_only=False
    )


def _config(
    setting: ConfigSetting,
    description: _SettingDescription,
    *,
    with_synonyms: bool,
    with_documentation: bool,
) -> "DescribeConfigsResponseResource":
    return {
        "name": setting.name,
        "value": None if setting.is_secret else description.value,
        "read_only": description.is_read_only,
        "config_source": description.source,
        "is_sensitive": setting.is_secret,
        "synonyms": [
            {"name": one.name, "value": one.value, "source": one.source}
            for one in (description.synonyms if with_synonyms else ())
        ],
        "config_type": setting.kind,
        "documentation": setting.documentation if with_documentation else None,
    }


def _synonyms(layers: Layers, setting: ConfigSetting) -> list[_Synonym]:
    """Every place that sets a broker config, the one with the highest priority first."""
    found = [
        _Synonym(setting.name, None if setting.is_secret else value, source)
        for value, source in layers.explicit_values(setting.name)
    ]
    if setting.default is not None:
        found.append(_Synonym(setting.name, setting.default, ConfigSource.DEFAULT))
    return found


API = register(ApiKey.DESCRIBE_CONFIGS, 1, 4, handle)
