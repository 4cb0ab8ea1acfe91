"""Shared by the config APIs: find the resource that a request names, and change its configs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.metadata.data.requests import AlterConfigs, ConfigEdit
from shoal.lite.metadata.data.state import ALL_BROKERS, BROKER, TOPIC
from shoal.lite.metadata.rules.commands import alter_configs, check_topic_name

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


class ConfigResource(NamedTuple):
    """An owner of configs: a topic, a broker or, with an empty name, all brokers."""

    kind: str
    name: str


def find_resource(core: BrokerCore, resource_type: int, name: str) -> ConfigResource:
    """The resource that a request names; `ApiError` if it does not exist."""
    if resource_type == TOPIC_RESOURCE:
        check_topic_name(name)
        core.topic(name)
        return ConfigResource(TOPIC, name)
    if resource_type == BROKER_RESOURCE:
        if name == ALL_BROKERS:
            return ConfigResource(BROKER, name)
        try:
            broker_id = int(name)
        except ValueError:
            message = f"Broker id must be an integer, but it is: {name}"
            raise ApiError(Code.INVALID_REQUEST, message) from None
        if broker_id != core.spec.broker_id:
            own = core.spec.broker_id
            message = f"Unexpected broker id, expected {own} or empty string, but received {name}"
            raise ApiError(Code.INVALID_REQUEST, message)
        return ConfigResource(BROKER, str(broker_id))
    message = f"resource type {resource_type} is not supported: use 2 (topic) or 4 (broker)"
    raise ApiError(Code.INVALID_REQUEST, message)


def find_repeated_resources(keys: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """The resources, by type and name, that a request names more than once."""
    return {key for key, count in Counter(keys).items() if count > 1}


def check_repeated(key: tuple[int, str], repeated: set[tuple[int, str]]) -> None:
    """Raise `ApiError` if a resource is one of `find_repeated_resources`."""
    if key in repeated:
        raise ApiError(Code.INVALID_REQUEST, "Each resource must appear at most once.")


async def change_settings(
    core: BrokerCore,
    resource: ConfigResource,
    changes: Sequence[ConfigEdit],
    *,
    validate_only: bool,
) -> None:
    """Make all changes or none; `ApiError` if one of them is invalid."""
    if validate_only:
        alter_configs(core.state, resource.kind, resource.name, changes)
    else:
        await core.controller.submit(AlterConfigs(resource.kind, resource.name, changes))
