"""The client against a real Apache Kafka: what scripted brokers only claim."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal.client.admin import ConfigChange, NewTopic, Operation, Resource, ResourceType
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.consumer import Consumer, RawBatch, RawConsumer
from shoal.client.errors import AuthenticationFailed, KafkaError, NoBrokersAvailable, ProducerFenced
from shoal.client.produce.producer import Producer, RawProducer
from shoal.client.produce.sessions import IdempotentSession
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import EARLIEST, LATEST, MAX_TIMESTAMP
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.systems.apache.apache import ApacheCluster
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import Batch
from shoal.wire.records.records import Record, decode_records, encode_batch
from support.apache.client import MECHANISMS, SecureApache, create_scram_users
from support.apache.clusters import PROPERTIES, short_lived_jvm

PATIENCE_S = 60.0
pytestmark = [pytest.mark.apache, pytest.mark.xdist_group("apache")]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# A broker that was killed may register again when its old session is over.
SHORT_SESSION = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}
NOW_MS = 1_700_000_000_000
_names = itertools.count()


async def new_topic(client: Client, partitions: int = 1) -> list[TopicPartition]:
    name = f"client-{next(_names)}"
    await client.admin.create_topics([NewTopic(name, partitions, 1)])
    tps = [TopicPartition(name, number) for number in range(partitions)]
    for tp in tps:
        await client.leader(tp)
    return tps


def batch(*values: str, timestamp: int = NOW_MS) -> bytearray:
    return encode_batch(
        [Record(i, timestamp + i, b"key", value.encode()) for i, value in enumerate(values)]
    )


async def read_raw(client: Client, tp: TopicPartition, **options: Any) -> list[RawBatch]:
    """All batches of a partition up to its end."""
    end = (await client.list_offsets({tp: LATEST}, **options))[tp].offset
    batches: list[RawBatch] = []
    async with RawConsumer(client, {tp: EARLIEST}, **options) as consumer:
        while consumer.positions[tp] < end:
            batches += await consumer.poll(200)
    return batches


async def read_values(client: Client, tp: TopicPartition, **options: Any) -> list[str]:
    return [
        (record.value or b"").decode()
        for item in await read_raw(client, tp, **options)
        for record in decode_records(item.value)
    ]


async def check_committed(client: Client, tp: TopicPartition, expected: list[str]) -> None:
    """Wait for them: Apache Kafka answers a commit before its markers are in the logs."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := await read_values(client, tp, isolation="read_committed")) != expected:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


async def test_topics_configs_partitions_and_records_are_administered(
    apache: SecureApache,
) -> None:
    async with apache.client() as client:
        admin = client.admin
        cluster = await admin.describe_cluster()
        assert [broker.node_id for broker in cluster.brokers] == [1]
        made = await admin.create_topics([NewTopic("a", 2, 1, {"retention.ms": "-1"})])
        # A broker hears of a new topic a moment later than the controller.
        await client.leader(TopicPartition("a", 0))
        assert made["a"] == (await client.metadata(["a"])).topics["a"].topic_id
        with pytest.raises(KafkaError, match=r"a: TOPIC_ALREADY_EXISTS \(36\)"):
            await admin.create_topics([NewTopic("a", 2, 1)])
        with pytest.raises(KafkaError, match=r"INVALID_REPLICATION_FACTOR \(38\)"):
            await admin.create_topics([NewTopic("b", 2, 9)])
        await admin.create_topics([NewTopic("c", assignments={0: [1], 1: [1]})])
        await client.leader(TopicPartition("c", 1))
        assert len(client.cluster.partitions_of("c")) == 2
        topic, broker = Resource(ResourceType.TOPIC, "a"), Resource(ResourceType.BROKER, "1")
        described = await admin.describe_configs([topic, broker])
        assert described[topic]["retention.ms"].value == "-1"
        assert not described[topic]["retention.ms"].is_default
        assert described[topic]["compression.type"].is_default
        assert described[broker]["log.dirs"].is_read_only
        await admin.alter_configs({topic: {"max.message.bytes": "2000000"}})
        await admin.alter_configs(
            {topic: [ConfigChange("cleanup.policy", "compact", Operation.APPEND)]}
        )
        await admin.alter_configs({topic: [ConfigChange("retention.ms", None, Operation.DELETE)]})
        changed = (await admin.describe_configs([topic]))[topic]
        assert changed["max.message.bytes"].value == "2000000"
        assert changed["cleanup.policy"].value == "delete,compact"
        assert changed["retention.ms"].is_default
        await admin.create_partitions({"a": 3})
        a2 = TopicPartition("a", 2)
        await client.leader(a2)
        await client.produce({a2: batch("x", "y", "z")})
        assert await admin.delete_records({a2: 2}) == {a2: 2}
        assert (await client.list_offsets({a2: EARLIEST}))[a2].offset == 2
        await admin.delete_topics(["a", "c"])
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.delete_topics(["a"])


