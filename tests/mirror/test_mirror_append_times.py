"""Sources with LogAppendTime: the append times stand at the target, and its retention keeps all."""

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.client.results import LATEST
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import CopyRules, TopicRules
from shoal.mirror.mm2.naming import Naming
from shoal.mirror.verify import verify
from shoal.model.topics import TopicPartition
from shoal.systems.apache.apache import ApacheCluster
from shoal.wire.batch import CREATE_TIME, LOG_APPEND_TIME, iter_batches
from support.apache.clusters import PROPERTIES, short_lived_jvm
from support.client.topic_reader import ReadTopic, read_topic
from support.mirror.copies import (
    HOUR_MS,
    client,
    config_of,
    fill,
    make_topic,
    mirror_all,
    verify_copies,
)

DELIVERIES = ["at-least-once", "idempotent", "transactional", "compare-and-append"]
COUNT = 300
DAYS_30_MS = 30 * 24 * HOUR_MS
STAMPED: dict[str, Any] = {"message_timestamp_type": "LogAppendTime", "retention_ms": str(HOUR_MS)}


@pytest.fixture(scope="module")
def target() -> Iterator[LiteCluster]:
    with LiteCluster(properties={"log.retention.check.interval.ms": "100"}) as cluster:
        yield cluster


async def _fill_old_records(bootstrap: str, topic: str, **properties: Any) -> None:
    """Records that their producer made a month ago, and that were appended just now."""
    await make_topic(bootstrap, topic, **STAMPED)
    at_ms = time.time_ns() // 1_000_000 - DAYS_30_MS
    await asyncio.to_thread(fill, bootstrap, topic, range(COUNT), at_ms=at_ms, **properties)


async def _expire_others(bootstrap: str) -> None:
    """Let retention run at least once: a topic of old create times loses all its records."""
    topic = f"expires-{time.monotonic_ns()}"
    await make_topic(bootstrap, topic, retention_ms=str(HOUR_MS))
    at_ms = time.time_ns() // 1_000_000 - DAYS_30_MS
    await asyncio.to_thread(fill, bootstrap, topic, range(10), at_ms=at_ms)
    tp = TopicPartition(topic, 0)
    async with client(bootstrap) as one, asyncio.timeout(120):
        while (await one.list_offsets({tp: 0}))[tp].offset >= 0:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.1)


def _times(read: ReadTopic) -> list[tuple[bytes | None, int]]:
    return [(record.value, record.timestamp[1]) for record in read.partitions[0]]


