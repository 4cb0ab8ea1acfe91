"""Kafka's consumer protocol between the members of a group: subscriptions and assignments.

A message is a version and its body. Brokers pass it on without decoding it, so all clients of a
group must understand each other: of a newer version, the known fields are read.
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any, NamedTuple

from shoal.model.topics import TopicPartition
from shoal.wire.building import build
from shoal.wire.errors import Truncated
from shoal.wire.messages import data_class, decode_body, encode_data

PROTOCOL_TYPE = "consumer"
_VERSION = Struct(">h")
_NEWEST_SUBSCRIPTION = 3
_NEWEST_ASSIGNMENT = 3
_FIRST_WITH_OWNED = 1
_FIRST_WITH_GENERATION = 2


class Subscription(NamedTuple):
    """The topics of a member, and its partitions from an earlier generation."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1


def encode_subscription(subscription: Subscription) -> bytes:
    values = {
        "topics": sorted(subscription.topics),
        "user_data": None,
        "owned_partitions": _by_topic(subscription.owned),
        "generation_id": subscription.generation,
        "rack_id": None,
    }
    return _encode("consumer_protocol_subscription", _NEWEST_SUBSCRIPTION, values)


def decode_subscription(data: bytes) -> Subscription:
    version, message = _decode("consumer_protocol_subscription", data, _NEWEST_SUBSCRIPTION)
    owned = _partitions(message.owned_partitions) if version >= _FIRST_WITH_OWNED else ()
    generation = message.generation_id if version >= _FIRST_WITH_GENERATION else -1
    return Subscription(frozenset(message.topics), frozenset(owned), generation)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    values = {"assigned_partitions": _by_topic(partitions), "user_data": None}
    return _encode("consumer_protocol_assignment", 0, values)


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """The assigned partitions; empty if the leader sent no assignment."""
    if not data:
        return frozenset()
    _, message = _decode("consumer_protocol_assignment", data, _NEWEST_ASSIGNMENT)
    return frozenset(_partitions(message.assigned_partitions))


def _by_topic(partitions: Iterable[TopicPartition]) -> list[Mapping[str, Any]]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return [{"topic": topic, "partitions": indexes} for topic, indexes in topics.items()]


def _partitions(topics: Iterable[Any]) -> Iterable[TopicPartition]:
    return (TopicPartition(item.topic, int(index)) for item in topics for index in item.partitions)


def _encode(name: str, version: int, values: Mapping[str, Any]) -> bytes:
    return _VERSION.pack(version) + encode_data(build(data_class(name, version), values))


def _decode(name: str, data: bytes, newest: int) -> tuple[int, Any]:
    if len(data) < _VERSION.size:
        raise Truncated(f"{name}: {len(data)} bytes", position=0)
    version = max(0, min(_VERSION.unpack_from(data)[0], newest))
    return version, decode_body(data, data_class(name, version), _VERSION.size)