@pytest.mark.parametrize("codec", CODECS)
async def test_records_survive_every_codec_and_a_raw_copy(apache: SecureApache, codec: str) -> None:
    async with apache.client(compression_type=codec) as client:
        source, target = (await new_topic(client, 2))[:2]
        values = [b"%d " % i * 50 for i in range(200)]
        async with Producer(client) as producer:
            for value in values:
                await producer.send(
                    source.topic,
                    value,
                    key=b"k",
                    partition=0,
                    timestamp_ms=NOW_MS,
                    headers=[("h", None)],
                )
        batches = await read_raw(client, source)
        assert {item.value.codec for item in batches} == {CODECS.index(codec)}
        async with RawProducer(client) as raw:
            for item in batches:
                copy = bytearray(item.value.view)
                assert (await (await raw.send(target.topic, 1, copy))).is_ok
        copies = await read_raw(client, target)
        assert [bytes(item.value.records) for item in copies] == [
            bytes(item.value.records) for item in batches
        ]
        records = [record for item in copies for record in decode_records(item.value)]
        assert [record.value for record in records] == values
        assert {record.headers for record in records} == {(("h", None),)}


async def test_offsets_by_time(apache: SecureApache) -> None:
    async with apache.client() as client:
        (tp,) = await new_topic(client)
        await client.produce({tp: batch("a", "b", "c")})
        asked = {
            EARLIEST: 0,
            LATEST: 3,
            MAX_TIMESTAMP: 2,
            NOW_MS + 1: 1,
            NOW_MS + 999: -1,
        }
        for question, offset in asked.items():
            assert (await client.list_offsets({tp: question}))[tp].offset == offset


async def test_what_a_real_broker_refuses_is_failed_and_nothing_is_written(
    apache: SecureApache,
) -> None:
    async with apache.client() as client:
        (tp,) = await new_topic(client)
        damaged = batch("damaged")
        damaged[-1] ^= 1
        shifted = batch("shifted")
        Batch(memoryview(shifted)).edit(base_offset=5)
        for wrong, code in (
            (damaged, Code.CORRUPT_MESSAGE),
            (shifted, Code.INVALID_RECORD),
            (batch("one") + batch("two"), Code.INVALID_RECORD),
        ):
            result = (await client.produce({tp: wrong}))[tp]
            assert (result.outcome, result.error_code) == (Outcome.FAILED, code)
        missing = TopicPartition("no-such-topic", 0)
        assert (await client.produce({missing: batch("x")}))[missing].outcome is Outcome.FAILED
        unsure = (await client.produce({tp: batch("sent")}, acks=0))[tp]
        assert unsure.outcome is Outcome.UNKNOWN
        assert (await client.produce({tp: batch("acked")}, acks=1))[tp].base_offset == 1
        assert await read_values(client, tp) == ["sent", "acked"]


async def test_a_repeated_batch_is_written_once(apache: SecureApache) -> None:
    async with apache.client() as client:
        (tp,) = await new_topic(client)
        async with IdempotentSession(client) as session:
            futures = [await session.send(tp, batch(str(i))) for i in range(100)]
            await session.flush()
        assert [future.result().offset for future in futures] == list(range(100))
        last = (await read_raw(client, tp))[-1].value
        repeated = bytearray(last.view)
        Batch(memoryview(repeated)).edit(base_offset=0)
        assert (await client.produce({tp: repeated}))[tp].base_offset == 99
        gap = bytearray(repeated)
        Batch(memoryview(gap)).edit(base_sequence=500)
        assert (await client.produce({tp: gap}))[tp].error_code == 45
        assert await read_values(client, tp) == [str(i) for i in range(100)]


