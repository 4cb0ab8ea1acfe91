"""The mirror beside real Kafka: what a real broker accepts from it, and what it leaves behind."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.produce.sessions import new_identity
from shoal.lite.cluster import LiteCluster
from shoal.mirror.command import mirror_until
from shoal.mirror.config import MirrorConfig
from shoal.mirror.copy.rewrite import prepare
from shoal.mirror.run.producers import last_sequence_of
from shoal.mirror.status import MirrorStatus
from shoal.model.topics import TopicPartition
from shoal.systems.apache.apache import ApacheCluster
from shoal.wire.batch import Batch
from support.client.topic_reader import SILENT, read_topic
from support.mirror.batches import stored_batch
from support.mirror.copies import HOUR_MS, assert_same, config_of, fill, make_topic, mirror_all
from support.mirror.kills import MIRROR, MirrorKills
from support.mirror.runs import running

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def lite() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        yield cluster


async def _mirror(source: str, target: str, topics: tuple[str, ...]) -> MirrorStatus:
    """Mirror until nothing is left to copy."""
    done = asyncio.Event()

    def look(status: MirrorStatus) -> None:
        if status.lag == 0 or status.parked:
            done.set()

    config = MirrorConfig({"bootstrap.servers": source}, {"bootstrap.servers": target}, topics)
    async with asyncio.timeout(60):
        return await mirror_until(done.wait, config, on_status=look)


async def _make(bootstrap: str, *topics: str) -> None:
    async with Client({"bootstrap.servers": bootstrap}) as client:
        await client.admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])


def _producer(bootstrap: str, **properties: Any) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, **SILENT, **properties})


def _transactions(bootstrap: str, topic: str) -> None:
    """Two producers with open transactions at the same time; one aborts, then both commit."""
    producers = [
        _producer(bootstrap, **{"transactional.id": f"{topic}-{number}"}) for number in range(2)
    ]
    for producer in producers:
        producer.init_transactions(30)
        producer.begin_transaction()
    for round_number in range(5):
        for number, producer in enumerate(producers):
            producer.produce(topic, f"first-{number}-{round_number}")
            assert producer.flush(30) == 0
    producers[0].abort_transaction(30)
    producers[1].commit_transaction(30)
    producers[0].begin_transaction()
    producers[0].produce(topic, "second-0")
    producers[0].commit_transaction(30)
    for producer in producers:
        producer.close()


async def test_aborted_transactions_stay_at_the_source(
    apache_bootstrap: str, lite: LiteCluster
) -> None:
    topic = "mirror-transactions"
    await _make(apache_bootstrap, topic)
    await asyncio.to_thread(_transactions, apache_bootstrap, topic)
    status = await _mirror(apache_bootstrap, lite.bootstrap, (topic,))
    assert status.parked == ()
    assert (status.counts.dropped_aborted, status.counts.dropped_control) == (5, 3)
    # A confluent consumer reads committed records only, by default.
    sent = read_topic(apache_bootstrap, topic, partitions=1, count=6)
    arrived = read_topic(lite.bootstrap, topic, partitions=1, count=6)
    assert [record.value for record in sent.partitions[0]] == [
        *(f"first-1-{round_number}".encode() for round_number in range(5)),
        b"second-0",
    ]
    assert arrived == sent


async def test_a_real_broker_accepts_every_codec(apache_bootstrap: str, lite: LiteCluster) -> None:
    topics = tuple(f"mirror-{codec}" for codec in CODECS)
    await _make(lite.bootstrap, *topics)
    for codec, topic in zip(CODECS, topics, strict=True):
        producer = _producer(
            lite.bootstrap, **{"compression.type": codec, "batch.num.messages": 50}
        )
        for number in range(500):
            producer.produce(topic, f"value {number} " * 20, f"key {number}", headers={"h": b"1"})
        assert producer.flush(30) == 0
        producer.close()
    status = await _mirror(lite.bootstrap, apache_bootstrap, topics)
    assert (status.parked, status.counts.records) == ((), 2500)
    for topic in topics:
        sent = read_topic(lite.bootstrap, topic, partitions=1, count=500)
        arrived = read_topic(apache_bootstrap, topic, partitions=1, count=500)
        assert sent.count == 500
        assert arrived == sent


async def test_a_real_broker_tells_the_last_sequence(apache_bootstrap: str) -> None:
    partition = TopicPartition("mirror-sequences", 0)
    await _make(apache_bootstrap, partition.topic)
    async with Client({"bootstrap.servers": apache_bootstrap}) as client:
        identity = await new_identity(client)
        told = [await last_sequence_of(client, partition, identity)]
        for base_sequence, count in ((0, 3), (3, 4)):
            batch = Batch(memoryview(stored_batch(0, count)))
            prepare(batch, identity, base_sequence)
            result = (await client.produce({partition: batch.view}, acks=-1))[partition]
            assert result.is_ok
            told.append(await last_sequence_of(client, partition, identity))
    assert told == [None, 2, 6]


async def test_old_records_go_to_a_real_broker_in_transactions_and_are_handed_over(
    apache_bootstrap: str, lite: LiteCluster
) -> None:
    topic, at_ms = "mirror-old", time.time_ns() // 1_000_000 - 48 * HOUR_MS
    await make_topic(lite.bootstrap, topic, 2)
    # A broker deletes what is too old: not here.
    await make_topic(apache_bootstrap, topic, 2, retention_ms="-1")
    config = config_of(lite.bootstrap, apache_bootstrap, topic, name=topic)
    await asyncio.to_thread(fill, lite.bootstrap, topic, range(400), partitions=2, at_ms=at_ms)
    async with running(config) as mirror:
        status = await mirror.until(
            lambda status: {each.delivery for each in status.partitions} == {"idempotent"}
        )
        assert (status.parked, status.counts.records) == ((), 400)
    await asyncio.to_thread(fill, lite.bootstrap, topic, range(400, 800), partitions=2)
    status = await mirror_all(config)
    assert (status.parked, status.counts.records) == ((), 400)
    assert status.deliveries[topic].delivery == "idempotent"
    assert await assert_same(lite.bootstrap, apache_bootstrap, topic, 800, 2) >= 40


@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
@pytest.mark.quick("idempotent")
def test_a_mirror_into_a_real_broker_is_killed_and_goes_on(
    apache_cluster: ApacheCluster, lite: LiteCluster, tmp_path: Path, delivery: str
) -> None:
    options = ("--delivery", delivery, "--max-bytes-per-s", "60000")
    kills = MirrorKills(lite, apache_cluster, tmp_path, *options)
    outcome = kills.run(f"mirror-killed-{delivery}", 4_000, [MIRROR, MIRROR])
    assert outcome.problems == []


def test_a_zombie_with_old_records_writes_nothing_twice_to_a_real_broker(
    apache_cluster: ApacheCluster, lite: LiteCluster, tmp_path: Path
) -> None:
    at_ms = time.time_ns() // 1_000_000 - 48 * HOUR_MS
    copy = MirrorKills(lite, apache_cluster, tmp_path, "--max-bytes-per-s", "40000")
    assert copy.run_zombie("mirror-zombie", 3_000, at_ms=at_ms).problems == []
