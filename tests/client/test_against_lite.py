"""The client against Kafka Lite."""

import asyncio
import itertools
import time
from collections.abc import Iterator

import pytest

from shoal.client.admin import ConfigChange, NewTopic, Operation, Resource, ResourceType
from shoal.client.client import Client
from shoal.client.consume.consumer import Consumer, FetchedRecord, RawConsumer
from shoal.client.errors import KafkaError, OffsetOutOfRange
from shoal.client.produce.producer import Producer
from shoal.client.produce.sessions import IdempotentSession
from shoal.client.results import EARLIEST, LATEST
from shoal.lite.cluster import LiteCluster
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.records.records import Record, decode_records, encode_batch

pytestmark = pytest.mark.slow

_names = itertools.count()


@pytest.fixture(scope="module")
def lite() -> Iterator[LiteCluster]:
    with LiteCluster() as running:
        yield running


def batch(value: str) -> bytearray:
    return encode_batch([Record(0, time.time_ns() // 1_000_000, None, value.encode())])


async def new_topic(client: Client, partitions: int = 1) -> list[TopicPartition]:
    name = f"client-{next(_names)}"
    await client.admin.create_topics([NewTopic(name, partitions, 1)])
    return [TopicPartition(name, number) for number in range(partitions)]


async def read_values(client: Client, tp: TopicPartition) -> list[str]:
    end = (await client.list_offsets({tp: LATEST}))[tp].offset
    values: list[str] = []
    async with RawConsumer(client, {tp: EARLIEST}) as consumer:
        while consumer.positions[tp] < end:
            for item in await consumer.poll(200):
                values += [(r.value or b"").decode() for r in decode_records(item.value)]
    return values


async def test_administration(lite: LiteCluster) -> None:
    async with Client({"bootstrap.servers": lite.bootstrap}) as client:
        (tp,) = await new_topic(client)
        topic = Resource(ResourceType.TOPIC, tp.topic)
        with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
            await client.admin.create_topics([NewTopic(tp.topic, 1, 1)])
        await client.admin.alter_configs({topic: {"retention.ms": "1234567"}})
        assert (await client.admin.describe_configs([topic]))[topic]["retention.ms"].value == (
            "1234567"
        )
        await client.admin.alter_configs(
            {topic: [ConfigChange("retention.ms", None, Operation.DELETE)]}
        )
        assert (await client.admin.describe_configs([topic]))[topic]["retention.ms"].is_default
        await client.admin.create_partitions({tp.topic: 3})
        await client.leader(TopicPartition(tp.topic, 2))
        await client.produce({tp: batch("a")})
        await client.produce({tp: batch("b")})
        assert await client.admin.delete_records({tp: 1}) == {tp: 1}
        assert await read_values(client, tp) == ["b"]
        async with RawConsumer(client, {tp: 0}) as consumer:
            with pytest.raises(OffsetOutOfRange):
                await consumer.poll()
        await client.admin.delete_topics([tp.topic])
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await client.admin.delete_topics([tp.topic])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_records_of_every_codec(lite: LiteCluster, codec: str) -> None:
    settings = {"bootstrap.servers": lite.bootstrap, "compression.type": codec}
    async with Client(settings) as client:
        tps = await new_topic(client, 4)
        async with Producer(client) as producer:
            sent = [await producer.send(tps[0].topic, b"%d" % i, key=b"%d" % i) for i in range(300)]
        assert {future.result().outcome for future in sent} == {Outcome.OK}
        received: list[FetchedRecord] = []
        async with Consumer(client, dict.fromkeys(tps, EARLIEST)) as consumer:
            while len(received) < 300:
                received += await consumer.poll_records()
        assert sorted(int(item.record.value or b"") for item in received) == list(range(300))


async def test_a_killed_broker_costs_no_batch_and_writes_none_twice() -> None:
    with LiteCluster() as lite:
        settings = {"bootstrap.servers": lite.bootstrap, "delivery.timeout.ms": 30_000}
        async with Client(settings) as client:
            tps = await new_topic(client, 3)
            async with IdempotentSession(client) as session:
                futures = []
                for number in range(600):
                    futures += [await session.send(tp, batch(str(number))) for tp in tps]
                    if number in {150, 300, 450}:
                        await asyncio.to_thread(lite.kill, 1)
                        await asyncio.to_thread(lite.restart, 1)
                    await asyncio.sleep(0)
                await session.flush()
            assert {future.result().outcome for future in futures} == {Outcome.OK}
            for tp in tps:
                assert await read_values(client, tp) == [str(number) for number in range(600)]
