"""aiokafka and kafka-python, as they come: messages in every compression, offsets, topics."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PlainTopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.codec import has_lz4, has_snappy, has_zstd

from support.lite.clusters import eventually

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
COUNT = 200
HEADERS = [("h", b"\x00\xff"), ("empty", b"")]
VALUES = [b"%d " % number * 20 for number in range(COUNT)]
NewTopicCall = Callable[..., str]
NewName = Callable[[str], str]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_aiokafka_sends_and_reads(
    bootstrap: str, new_topic: NewTopicCall, codec: str | None, is_idempotent: bool
) -> None:
    topic = new_topic()
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=codec,
        enable_idempotence=is_idempotent,
        linger_ms=10,
    )
    async with producer:
        sent = [
            await producer.send(topic, value, key=b"k", headers=HEADERS, partition=0)
            for value in VALUES
        ]
        offsets = [(await one).offset for one in sent]
    assert offsets == list(range(COUNT))
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: COUNT}
        consumer.seek(partition, 0)
        messages = [await consumer.getone() for _ in range(COUNT)]
        found = await consumer.offsets_for_times({partition: messages[7].timestamp})
    assert [message.value for message in messages] == VALUES
    assert all(list(message.headers) == HEADERS for message in messages)
    first_of_its_time = next(m for m in messages if m.timestamp >= messages[7].timestamp)
    assert found[partition].offset == first_of_its_time.offset


async def test_aiokafka_manages_topics(bootstrap: str, new_name: NewName) -> None:
    topic = new_name("aio")
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([AioNewTopic(topic, 3, 1)])
        assert topic in await admin.list_topics()
        [described] = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 3
        await admin.delete_topics([topic])
    finally:
        await admin.close()


@contextmanager
def admin_of(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        yield admin


# It compresses only with libraries that it does not bring along.
OF_KAFKA_PYTHON = [
    None,
    "gzip",
    *(["snappy"] if has_snappy() else []),
    *(["lz4"] if has_lz4() else []),
    *(["zstd"] if has_zstd() else []),
]


@pytest.mark.parametrize("codec", OF_KAFKA_PYTHON)
@pytest.mark.parametrize("is_idempotent", [False, True])
@pytest.mark.quick("True-zstd", "False-None")
def test_kafka_python_sends_and_reads(
    bootstrap: str, new_topic: NewTopicCall, codec: str | None, is_idempotent: bool
) -> None:
    topic = new_topic()
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=codec,
        enable_idempotence=is_idempotent,
        linger_ms=10,
    )
    with closing(producer):
        sent = [producer.send(topic, value, b"k", HEADERS, partition=0) for value in VALUES]
        offsets = [one.get(30).offset for one in sent]
    assert offsets == list(range(COUNT))
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=30_000)
    with closing(consumer):
        partition = PlainTopicPartition(topic, 0)
        consumer.assign([partition])
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: COUNT}
        consumer.seek(partition, 0)
        messages = [next(consumer) for _ in range(COUNT)]
    assert [message.value for message in messages] == VALUES
    assert all([tuple(header) for header in message.headers] == HEADERS for message in messages)


def test_kafka_python_manages_topics(bootstrap: str, new_name: NewName) -> None:
    topic = new_name("plain")
    with admin_of(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "7000"})])
        eventually(lambda: topic in admin.list_topics())
        admin.create_partitions({topic: NewPartitions(4)})
        eventually(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 4)
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        assert "7000" in str(admin.describe_configs([resource]))
        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.list_topics())