async def test_transactions_of_version_2_commit_abort_and_carry_offsets(
    apache: SecureApache,
) -> None:
    async with apache.client() as client:
        one, two = await new_topic(client, 2)
        async with TransactionalSession(client, "tx-a") as session:
            assert session.transaction_version == 2
            epochs = [session.identity.epoch]
            for number, ends_well in enumerate((True, False, True)):
                session.begin()
                await session.produce({one: batch(f"{number}a"), two: batch(f"{number}b")})
                await session.produce({one: batch(f"{number}c")})
                await session.send_offsets({one: number + 1}, "group-a")
                await (session.commit() if ends_well else session.abort())
                epochs.append(session.identity.epoch)
            assert epochs == sorted(set(epochs)), "each end gives a new epoch"
        await check_committed(client, one, ["0a", "0c", "2a", "2c"])
        await check_committed(client, two, ["0b", "2b"])
        assert await read_values(client, one) == ["0a", "0c", "1a", "1c", "2a", "2c"]
        async with Consumer(client, {two: EARLIEST}, isolation="read_committed") as consumer:
            records = await consumer.poll_records(2000)
            assert [item.record.value for item in records][:1] == [b"0b"]
        fetched = await client.call(
            ApiKey.OFFSET_FETCH,
            {
                "groups": [
                    {
                        "group_id": "group-a",
                        "member_id": None,
                        "member_epoch": -1,
                        "topics": [{"name": one.topic, "partition_indexes": [0]}],
                    }
                ],
                "require_stable": True,
            },
            at_least=8,
            at_most=9,
        )
        assert fetched.groups[0].topics[0].partitions[0].committed_offset == 3


@contextlib.asynccontextmanager
async def transaction_version(client: Client, level: int) -> AsyncIterator[None]:
    """The cluster with another transaction protocol, for a while."""

    async def agree_on(new_level: int) -> None:
        update = {
            "feature": "transaction.version",
            "max_version_level": new_level,
            "upgrade_type": 2 if new_level < 2 else 1,
        }
        response = await client.call(
            ApiKey.UPDATE_FEATURES,
            {"timeout": 10_000, "feature_updates": [update], "validate_only": False},
            at_least=1,
        )
        assert response.error_code == 0, response.error_message

    await agree_on(level)
    try:
        yield
    finally:
        await agree_on(2)


async def test_transactions_of_version_1_commit_abort_and_recover(apache: SecureApache) -> None:
    async with apache.client() as admin, transaction_version(admin, 0), apache.client() as client:
        one, two = await new_topic(client, 2)
        async with TransactionalSession(client, "tx-v1") as session:
            assert session.transaction_version == 1
            epoch = session.identity.epoch
            for number, ends_well in enumerate((True, False, True)):
                session.begin()
                await session.produce({one: batch(f"{number}a"), two: batch(f"{number}b")})
                await session.produce({one: batch(f"{number}c")})
                await session.send_offsets({one: number + 1}, "group-v1")
                await (session.commit() if ends_well else session.abort())
                assert session.identity.epoch == epoch, "the first protocol keeps its epoch"
            session.begin()
            too_large = batch("x" * 2_000_000)
            assert (await session.produce({one: too_large}))[one].outcome is Outcome.FAILED
            await session.abort()
            assert session.identity.epoch == epoch + 1, "after a failure it needs a new one"
            async with session.transaction():
                assert (await session.produce({one: batch("3a")}))[one].is_ok
        await check_committed(client, one, ["0a", "0c", "2a", "2c", "3a"])
        await check_committed(client, two, ["0b", "2b"])


async def test_a_newer_producer_fences_the_older(apache: SecureApache) -> None:
    async with apache.client() as client:
        (tp,) = await new_topic(client)
        old = TransactionalSession(client, "tx-b")
        await old.start()
        old.begin()
        assert (await old.produce({tp: batch("old")}))[tp].is_ok
        async with TransactionalSession(client, "tx-b") as new:
            with pytest.raises(ProducerFenced):
                await old.commit()
            await old.close()
            async with new.transaction():
                assert (await new.produce({tp: batch("new")}))[tp].is_ok
        await check_committed(client, tp, ["new"])


