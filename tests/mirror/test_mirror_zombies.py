"""Mirrors that were paused, replaced and resumed: nothing comes twice, however old it is."""

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from shoal.client.client import Client
from shoal.client.results import LATEST
from shoal.lite.cluster import LiteCluster
from shoal.mirror.command import mirror_until
from shoal.mirror.config import MirrorConfig, MirrorLimits
from shoal.mirror.status import MirrorStatus
from shoal.model.topics import TopicPartition
from support.client.topic_reader import SILENT, read_topic
from support.lite.clusters import create_topic
from support.mirror.kills import MirrorKills

RECORDS = 3_000
HOUR_MS = 3_600_000
PARTITIONS = 2
AHEAD = "another mirror with the same name is ahead"
THROTTLE = ("--max-bytes-per-s", "40000")


@pytest.mark.parametrize(
    ("delivery", "age_h"),
    [("idempotent", 0), ("idempotent", 48), ("transactional", 48), ("compare-and-append", 0)],
)
@pytest.mark.quick("idempotent-48")
def test_a_zombie_writes_nothing_twice(
    source: LiteCluster, target: LiteCluster, tmp_path: Path, delivery: str, age_h: int
) -> None:
    at_ms = time.time_ns() // 1_000_000 - age_h * HOUR_MS
    copy = MirrorKills(source, target, tmp_path, *THROTTLE, "--delivery", delivery)
    outcome = copy.run_zombie(f"zombie-{delivery}-{age_h}", RECORDS, at_ms=at_ms)
    assert outcome.problems == []


class _Load:
    """Produces numbers to all partitions until stopped."""

    def __init__(self, cluster: LiteCluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self.count = 0
        self.is_stopped = False

    def run(self) -> None:
        settings = {"bootstrap.servers": self._cluster.bootstrap, "linger.ms": 1, **SILENT}
        with Producer(settings) as producer:
            while not self.is_stopped:
                for _ in range(10 * PARTITIONS):
                    number, partition = divmod(self.count, PARTITIONS)
                    producer.produce(self._topic, f"{number}", partition=partition)
                    self.count += 1
                assert producer.flush(30) == 0
                time.sleep(0.003)


class _Process:
    """A mirror in this process that is stopped on its own."""

    def __init__(self, config: MirrorConfig) -> None:
        self.status: MirrorStatus | None = None
        self._stop = asyncio.Event()
        self.work = asyncio.create_task(
            mirror_until(self._stop.wait, config, on_status=self._on_status)
        )

    def _on_status(self, status: MirrorStatus) -> None:
        self.status = status

    @property
    def reasons(self) -> list[str]:
        if self.status is None:
            return []
        return [each.remedy for each in self.status.partitions if AHEAD in each.waiting]

    async def await_records(self, count: int) -> None:
        while self.status is None or self.status.counts.records < count:
            assert not self.work.done()
            await asyncio.sleep(0.05)

    async def end(self) -> MirrorStatus:
        self._stop.set()
        return await self.work


async def _count(cluster: LiteCluster, topic: str) -> int:
    async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
        asked = {TopicPartition(topic, index): LATEST for index in range(PARTITIONS)}
        return sum(one.offset for one in (await client.list_offsets(asked)).values())


async def test_a_mirror_that_was_overtaken_resumes_when_the_other_has_ended(
    source: LiteCluster, target: LiteCluster
) -> None:
    topic = "overlap"
    create_topic(source, topic, PARTITIONS, 1, retention_ms="-1")
    config = MirrorConfig(
        {"bootstrap.servers": source.bootstrap}, {"bootstrap.servers": target.bootstrap}, (topic,)
    )
    load = _Load(source, topic)
    loading = asyncio.create_task(asyncio.to_thread(load.run))
    try:
        async with asyncio.timeout(90):
            old = _Process(config)
            await old.await_records(500)
            new = _Process(replace(config, limits=MirrorLimits(max_bytes_per_s=20_000)))
            pair = (old, new)
            # Either may be the one that is overtaken.
            while not any(each.reasons for each in pair):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            late = next(each for each in pair if each.reasons)
            assert "run only one mirror" in late.reasons[0]
            (other,) = (each for each in pair if each is not late)
            await other.end()
            load.is_stopped = True
            await loading
            while await _count(target, topic) < load.count:
                assert not late.work.done()
                await asyncio.sleep(0.1)
            assert (await late.end()).parked == ()
    finally:
        load.is_stopped = True
        with contextlib.suppress(asyncio.CancelledError):
            await loading
    found = await asyncio.to_thread(
        read_topic, target.bootstrap, topic, partitions=PARTITIONS, count=load.count
    )
    for partition in range(PARTITIONS):
        values = [int(record.value or b"-1") for record in found.partitions[partition]]
        assert values == list(range(load.count // PARTITIONS))
