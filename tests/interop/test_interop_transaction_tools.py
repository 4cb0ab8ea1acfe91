"""Apache Kafka's own tools and Java producer with transactions: list, describe, find and abort."""

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from py4j.java_gateway import JavaGateway

from shoal.client.client import Client
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import LATEST
from shoal.model.topics import TopicPartition
from shoal.wire.records.records import Record, encode_batch
from support.apache.kafka_tools import KafkaTools

NewName = Callable[[str], str]


@pytest.fixture
def server(bootstrap: str) -> tuple[str, str]:
    return "--bootstrap-server", bootstrap


def batch(value: str) -> bytearray:
    return encode_batch([Record(0, time.time_ns() // 1_000_000, None, value.encode())])


def row_of(table: str, word: str) -> list[str]:
    """The fields of the line that has a word."""
    return next(line.split() for line in table.splitlines() if word in line.split())


async def test_transactions_are_listed_and_described(
    kafka_tools: KafkaTools, bootstrap: str, server: tuple[str, str], topic: str, new_name: NewName
) -> None:
    tp, name = TopicPartition(topic, 0), new_name("id")
    async with (
        Client({"bootstrap.servers": bootstrap}) as client,
        TransactionalSession(client, name) as session,
    ):
        session.begin()
        assert (await session.produce({tp: batch("open")}))[tp].is_ok
        producer_id = str(session.identity.producer_id)
        listed = kafka_tools("transactions", *server, "list")
        assert row_of(listed, name)[2:] == [producer_id, "Ongoing"]
        told = kafka_tools("transactions", *server, "describe", "--transactional-id", name)
        assert {producer_id, "Ongoing", f"{topic}-0"} <= set(row_of(told, producer_id))
        where = ("--topic", topic, "--partition", "0")
        producers = kafka_tools("transactions", *server, "describe-producers", *where)
        assert row_of(producers, producer_id)[0] == producer_id
        await session.commit()


async def test_a_hanging_transaction_is_found_and_aborted(
    kafka_tools: KafkaTools, bootstrap: str, server: tuple[str, str], topic: str, new_name: NewName
) -> None:
    tp = TopicPartition(topic, 0)
    async with Client({"bootstrap.servers": bootstrap}) as client:
        session = TransactionalSession(client, new_name("id"))
        await session.start()
        session.begin()
        assert (await session.produce({tp: batch("hangs")}))[tp].is_ok
        found = kafka_tools(
            "transactions",
            *server,
            "find-hanging",
            "--topic",
            topic,
            "--max-transaction-timeout",
            "0",
        )
        assert "Topic" in found
        where = ("--topic", topic, "--partition", "0", "--start-offset", "0")
        kafka_tools("transactions", *server, "abort", *where)
        stable = await client.list_offsets({tp: LATEST}, isolation="read_committed")
        assert stable[tp].offset == 2
        await session.close()


def test_a_java_producer_in_transactions(
    kafka_tools: KafkaTools, bootstrap: str, server: tuple[str, str], topic: str, new_name: NewName
) -> None:
    name = new_name("id")
    told = kafka_tools(
        "producer-perf-test",
        *("--topic", topic, "--num-records", "2000", "--record-size", "50"),
        *("--throughput", "-1", "--transactional-id", name),
        *("--transaction-duration-ms", "20"),
        *("--producer-props", f"bootstrap.servers={bootstrap}"),
    )
    assert "2000 records sent" in told
    state = kafka_tools("transactions", *server, "describe", "--transactional-id", name)
    assert "CompleteCommit" in state
    consumed = kafka_tools(
        "console-consumer",
        *server,
        *("--topic", topic, "--from-beginning", "--max-messages", "2000"),
        *("--isolation-level", "read_committed", "--timeout-ms", "20000"),
    )
    assert "Processed a total of 2000 messages" in consumed


def test_a_java_producer_aborts_right_after_a_commit(
    java_gateway: JavaGateway, bootstrap: str, topic: str, new_name: NewName
) -> None:
    """The abort is on its way while the markers of the commit before are being written."""
    producer = java_producer(java_gateway, bootstrap, new_name("id"))
    record = java_gateway.jvm.org.apache.kafka.clients.producer.ProducerRecord
    try:
        producer.initTransactions()
        for number in range(40):
            producer.beginTransaction()
            producer.send(record(topic, f"committed-{number}"))
            producer.commitTransaction()
            producer.beginTransaction()
            if number % 2:
                producer.send(record(topic, f"aborted-{number}"))
            producer.abortTransaction()
    finally:
        producer.close()
    values = read_committed(bootstrap, topic, 40)
    assert values == [f"committed-{number}" for number in range(40)]


def java_producer(gateway: JavaGateway, bootstrap: str, transactional_id: str) -> Any:
    serializer = "org.apache.kafka.common.serialization.StringSerializer"
    properties = gateway.jvm.java.util.Properties()
    for name, value in {
        "bootstrap.servers": bootstrap,
        "transactional.id": transactional_id,
        "key.serializer": serializer,
        "value.serializer": serializer,
    }.items():
        properties.setProperty(name, value)
    return gateway.jvm.org.apache.kafka.clients.producer.KafkaProducer(properties)


def read_committed(bootstrap: str, topic: str, count: int) -> list[str]:
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": "none",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    values: list[str] = []
    with confluent_kafka.Consumer(config) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        deadline_s = time.monotonic() + 60
        while len(values) < count and time.monotonic() < deadline_s:
            message = consumer.poll(1.0)
            if message is not None and not message.error():
                values.append((message.value() or b"").decode())
    return values