async def test_a_zombies_batches_are_refused_and_its_abort_tells_why(apache: SecureApache) -> None:
    async with apache.client() as client:
        (tp,) = await new_topic(client)
        zombie = TransactionalSession(client, "tx-c")
        await zombie.start()
        async with TransactionalSession(client, "tx-c"):
            zombie.begin()
            result = (await zombie.produce({tp: batch("zombie")}))[tp]
            assert (result.is_ok, result.error_code) == (False, Code.INVALID_PRODUCER_EPOCH)
            with pytest.raises(ProducerFenced):
                await zombie.abort()
            await zombie.close()
        assert await read_values(client, tp) == []


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
async def test_logging_in(apache: SecureApache, protocol: str, mechanism: str) -> None:
    async with apache.client() as client:
        await create_scram_users(client)
        (tp,) = await new_topic(client)
    async with apache.client(protocol, sasl_mechanism=mechanism) as client:
        assert (await client.produce({tp: batch("in")}))[tp].is_ok
        assert await read_values(client, tp) == ["in"]
        link = await client.any_link()
        assert link.expires_at is not None, "the session's end is known (KIP-368)"
    stranger = apache.client(protocol, sasl_mechanism=mechanism, sasl_password="wrong")  # noqa: S106
    with pytest.raises(AuthenticationFailed, match="refuses the authentication") as refused:
        await stranger.start()
    assert "wrong" not in str(refused.value)


async def test_tls(apache: SecureApache) -> None:
    async with apache.client("SSL") as client:
        (tp,) = await new_topic(client)
        large = "x" * 200_000
        assert (await client.produce({tp: batch(large, large)}))[tp].is_ok
        assert await read_values(client, tp) == [large, large]
    distrustful = apache.properties("SSL")
    del distrustful["ssl.truststore.location"]
    with pytest.raises(AuthenticationFailed, match="certificate is not trusted"):
        await Client(distrustful).start()


async def test_a_plain_client_at_a_tls_port_is_told_that_nobody_answers(
    apache: SecureApache,
) -> None:
    wrong_port = Client(
        apache.properties("PLAINTEXT", socket_connection_setup_timeout_ms=500)
        | {"bootstrap.servers": apache.addresses["SSL"]}
    )
    with pytest.raises(NoBrokersAvailable):
        await wrong_port.start()


async def test_a_killed_broker_costs_no_batch_and_writes_none_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short_lived_jvm(monkeypatch)
    with ApacheCluster(properties=PROPERTIES | SHORT_SESSION) as cluster:
        settings = {"bootstrap.servers": cluster.bootstrap, "delivery.timeout.ms": 60_000}
        async with Client(settings) as client:
            tps = await new_topic(client, 3)
            async with IdempotentSession(client) as session:
                futures = []
                for number in range(400):
                    young = batch(str(number), timestamp=time.time_ns() // 1_000_000)
                    futures += [await session.send(tp, bytes(young)) for tp in tps]
                    if number == 200:
                        await asyncio.to_thread(cluster.kill, 1)
                        restarting = asyncio.create_task(asyncio.to_thread(cluster.restart, 1))
                    await asyncio.sleep(0.001)
                await restarting
                await session.flush()
            assert {future.result().outcome for future in futures} == {Outcome.OK}
            for tp in tps:
                assert await read_values(client, tp) == [str(number) for number in range(400)]


async def test_a_paused_broker_costs_no_batch_and_writes_none_twice(apache: SecureApache) -> None:
    async with apache.client(request_timeout_ms=400, delivery_timeout_ms=60_000) as client:
        tps = await new_topic(client, 3)
        async with IdempotentSession(client) as session:
            futures = []
            for number in range(200):
                young = batch(str(number), timestamp=time.time_ns() // 1_000_000)
                futures += [await session.send(tp, bytes(young)) for tp in tps]
                if number == 100:
                    apache.cluster.pause(1)
                    await asyncio.sleep(1.0)
                    apache.cluster.resume(1)
                await asyncio.sleep(0.001)
            await session.flush()
        assert {future.result().outcome for future in futures} == {Outcome.OK}
        for tp in tps:
            assert await read_values(client, tp) == [str(number) for number in range(200)]