async def _read(bootstrap: str, topic: str) -> ReadTopic:
    return await asyncio.to_thread(read_topic, bootstrap, topic, partitions=1, count=COUNT)


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_append_times_stand_at_the_target_and_outlive_its_retention(
    source: LiteCluster, target: LiteCluster, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"stamped-{delivery}"
    await _fill_old_records(source.bootstrap, topic, compression_type="zstd")
    config = config_of(source.bootstrap, target.bootstrap, topic, name=topic, delivery=delivery)
    with caplog.at_level(logging.WARNING, logger="shoal.mirror"):
        status = await mirror_all(config)
    assert (status.parked, status.counts.records) == ((), COUNT)
    assert status.deliveries[topic].delivery == delivery
    await _expire_others(target.bootstrap)
    original, copy = await _read(source.bootstrap, topic), await _read(target.bootstrap, topic)
    assert _times(copy) == _times(original)
    (report,) = await verify_copies(source.bootstrap, target.bootstrap, topic)
    assert (report.difference, report.not_yet, report.records) == (None, 0, COUNT)
    is_kept = delivery == "compare-and-append"
    assert status.counts.restamped == (0 if is_kept else status.counts.batches)
    said = [line for line in caplog.messages if "LogAppendTime" in line]
    assert len(said) == (0 if is_kept else 1)
    assert await _types(target.bootstrap, topic) == {LOG_APPEND_TIME if is_kept else CREATE_TIME}
    # A second start passes over what is there, whatever it had to be re-encoded from.
    assert (await mirror_all(config)).counts.records == 0


async def _types(bootstrap: str, topic: str) -> set[int]:
    tp = TopicPartition(topic, 0)
    async with client(bootstrap) as one:
        part = (await one.fetch({tp: 0}))[tp]
        return {
            batch.timestamp_type for batch in iter_batches(part.records) if not batch.is_control
        }


@pytest.mark.parametrize("delivery", ["idempotent", "compare-and-append"])
async def test_batches_that_are_cut_keep_the_append_time_too(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"cut-{delivery}"
    await _fill_old_records(source.bootstrap, topic, batch_num_messages=1000, linger_ms=300)
    await make_topic(target.bootstrap, topic, max_message_bytes="2000", retention_ms=str(HOUR_MS))
    options = {"name": topic, "delivery": delivery, "rules": TopicRules(sync_configs=False)}
    status = await mirror_all(config_of(source.bootstrap, target.bootstrap, topic, **options))
    assert (status.parked, status.counts.records) == ((), COUNT)
    assert status.counts.split >= 1
    original, copy = await _read(source.bootstrap, topic), await _read(target.bootstrap, topic)
    assert _times(copy) == _times(original)


@pytest.mark.parametrize("delivery", ["idempotent", "compare-and-append"])
async def test_deep_copies_have_the_append_times(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"deep-{delivery}"
    await _fill_old_records(source.bootstrap, topic)
    options = {"name": topic, "delivery": delivery, "copy": CopyRules(use_raw_bytes=False)}
    status = await mirror_all(config_of(source.bootstrap, target.bootstrap, topic, **options))
    assert (status.parked, status.counts.records) == ((), COUNT)
    original, copy = await _read(source.bootstrap, topic), await _read(target.bootstrap, topic)
    assert _times(copy) == _times(original)
    (report,) = await verify_copies(source.bootstrap, target.bootstrap, topic)
    assert (report.difference, report.records) == (None, COUNT)


async def test_a_target_of_log_append_time_sets_its_own_times(
    source: LiteCluster, target: LiteCluster
) -> None:
    topic = "both-stamped"
    await _fill_old_records(source.bootstrap, topic)
    await make_topic(target.bootstrap, topic, **STAMPED)
    began_ms = time.time_ns() // 1_000_000
    status = await mirror_all(config_of(source.bootstrap, target.bootstrap, topic, name=topic))
    assert (status.parked, status.counts.records) == ((), COUNT)
    copy = await _read(target.bootstrap, topic)
    assert all(time_ms >= began_ms for _, time_ms in _times(copy))
    (report,) = await verify_copies(source.bootstrap, target.bootstrap, topic)
    assert (report.difference, report.records) == (None, COUNT)


async def test_verify_finds_a_copy_with_the_producers_times(
    source: LiteCluster, target: LiteCluster
) -> None:
    """As a mirror would leave it that only clears the timestamp type in the header."""
    topic, tp = "cleared", TopicPartition("cleared", 0)
    await _fill_old_records(source.bootstrap, topic)
    await make_topic(target.bootstrap, topic)
    async with client(source.bootstrap) as one, client(target.bootstrap) as other:
        end = (await one.list_offsets({tp: LATEST}))[tp].offset
        batches = list(iter_batches((await one.fetch({tp: 0}))[tp].records))
        assert batches[-1].next_offset == end
        for batch in batches:
            batch.edit(
                attributes=batch.attributes & 7,
                base_offset=0,
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
            )
            assert (await other.produce({tp: batch.view}))[tp].is_ok
        (report,) = await verify(one, other, [topic])
    assert report.difference is not None
    assert report.difference.what == "the timestamp differs"


@pytest.mark.apache
@pytest.mark.long
async def test_append_times_outlive_the_retention_of_apache_kafka(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Source and target are the same broker: the topic is called otherwise at the target."""
    short_lived_jvm(monkeypatch)
    often = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}
    topic = "stamped"
    with ApacheCluster(properties=PROPERTIES | often) as cluster:
        bootstrap = cluster.bootstrap
        await _fill_old_records(bootstrap, topic, compression_type="lz4")
        rules = TopicRules(naming=Naming("default", source_alias="us", target_alias="eu"))
        config = config_of(bootstrap, bootstrap, topic, name=topic, rules=rules)
        status = await mirror_all(config)
        assert (status.parked, status.counts.records) == ((), COUNT)
        # By their append times these records are young.
        assert status.deliveries[topic].delivery == "idempotent"
        assert status.counts.unshielded == 0
        assert status.counts.restamped == status.counts.batches
        await _expire_others(bootstrap)
        original, copy = await _read(bootstrap, topic), await _read(bootstrap, f"us.{topic}")
        assert _times(copy) == _times(original)
        async with client(bootstrap) as one:
            (report,) = await verify(one, one, [topic], rules.naming)
        assert (report.difference, report.records) == (None, COUNT)
