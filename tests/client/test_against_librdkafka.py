"""The client against librdkafka's mock cluster, and beside librdkafka's own clients.

The mock's refusal of ApiVersions and its Metadata have bytes that Kafka's do not have, which
makes it a good stranger.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from shoal.client.client import Client
from shoal.client.consume.consumer import Consumer
from shoal.client.produce.producer import Producer
from shoal.client.produce.sessions import IdempotentSession
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import EARLIEST, LATEST
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.records.records import Record, encode_batch
from support.client.mock_cluster import mock_cluster

pytestmark = pytest.mark.slow

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = [TopicPartition("t", number) for number in range(4)]


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with mock_cluster("t", brokers=2) as cluster:
        yield cluster.bootstrap


def batch(value: bytes = b"v") -> bytearray:
    return encode_batch([Record(0, 1_700_000_000_000, b"k", value)])


async def test_versions_and_metadata_of_a_stranger(bootstrap: str) -> None:
    async with Client({"bootstrap.servers": bootstrap}) as client:
        cluster = await client.metadata(["t"])
        assert len(cluster.brokers) == 2
        assert cluster.partitions_of("t") == PARTITIONS
        assert client.newest(ApiKey.PRODUCE, at_most=12) == 10


@pytest.mark.parametrize("codec", CODECS)
async def test_librdkafka_reads_what_we_write(bootstrap: str, codec: str) -> None:
    values = [b"%d" % i * 20 for i in range(50)]
    settings = {"bootstrap.servers": bootstrap, "compression.type": codec}
    async with Client(settings) as client, Producer(client) as producer:
        for value in values:
            await producer.send("t", value, partition=0, headers=[("h", b"x"), ("n", None)])
    received = await asyncio.to_thread(_read_with_librdkafka, bootstrap, len(values))
    assert [value for value, _ in received] == values
    assert {tuple(headers) for _, headers in received} == {(("h", b"x"), ("n", None))}


def _read_with_librdkafka(bootstrap: str, count: int) -> list[tuple[bytes | None, list[Any]]]:
    consumer = LibrdkafkaConsumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([LibrdkafkaPartition("t", 0, OFFSET_BEGINNING)])
    received: list[tuple[bytes | None, list[Any]]] = []
    while len(received) < count:
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        received.append((message.value(), list(message.headers() or ())))
    consumer.close()
    return received


@pytest.mark.parametrize("codec", CODECS)
async def test_we_read_what_librdkafka_writes(bootstrap: str, codec: str) -> None:
    values = [b"%d" % i * 20 for i in range(50)]

    def write() -> None:
        producer = LibrdkafkaProducer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "log_level": 0}
        )
        for value in values:
            producer.produce("t", value, key=b"k", partition=1, headers=[("h", b"x")])
        assert producer.flush(10) == 0

    await asyncio.to_thread(write)
    async with (
        Client({"bootstrap.servers": bootstrap}) as client,
        Consumer(client, {PARTITIONS[1]: EARLIEST}) as consumer,
    ):
        records: list[Record] = []
        while len(records) < len(values):
            records += [item.record for item in await consumer.poll_records()]
        assert [record.value for record in records] == values
        assert {record.headers for record in records} == {(("h", b"x"),)}


async def test_an_idempotent_session_over_all_partitions(bootstrap: str) -> None:
    async with Client({"bootstrap.servers": bootstrap}) as client:
        async with IdempotentSession(client) as session:
            futures = [await session.send(tp, batch()) for _ in range(50) for tp in PARTITIONS]
            await session.flush()
        assert {future.result().outcome for future in futures} == {Outcome.OK}
        ends = await client.list_offsets(dict.fromkeys(PARTITIONS, LATEST))
        assert {listed.offset for listed in ends.values()} == {50}


async def test_transactions_of_the_first_protocol(bootstrap: str) -> None:
    async with (
        Client({"bootstrap.servers": bootstrap}) as client,
        TransactionalSession(client, "id") as session,
    ):
        assert session.transaction_version == 1
        for ends_well in (True, False, True):
            session.begin()
            results = await session.produce({tp: batch() for tp in PARTITIONS})
            assert {result.outcome for result in results.values()} == {Outcome.OK}
            await session.send_offsets({PARTITIONS[0]: 7}, "group")
            await (session.commit() if ends_well else session.abort())
