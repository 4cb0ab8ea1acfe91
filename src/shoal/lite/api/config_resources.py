"""What DescribeConfigs and IncrementalAlterConfigs have in common: whose settings are meant."""

from typing import NamedTuple

from shoal.lite.codes import Code, Refused
from shoal.lite.controller.state import ALL_BROKERS, BROKER, TOPIC
from shoal.lite.core import BrokerCore

_TOPIC_RESOURCE = 2
_BROKER_RESOURCE = 4


class Resource(NamedTuple):
    """An owner of settings: a topic, a broker, or (with an empty name) all brokers."""

    kind: str
    name: str


def resource_of(core: BrokerCore, resource_type: int, name: str) -> Resource:
    """The owner that a request names; `Refused` if there is none."""
    if resource_type == _TOPIC_RESOURCE:
        core.topic(name)
        return Resource(TOPIC, name)
    if resource_type == _BROKER_RESOURCE:
        if name not in {ALL_BROKERS, str(core.spec.broker_id)}:
            message = f"broker {name!r} is asked for, this is {core.spec.broker_id}"
            raise Refused(Code.INVALID_REQUEST, message)
        return Resource(BROKER, name)
    message = f"settings of resources of type {resource_type} are not supported"
    raise Refused(Code.INVALID_REQUEST, message)
