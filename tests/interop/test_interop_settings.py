"""Settings as Kafka describes and changes them. On Apache Kafka this proves our tables, too."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal.lite.base.settings import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    ConfigSetting,
    ConfigSource,
    UpdateMode,
)
from shoal.wire.api_keys import ApiKey
from support.lite.client import PlainClient
from support.lite.clusters import eventually

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
# Fewer partitions, so that a cluster is up in a blink; the others say where a node is.
OUR_OWN_DEFAULTS = {
    "group.initial.rebalance.delay.ms",
    "log.segment.bytes",
    "offsets.topic.num.partitions",
    "transaction.state.log.num.partitions",
}


@pytest.fixture
def client(bootstrap: str) -> Iterator[PlainClient]:
    with PlainClient(bootstrap) as plain:
        yield plain


def describe(client: PlainClient, kind: int, name: str, *keys: str) -> dict[str, Any]:
    response = client.request(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
        ],
        include_synonyms=True,
        include_documentation=False,
    )
    [result] = response.results
    assert result.error_code == 0, result.error_message
    return {config.name: config for config in result.configs}


def alter(client: PlainClient, kind: int, name: str, *changes: tuple[str, int, str | None]) -> int:
    response = client.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": operation, "value": value}
                    for key, operation, value in changes
                ],
            }
        ],
        validate_only=False,
    )
    return int(response.responses[0].error_code)


def visible(settings: dict[str, ConfigSetting]) -> set[str]:
    return {name for name, setting in settings.items() if not setting.is_hidden}


def default_of(described: Any) -> str | None:
    values = [one.value for one in described.synonyms if one.source == ConfigSource.DEFAULT]
    return values[0] if values else None


def test_a_topic_has_every_setting_of_kafka(client: PlainClient, topic: str) -> None:
    described = describe(client, TOPIC, topic)
    assert set(described) == visible(TOPIC_SETTINGS)
    for name, setting in TOPIC_SETTINGS.items():
        if not setting.is_hidden:
            assert described[name].config_type == setting.kind, name
            assert described[name].value == setting.default, name
            assert described[name].read_only is False


def test_a_broker_has_every_setting_of_kafka(client: PlainClient) -> None:
    described = describe(client, BROKER, "1")
    assert set(described) == visible(BROKER_SETTINGS)
    for name, setting in BROKER_SETTINGS.items():
        if setting.is_hidden:
            continue
        assert described[name].config_type == setting.kind, name
        assert described[name].is_sensitive == setting.is_secret, name
        assert described[name].read_only == (setting.change is UpdateMode.START), name
        if name not in OUR_OWN_DEFAULTS:
            assert default_of(described[name]) == setting.default, name


def test_a_value_is_the_topics_or_the_brokers_or_the_default(
    client: PlainClient, topic: str
) -> None:
    def value_and_synonyms(name: str) -> list[tuple[str, str | None, int]]:
        config = describe(client, TOPIC, topic, name)[name]
        places = [(one.name, one.value, int(one.source)) for one in config.synonyms]
        assert (config.value, config.config_source) == (places[0][1], places[0][2])
        return places

    default = ("message.max.bytes", "1048588", ConfigSource.DEFAULT)
    assert value_and_synonyms("max.message.bytes") == [default]
    try:
        assert alter(client, BROKER, "", ("message.max.bytes", SET, "2000000")) == 0
        assert alter(client, BROKER, "1", ("message.max.bytes", SET, "3000000")) == 0
        assert alter(client, TOPIC, topic, ("max.message.bytes", SET, "4000000")) == 0
        layers = [
            ("max.message.bytes", "4000000", ConfigSource.TOPIC),
            ("message.max.bytes", "3000000", ConfigSource.DYNAMIC_BROKER),
            ("message.max.bytes", "2000000", ConfigSource.DYNAMIC_DEFAULT_BROKER),
            default,
        ]
        # A change is acknowledged before the broker acts on it.
        eventually(lambda: value_and_synonyms("max.message.bytes") == layers)
        everywhere = describe(client, BROKER, "")["message.max.bytes"]
        assert [(one.value, one.source) for one in everywhere.synonyms] == [
            ("2000000", ConfigSource.DYNAMIC_DEFAULT_BROKER)
        ]
    finally:
        alter(client, BROKER, "", ("message.max.bytes", DELETE, None))
        alter(client, BROKER, "1", ("message.max.bytes", DELETE, None))
    assert alter(client, TOPIC, topic, ("max.message.bytes", DELETE, None)) == 0
    eventually(lambda: value_and_synonyms("max.message.bytes") == [default])


def test_lists_grow_and_shrink(client: PlainClient, topic: str) -> None:
    def policy() -> str:
        return str(describe(client, TOPIC, topic, "cleanup.policy")["cleanup.policy"].value)

    assert alter(client, TOPIC, topic, ("cleanup.policy", APPEND, "compact")) == 0
    eventually(lambda: policy() == "delete,compact")
    assert alter(client, TOPIC, topic, ("cleanup.policy", APPEND, "compact")) == 0
    eventually(lambda: policy() == "delete,compact")
    assert alter(client, TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete")) == 0
    eventually(lambda: policy() == "compact")


INVALID_CONFIG, INVALID_REQUEST, UNKNOWN_TOPIC = 40, 42, 3


@pytest.mark.parametrize(
    ("kind", "changes", "code"),
    [
        (TOPIC, [("retention.ms", APPEND, "1")], INVALID_CONFIG),
        (TOPIC, [("nonsense", SET, "1")], INVALID_CONFIG),
        (TOPIC, [("nonsense", DELETE, None)], 0),
        (TOPIC, [("retention.ms", SET, None)], INVALID_REQUEST),
        (TOPIC, [("retention.ms", SET, "soon")], INVALID_CONFIG),
        (TOPIC, [("retention.ms", SET, "-2")], INVALID_CONFIG),
        (TOPIC, [("cleanup.policy", SET, "burn")], INVALID_CONFIG),
        (TOPIC, [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], INVALID_REQUEST),
        (BROKER, [("num.partitions", SET, "2")], INVALID_REQUEST),
        (BROKER, [("message.max.bytes", SET, "-2")], INVALID_REQUEST),
        (BROKER, [("max.connections", SET, "many")], INVALID_REQUEST),
        (BROKER, [("num.partitions", DELETE, None)], 0),
    ],
)
def test_wrong_changes_are_refused(
    client: PlainClient, topic: str, kind: int, changes: list[Any], code: int
) -> None:
    assert alter(client, kind, topic if kind == TOPIC else "1", *changes) == code
    assert set(describe(client, TOPIC, topic)) == visible(TOPIC_SETTINGS)
    assert describe(client, TOPIC, topic, "retention.ms")["retention.ms"].value == "604800000"


def test_owners_that_are_not_there_are_refused(
    client: PlainClient, new_name: Callable[[str], str]
) -> None:
    change = ("retention.ms", SET, "1")
    assert alter(client, TOPIC, new_name("nowhere"), change) == UNKNOWN_TOPIC
    assert alter(client, BROKER, "77", ("log.retention.ms", SET, "1")) == INVALID_REQUEST
    assert alter(client, BROKER, "x", ("log.retention.ms", SET, "1")) == INVALID_REQUEST
    assert alter(client, BROKER, "", ("listeners", SET, "PLAINTEXT://:1")) == INVALID_REQUEST
