"""What the APIs about settings have in common: whose settings are meant, and their change."""

from collections.abc import Sequence
from typing import NamedTuple

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.metadata.data.requests import AlterConfigs, ConfigChange
from shoal.lite.metadata.data.state import ALL_BROKERS, BROKER, TOPIC
from shoal.lite.metadata.rules.commands import alter_configs, check_topic_name

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


class Resource(NamedTuple):
    """An owner of settings: a topic, a broker, or (with an empty name) all brokers."""

    kind: str
    name: str


def resource_of(core: BrokerCore, resource_type: int, name: str) -> Resource:
    """The owner that a request names; `Refused` if there is none."""
    if resource_type == TOPIC_RESOURCE:
        check_topic_name(name)
        core.topic(name)
        return Resource(TOPIC, name)
    if resource_type == BROKER_RESOURCE:
        if name == ALL_BROKERS:
            return Resource(BROKER, name)
        try:
            broker_id = int(name)
        except ValueError:
            message = f"Broker id must be an integer, but it is: {name}"
            raise Refused(Code.INVALID_REQUEST, message) from None
        if broker_id != core.spec.broker_id:
            own = core.spec.broker_id
            message = f"Unexpected broker id, expected {own} or empty string, but received {name}"
            raise Refused(Code.INVALID_REQUEST, message)
        return Resource(BROKER, str(broker_id))
    message = f"settings of resources of type {resource_type} are not served"
    raise Refused(Code.INVALID_REQUEST, message)


async def change_settings(
    core: BrokerCore, resource: Resource, changes: Sequence[ConfigChange], *, validate_only: bool
) -> None:
    """Make all changes, or none; `Refused` if one is wrong."""
    if validate_only:
        alter_configs(core.state, resource.kind, resource.name, changes)
    else:
        await core.controller.submit(AlterConfigs(resource.kind, resource.name, changes))
