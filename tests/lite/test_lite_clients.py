"""The client that people run: librdkafka, with its defaults, unchanged."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from shoal.lite.cluster import LiteCluster
from shoal.wire.batch import iter_batches
from support.lite.client import PlainClient, at

PATIENCE_S = 60.0
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@contextmanager
def admin_of(bootstrap: str) -> Iterator[AdminClient]:
    """Not a fixture: pytest would hold it, and its threads, longer than the test lasts."""
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        yield admin


def produce_messages(
    bootstrap: str, send: Callable[[Producer], None], **settings: Any
) -> list[Message]:
    """What was delivered, by a producer that is gone when this returns."""
    delivered: list[Message] = []
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        (failed if error is not None else delivered).append(error or message)  # type: ignore[arg-type]

    properties = {"bootstrap.servers": bootstrap, "on_delivery": on_delivery, "log_level": 0}
    properties |= {key.replace("_", "."): value for key, value in settings.items()}
    with Producer(properties) as producer:
        send(producer)
        assert producer.flush(PATIENCE_S) == 0
    assert failed == []
    return delivered


def consume_messages(bootstrap: str, count: int, *starts: TopicPartition) -> list[Message]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "nobody",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    messages: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    with Consumer(settings) as consumer:
        consumer.assign(list(starts))
        while len(messages) < count and time.monotonic() < deadline:
            messages += consumer.consume(count - len(messages), timeout=1.0)
    assert [message.error() for message in messages] == [None] * count
    return messages


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_messages_come_back_as_they_were(
    client: PlainClient, bootstrap: str, topic: str, codec: str, idempotent: bool
) -> None:
    headers: list[tuple[str, str | bytes | None]] = [
        ("h", b"\x00\xff"),
        ("h", b"twice"),
        ("empty", b""),
        ("null", None),
    ]

    def send(producer: Producer) -> None:
        for i in range(500):
            producer.produce(topic, b"%d " % i * 20, key=b"k%d" % i, headers=headers)
        producer.produce(topic, None, key=b"tombstone")
        producer.produce(topic, b"", key=None)

    delivered = produce_messages(
        bootstrap, send, compression_type=codec, enable_idempotence=idempotent, linger_ms=20
    )
    assert {message.offset() for message in delivered} == set(range(502))
    messages = consume_messages(bootstrap, 502, TopicPartition(topic, 0, 0))
    assert [message.offset() for message in messages] == list(range(502))
    assert [message.value() for message in messages[:500]] == [b"%d " % i * 20 for i in range(500)]
    assert [message.key() for message in messages[:500]] == [b"k%d" % i for i in range(500)]
    assert all(message.headers() == headers for message in messages[:500])
    assert (messages[500].key(), messages[500].value()) == (b"tombstone", None)
    assert (messages[501].key(), messages[501].value()) == (None, b"")
    # It was really compressed, by the client, and kept so by the broker.
    [fetched] = client.fetch(at(topic, 0)).partitions
    codecs = {batch.codec for batch in iter_batches(fetched.records)}
    assert CODECS[codec] in codecs


def test_large_messages_and_many_partitions(bootstrap: str, client: PlainClient) -> None:
    client.create_topic("wide", partitions=20, max_message_bytes="12000000")
    large = bytes(range(256)) * 40_000

    def send(producer: Producer) -> None:
        producer.produce("wide", large, partition=7)
        for i in range(2000):
            producer.produce("wide", b"%d" % i, partition=i % 20)

    produce_messages(bootstrap, send, message_max_bytes=12_000_000)
    starts = [TopicPartition("wide", partition, 0) for partition in range(20)]
    messages = consume_messages(bootstrap, 2001, *starts)
    assert sum(message.value() == large for message in messages) == 1
    small = {message.value() for message in messages} - {large}
    assert small == {b"%d" % i for i in range(2000)}


def test_a_consumer_sees_what_comes_while_it_waits(bootstrap: str, topic: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "nobody", "log_level": 0}
    with Consumer(settings | {"enable.auto.commit": False}) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(0.3) is None
        produce_messages(bootstrap, lambda producer: producer.produce(topic, b"now"))
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.value() == b"now"


def test_an_idempotent_producer_rides_out_kills() -> None:
    with LiteCluster() as mortal:
        bootstrap = mortal.bootstrap
        with admin_of(bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)

        def send(producer: Producer) -> None:
            for i in range(3000):
                producer.produce("t", b"%d" % i)
                producer.poll(0)
                if i in {500, 1500, 2500}:
                    mortal.kill(1)
                    producer.poll(0.02)
                    mortal.restart(1)

        delivered = produce_messages(
            bootstrap, send, enable_idempotence=True, batch_num_messages=50, retry_backoff_ms=20
        )
        assert len(delivered) == 3000
        messages = consume_messages(bootstrap, 3000, TopicPartition("t", 0, 0))
        assert [message.value() for message in messages] == [b"%d" % i for i in range(3000)]


def test_topics_are_made_on_first_use(bootstrap: str) -> None:
    delivered = produce_messages(bootstrap, lambda producer: producer.produce("from-nothing", b"x"))
    assert [message.offset() for message in delivered] == [0]


def test_topics_are_not_made_where_that_is_switched_off() -> None:
    settings = {"auto.create.topics.enable": "false"}
    with LiteCluster(properties=settings) as strict, admin_of(strict.bootstrap) as admin:
        error = admin.list_topics("absent", timeout=PATIENCE_S).topics["absent"].error
        assert error is not None
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert admin.list_topics(timeout=PATIENCE_S).topics == {}


def test_admin_of_topics(bootstrap: str) -> None:
    with admin_of(bootstrap) as admin:
        wish = NewTopic("managed", 2, 1, config={"retention.ms": "60000"})
        admin.create_topics([wish])["managed"].result(PATIENCE_S)
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([wish])["managed"].result(PATIENCE_S)
        assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
        admin.create_partitions([NewPartitions("managed", 5)])["managed"].result(PATIENCE_S)
        described = admin.list_topics("managed", timeout=PATIENCE_S).topics["managed"]
        assert sorted(described.partitions) == [0, 1, 2, 3, 4]
        assert {partition.leader for partition in described.partitions.values()} == {1}
        admin.delete_topics(["managed"])["managed"].result(PATIENCE_S)
        assert "managed" not in admin.list_topics(timeout=PATIENCE_S).topics
        # A topic of the same name is another topic: nothing of the old one is in it.
        admin.create_topics([NewTopic("managed", 1, 1)])["managed"].result(PATIENCE_S)
        again = admin.list_topics("managed", timeout=PATIENCE_S).topics["managed"]
        assert list(again.partitions) == [0]


def test_admin_of_settings(bootstrap: str, topic: str) -> None:
    with admin_of(bootstrap) as admin:
        resource = ConfigResource(ResourceType.TOPIC, topic)

        def setting(name: str) -> ConfigEntry:
            found = admin.describe_configs([resource])[resource].result(PATIENCE_S)
            entry: ConfigEntry = found[name]
            return entry

        assert (setting("max.message.bytes").value, setting("max.message.bytes").is_default) == (
            "1048588",
            True,
        )
        change = ConfigEntry(
            "max.message.bytes", "500", incremental_operation=AlterConfigOpType.SET
        )
        altered = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        admin.incremental_alter_configs([altered])[altered].result(PATIENCE_S)
        assert (setting("max.message.bytes").value, setting("max.message.bytes").is_default) == (
            "500",
            False,
        )
        broker = ConfigResource(ResourceType.BROKER, "1")
        values = admin.describe_configs([broker])[broker].result(PATIENCE_S)
        assert values["num.partitions"].value == "1"
        nowhere = ConfigResource(ResourceType.TOPIC, "nowhere")
        with pytest.raises(KafkaException) as refused:
            admin.describe_configs([nowhere])[nowhere].result(PATIENCE_S)
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_admin_of_records_and_the_cluster(cluster: LiteCluster, topic: str) -> None:
    with admin_of(cluster.bootstrap) as admin:

        def send(producer: Producer) -> None:
            for i in range(10):
                producer.produce(topic, b"%d" % i, timestamp=1_700_000_000_000 + i)

        produce_messages(cluster.bootstrap, send)
        place = TopicPartition(topic, 0)

        specs: Any = OffsetSpec

        def offset_at(spec: Any) -> int:
            listed = admin.list_offsets({place: spec})[place].result(PATIENCE_S)
            offset: int = listed.offset
            return offset

        assert offset_at(specs.latest()) == 10
        assert offset_at(specs.for_timestamp(1_700_000_000_004)) == 4
        assert offset_at(specs.max_timestamp()) == 9
        deleted = admin.delete_records([TopicPartition(topic, 0, 6)])
        [result] = deleted.values()
        assert result.result(PATIENCE_S).low_watermark == 6
        assert offset_at(specs.earliest()) == 6
        described = admin.describe_cluster().result(PATIENCE_S)
        assert [f"{node.host}:{node.port}" for node in described.nodes] == [cluster.bootstrap]
        assert described.controller.id == 1
