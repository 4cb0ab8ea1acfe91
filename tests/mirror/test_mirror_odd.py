"""Topics whose batches cannot all go as they are: too large, gaps, damage, deep; Kafka Lite."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from shoal.client.results import EARLIEST, LATEST
from shoal.lite.cluster import LiteCluster
from shoal.mirror.command import mirror_until
from shoal.mirror.config import CopyRules, TopicRules
from shoal.mirror.copy.rebatch import DeepRules
from shoal.mirror.offsets.re_encoded import read_re_encoded
from shoal.mirror.status import MirrorStatus
from shoal.model.topics import TopicPartition
from shoal.wire.batch import iter_batches
from shoal.wire.records.compression import Codec
from support.client.topic_reader import SILENT
from support.mirror.copies import (
    assert_same,
    client,
    config_of,
    damage,
    fill,
    make_topic,
    mirror_all,
    values_of,
)

DELIVERIES = ["at-least-once", "idempotent", "transactional", "compare-and-append"]
BIG: dict[str, Any] = {"batch_num_messages": 1000, "linger_ms": 300, "batch_size": 4_000_000}


@pytest.fixture(scope="module")
def source() -> Iterator[LiteCluster]:
    with LiteCluster(properties={"log.cleaner.backoff.ms": "100"}) as cluster:
        yield cluster


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.quick("idempotent")
async def test_batches_over_the_targets_limit_go_in_pieces(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"large-{delivery}"
    await make_topic(source.bootstrap, topic)
    await make_topic(target.bootstrap, topic, max_message_bytes="6000")
    for numbers in (range(20), range(20, 700), range(700, 720)):
        fill(source.bootstrap, topic, numbers, **BIG)
    rules = TopicRules(sync_configs=False)
    options = {"delivery": delivery, "name": topic, "rules": rules}
    config = config_of(source.bootstrap, target.bootstrap, topic, **options)
    status = await mirror_all(config)
    assert (status.parked, status.counts.records) == ((), 720)
    assert status.counts.split >= 1
    assert await assert_same(source.bootstrap, target.bootstrap, topic, 720) >= 1
    fill(source.bootstrap, topic, range(720, 1400), **BIG)
    status = await mirror_all(config)
    assert (status.parked, status.counts.records) == ((), 680)
    await assert_same(source.bootstrap, target.bootstrap, topic, 1400)


def _key_to_compact(number: int) -> str:
    return "same" if number % 5 else f"only {number}"


async def _fill_compacted(cluster: LiteCluster, topic: str, count: int) -> None:
    """A topic whose first batches have lost some of their records."""
    await make_topic(
        cluster.bootstrap,
        topic,
        cleanup_policy="compact",
        segment_bytes="6000",
        min_cleanable_dirty_ratio="0.01",
    )
    fill(cluster.bootstrap, topic, range(count), key=_key_to_compact)
    tp = TopicPartition(topic, 0)
    async with client(cluster.bootstrap) as one, asyncio.timeout(60):
        first = (await one.list_offsets({tp: EARLIEST}))[tp].offset
        while True:
            part = (await one.fetch({tp: first}))[tp]
            batches = list(iter_batches(part.records))
            if any(not batch.is_dense for batch in batches):
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("delivery", ["idempotent", "transactional", "compare-and-append"])
async def test_gaps_of_compaction_are_closed_and_counted(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"gaps-{delivery}"
    await _fill_compacted(source, topic, 2000)
    # By default tiny batches would be joined, whether they have gaps or not.
    options = {"delivery": delivery, "name": topic, "copy": CopyRules(depth="raw")}
    status = await mirror_all(config_of(source.bootstrap, target.bootstrap, topic, **options))
    assert status.parked == ()
    if delivery == "compare-and-append":
        assert status.counts.closed_gaps == 0  # they stay
    else:
        assert status.counts.closed_gaps > 0
    # The last record of each key is what counts.
    last = {_key_to_compact(number): f"{number}".encode() for number in range(2000)}
    found = values_of(target.bootstrap, topic, status.counts.records)
    assert set(last.values()) <= set(found)


@pytest.mark.parametrize("delivery", ["idempotent", "transactional", "compare-and-append"])
@pytest.mark.quick("transactional")
async def test_a_damaged_batch_parks_its_partition_or_is_read_again(
    target: LiteCluster, delivery: str
) -> None:
    with LiteCluster() as source:
        for action in ("park", "retry"):
            await _check_damage(source, target, delivery, action)


async def _check_damage(
    source: LiteCluster, target: LiteCluster, delivery: str, action: str
) -> None:
    topic = f"damaged-{action}-{delivery}"
    await make_topic(source.bootstrap, topic, 2)
    fill(source.bootstrap, topic, range(400), partitions=2)
    damage(source.log_dirs(), topic, 1, 12, batches_before=1)
    options = {
        "delivery": delivery,
        "name": topic,
        "copy": CopyRules(on_bad_batch=action),
    }
    config = config_of(source.bootstrap, target.bootstrap, topic, **options)
    done = asyncio.Event()

    def look(status: MirrorStatus) -> None:
        if status.counts.records >= 200 and (status.parked or status.counts.damaged):
            done.set()

    async with asyncio.timeout(60):
        status = await mirror_until(done.wait, config, on_status=look)
    # The other partition, and the batch before if it was sent on its own.
    copied = status.counts.records
    assert copied in {200, 220}
    if action == "park":
        assert "source offset 20 is damaged" in str(status.parked[0])
        return
    assert status.parked == ()
    damage(source.log_dirs(), topic, 1, 12, batches_before=1)  # which heals it
    # Whoever asks for damaged records again takes the log offline until it is opened again.
    source.restart(1)
    status = await mirror_all(config)
    assert status.counts.records == 400 - copied
    await assert_same(source.bootstrap, target.bootstrap, topic, 400, 2)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.quick("at-least-once")
async def test_deep_topics_are_packed_anew_while_others_go_unopened(
    source: LiteCluster, target: LiteCluster, delivery: str, tmp_path: Path
) -> None:
    topics = [f"{kind}-{delivery}" for kind in ("deep", "raw")]
    for topic in topics:
        await make_topic(source.bootstrap, topic)
        fill(source.bootstrap, topic, range(600), compression_type="gzip")
    deep = DeepRules(compression_type="zstd", batch_size_bytes=3000, linger_ms=50)
    options = {
        "delivery": delivery,
        "name": topics[0],
        "copy": CopyRules(deep_topics=("deep-.*",), deep=deep),
        "re_encoded": tmp_path / "re-encoded.jsonl",
    }
    config = config_of(source.bootstrap, target.bootstrap, *topics, **options)
    status = await mirror_all(config)
    assert (status.parked, status.counts.records) == ((), 1200)
    assert await assert_same(source.bootstrap, target.bootstrap, topics[0], 600) == 0
    assert await assert_same(source.bootstrap, target.bootstrap, topics[1], 600) >= 30
    tp = TopicPartition(topics[0], 0)
    async with client(target.bootstrap) as one:
        part = (await one.fetch({tp: 0}))[tp]
        batches = [batch for batch in iter_batches(part.records) if not batch.is_control]
        end = (await one.list_offsets({tp: LATEST}))[tp].offset
    assert {batch.codec for batch in batches} == {Codec.ZSTD}
    assert len(batches) < 30
    assert end >= 600
    # The audit compares them record by record, and those of the other topic byte by byte.
    declared = read_re_encoded(tmp_path / "re-encoded.jsonl")
    assert declared == {(tp, batch.base_offset) for batch in batches}


async def test_a_handler_sees_columns_in_deep_mode(
    source: LiteCluster, target: LiteCluster
) -> None:
    await make_topic(source.bootstrap, "shouted")
    fill(source.bootstrap, "shouted", range(100))
    options = {
        "name": "shouted",
        "handler": "support.mirror.batches:shout",
        "copy": CopyRules(use_raw_bytes=False),
    }
    config = config_of(source.bootstrap, target.bootstrap, "shouted", **options)
    status = await mirror_all(config)
    assert (status.parked, status.counts.records) == ((), 50)
    fill(source.bootstrap, "shouted", range(100, 200))
    assert (await mirror_all(config)).counts.records == 50
    found = values_of(target.bootstrap, "shouted", 100)
    assert found == [f"{number}!".encode() for number in range(0, 200, 2)]


async def test_messages_of_10_mib(source: LiteCluster, target: LiteCluster) -> None:
    await make_topic(source.bootstrap, "huge", max_message_bytes=str(12 << 20))
    settings = {"message.max.bytes": 12 << 20, "linger.ms": 0, **SILENT}
    with Producer({"bootstrap.servers": source.bootstrap, **settings}) as producer:
        for number in range(3):
            producer.produce("huge", bytes([number]) * (10 << 20))
        assert producer.flush(60) == 0
    status = await mirror_all(config_of(source.bootstrap, target.bootstrap, "huge", name="huge"))
    assert (status.parked, status.counts.records) == ((), 3)
    assert await assert_same(source.bootstrap, target.bootstrap, "huge", 3) == 3


async def test_200_partitions_and_an_empty_topic(source: LiteCluster, target: LiteCluster) -> None:
    await make_topic(source.bootstrap, "wide", 200)
    await make_topic(source.bootstrap, "empty", 3)
    fill(source.bootstrap, "wide", range(2000), partitions=200)
    topics = ("wide", "empty")
    config = config_of(source.bootstrap, target.bootstrap, *topics, name="wide")
    status = await mirror_all(config)
    assert (status.parked, status.lag, status.counts.records) == ((), 0, 2000)
    assert len(status.positions) == 203
    await assert_same(source.bootstrap, target.bootstrap, "wide", 2000, 200)
    assert (await mirror_all(config)).counts.records == 0
