"""Transactions by our own client and by librdkafka: what is read, and who is fenced."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.consumer import RawConsumer
from shoal.client.errors import KafkaError, ProducerFenced
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import EARLIEST, LATEST
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.records.records import Record, decode_records, encode_batch

NewName = Callable[[str], str]
PATIENCE_S = 60.0
COMMITTED: dict[str, Any] = {"isolation": "read_committed"}


def batch(*values: str) -> bytearray:
    now_ms = time.time_ns() // 1_000_000
    return encode_batch([Record(i, now_ms, b"k", v.encode()) for i, v in enumerate(values)])


async def read_values(client: Client, tp: TopicPartition, **options: Any) -> list[str]:
    """All values of a partition up to its end."""
    end = (await client.list_offsets({tp: LATEST}, **options))[tp].offset
    values: list[str] = []
    async with RawConsumer(client, {tp: EARLIEST}, **options) as consumer:
        while consumer.positions[tp] < end:
            for item in await consumer.poll(200):
                values += [(r.value or b"").decode() for r in decode_records(item.value)]
    return values


@contextlib.asynccontextmanager
async def transaction_version(client: Client, level: int) -> AsyncIterator[None]:
    """The cluster with another transaction protocol, for a while."""

    async def agree_on(new_level: int) -> None:
        update = {
            "feature": "transaction.version",
            "max_version_level": new_level,
            "upgrade_type": 2 if new_level < 2 else 1,
        }
        values = {"timeout": 10_000, "feature_updates": [update], "validate_only": False}
        response = await client.call(ApiKey.UPDATE_FEATURES, values, at_least=1)
        assert response.error_code == 0, response.error_message

    await agree_on(level)
    try:
        yield
    finally:
        await agree_on(2)


@pytest.mark.parametrize("level", [0, 2])
async def test_what_is_aborted_is_not_read(
    bootstrap: str, new_topic: Callable[..., str], new_name: NewName, level: int
) -> None:
    name = new_topic(partitions=2)
    one, two = TopicPartition(name, 0), TopicPartition(name, 1)
    async with (
        Client({"bootstrap.servers": bootstrap}) as admin,
        transaction_version(admin, level),
        Client({"bootstrap.servers": bootstrap}) as client,
    ):
        async with TransactionalSession(client, new_name("id")) as session:
            assert session.transaction_version == max(1, level)
            epochs = [session.identity.epoch]
            for number, ends_well in enumerate((True, False, True)):
                session.begin()
                await session.produce({one: batch(f"{number}a"), two: batch(f"{number}b")})
                await session.produce({one: batch(f"{number}c")})
                await (session.commit() if ends_well else session.abort())
                epochs.append(session.identity.epoch)
            assert epochs == ([0, 1, 2, 3] if level == 2 else [0, 0, 0, 0])
            session.begin()
            too_large = batch("x" * 2_000_000)
            assert (await session.produce({one: too_large}))[one].outcome is Outcome.FAILED
            await session.abort()
            async with session.transaction():
                assert (await session.produce({one: batch("3a")}))[one].is_ok
        assert await read_values(client, one, **COMMITTED) == ["0a", "0c", "2a", "2c", "3a"]
        assert await read_values(client, two, **COMMITTED) == ["0b", "2b"]
        assert await read_values(client, two) == ["0b", "1b", "2b"]


async def test_an_open_transaction_bounds_what_is_read(
    bootstrap: str, topic: str, new_name: NewName
) -> None:
    tp = TopicPartition(topic, 0)
    async with Client({"bootstrap.servers": bootstrap}) as client:
        assert (await client.produce({tp: batch("before")}))[tp].is_ok
        async with TransactionalSession(client, new_name("id")) as session:
            session.begin()
            assert (await session.produce({tp: batch("open")}))[tp].is_ok
            assert (await client.produce({tp: batch("behind")}))[tp].is_ok
            stable = (await client.list_offsets({tp: LATEST}, **COMMITTED))[tp].offset
            assert (stable, (await client.list_offsets({tp: LATEST}))[tp].offset) == (1, 3)
            assert await read_values(client, tp, **COMMITTED) == ["before"]
            await session.commit()
        async with RawConsumer(client, {tp: EARLIEST}, **COMMITTED) as consumer:
            values: list[bytes | None] = []
            while len(values) < 3:
                for item in await consumer.poll(500):
                    values += [record.value for record in decode_records(item.value)]
        assert values == [b"before", b"open", b"behind"]


async def test_a_newer_producer_fences_the_older(
    bootstrap: str, topic: str, new_name: NewName
) -> None:
    tp, name = TopicPartition(topic, 0), new_name("id")
    async with Client({"bootstrap.servers": bootstrap}) as client:
        old = TransactionalSession(client, name)
        await old.start()
        old.begin()
        assert (await old.produce({tp: batch("old")}))[tp].is_ok
        async with TransactionalSession(client, name) as new:
            with pytest.raises(ProducerFenced):
                await old.commit()
            await old.close()
            async with new.transaction():
                assert (await new.produce({tp: batch("new")}))[tp].is_ok
        assert await read_values(client, tp, **COMMITTED) == ["new"]


async def test_a_zombies_batches_are_refused(bootstrap: str, topic: str, new_name: NewName) -> None:
    tp, name = TopicPartition(topic, 0), new_name("id")
    async with Client({"bootstrap.servers": bootstrap}) as client:
        zombie = TransactionalSession(client, name)
        await zombie.start()
        async with TransactionalSession(client, name):
            zombie.begin()
            result = (await zombie.produce({tp: batch("zombie")}))[tp]
            assert (result.is_ok, result.error_code) == (False, Code.INVALID_PRODUCER_EPOCH)
            with pytest.raises(ProducerFenced):
                await zombie.abort()
            await zombie.close()
        assert await read_values(client, tp) == []


async def test_a_transaction_that_takes_too_long_is_aborted(
    bootstrap: str, topic: str, new_name: NewName
) -> None:
    tp, name = TopicPartition(topic, 0), new_name("id")
    async with Client({"bootstrap.servers": bootstrap, "transaction.timeout.ms": "500"}) as client:
        session = TransactionalSession(client, name)
        await session.start()
        session.begin()
        assert (await session.produce({tp: batch("late")}))[tp].is_ok
        deadline_s = time.monotonic() + PATIENCE_S
        while (await client.list_offsets({tp: LATEST}, **COMMITTED))[tp].offset < 2:
            assert time.monotonic() < deadline_s
        with pytest.raises(KafkaError):
            await session.commit()
        await session.close()
        assert await read_values(client, tp, **COMMITTED) == []


@pytest.fixture
def producer_of(bootstrap: str) -> Callable[..., confluent_kafka.Producer]:
    def make(name: str, **settings: Any) -> confluent_kafka.Producer:
        config = {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0}
        producer = confluent_kafka.Producer({**config, **settings})
        producer.init_transactions(PATIENCE_S)
        return producer

    return make


def test_librdkafka_commits_aborts_and_is_fenced(
    bootstrap: str,
    topic: str,
    new_name: NewName,
    producer_of: Callable[..., confluent_kafka.Producer],
) -> None:
    name = new_name("id")
    producer = producer_of(name)
    for number in range(6):
        producer.begin_transaction()
        for record in range(20):
            producer.produce(topic, f"{number}-{record}")
        producer.flush(PATIENCE_S)
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    newer = producer_of(name)
    producer.begin_transaction()
    outcomes: list[Any] = []
    producer.produce(topic, b"zombie", on_delivery=lambda error, _: outcomes.append(error))
    with pytest.raises(Exception, match="fenced"):
        producer.commit_transaction(PATIENCE_S)
    newer.begin_transaction()
    newer.produce(topic, b"last")
    newer.commit_transaction(PATIENCE_S)
    expected = [f"{number}-{record}" for number in (0, 2, 4) for record in range(20)]
    assert _consume(bootstrap, topic, len(expected) + 1) == [*expected, "last"]


def _consume(bootstrap: str, topic: str, count: int) -> list[str]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values: list[str] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            if len(values) >= count:
                break
            continue
        values.append((message.value() or b"").decode())
    consumer.close()
    return values


async def test_aiokafka_commits_and_aborts(bootstrap: str, topic: str, new_name: NewName) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=new_name("id")
    )
    await producer.start()
    try:
        for number in range(4):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, f"{number}".encode())
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    finally:
        await producer.stop()
    assert _consume(bootstrap, topic, 2) == ["0", "2"]


def test_kafka_python_commits_and_aborts(bootstrap: str, topic: str, new_name: NewName) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=new_name("id"))
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send(topic, f"{number}".encode()).get(PATIENCE_S)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    assert _consume(bootstrap, topic, 2) == ["0", "2"]
