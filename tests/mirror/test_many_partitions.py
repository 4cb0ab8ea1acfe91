"""The cost of a mirror follows what moves: stuck and idle partitions cost next to nothing."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Producer

from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import TopicRules
from shoal.mirror.offsets.checkpoints import Checkpoint, CheckpointTopic
from shoal.mirror.run.runner import MirrorRunner
from shoal.model.topics import TopicPartition
from support.client.topic_reader import SILENT
from support.mirror.copies import assert_same, config_of, fill, make_topic
from support.mirror.runs import running

_LARGE = b"x" * (2 << 20)
_IDLE = 60


@pytest.fixture(name="calls")
def count_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a fetch is sent, and a partition is looked at."""
    calls: Counter[str] = Counter()
    fetch, update = Client.fetch_in_session, MirrorRunner._update

    async def counted_fetch(self: Client, *args: Any, **options: Any) -> Any:
        calls["fetch"] += 1
        return await fetch(self, *args, **options)

    def counted_update(self: MirrorRunner, work: Any, now: float) -> None:
        calls["update"] += 1
        calls[str(work.mirror.partition)] += 1
        update(self, work, now)

    monkeypatch.setattr(Client, "fetch_in_session", counted_fetch)
    monkeypatch.setattr(MirrorRunner, "_update", counted_update)
    return calls


def _produce_large(cluster: LiteCluster, topic: str) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 4 << 20, **SILENT}
    with Producer(settings) as producer:
        producer.produce(topic, _LARGE, partition=0)
        assert producer.flush(60) == 0


async def test_a_stuck_partition_does_not_make_the_fetches_of_others_poll(
    source: LiteCluster, target: LiteCluster, calls: Counter[str]
) -> None:
    """The target refuses a record of one partition for good; it has no room for more."""
    await make_topic(source.bootstrap, "stuck", max_message_bytes=str(4 << 20))
    await make_topic(target.bootstrap, "stuck")
    await make_topic(source.bootstrap, "others", 4)
    rules = TopicRules(sync_configs=False)
    config = config_of(source.bootstrap, target.bootstrap, "stuck", "others", rules=rules)
    await asyncio.to_thread(_produce_large, source, "stuck")
    async with running(config) as mirror:
        await mirror.until(lambda status: any(each.waits_for_limit for each in status.partitions))
        await asyncio.to_thread(fill, source.bootstrap, "others", range(40), partitions=4)
        await mirror.copied(40)
        loop = asyncio.get_running_loop()
        before, began = calls["fetch"], loop.time()
        await asyncio.sleep(3)
        fetches_per_s = (calls["fetch"] - before) / (loop.time() - began)
        # Two of 500 ms each, and the first ones that were shorter; polling would be a hundred.
        assert fetches_per_s < 6
        await asyncio.to_thread(fill, source.bootstrap, "others", range(40, 80), partitions=4)
        await mirror.copied(80)
    await assert_same(source.bootstrap, target.bootstrap, "others", 80, partitions=4)


async def test_idle_partitions_are_not_looked_at(
    source: LiteCluster, target: LiteCluster, calls: Counter[str]
) -> None:
    await make_topic(source.bootstrap, "idle", _IDLE)
    await make_topic(source.bootstrap, "moving")
    rules = TopicRules(refresh_s=0)
    config = config_of(
        source.bootstrap, target.bootstrap, "idle", "moving", name="idle", rules=rules
    )
    async with running(config) as mirror:
        await mirror.until(lambda status: len(status.partitions) == _IDLE + 1 and not status.lag)
        calls.clear()
        for number in range(10):
            await asyncio.to_thread(fill, source.bootstrap, "moving", [number])
        await mirror.copied(10)
        # At most metadata that changed meanwhile makes it look at the idle ones.
        looks = [calls[f"idle-{number}"] for number in range(_IDLE)]
        assert max(looks) <= 2
        assert calls["moving-0"] >= 10


def _checkpoint(offset: int) -> Checkpoint:
    return Checkpoint(None, None, None, "idempotent", offset, offset)


async def test_reading_checkpoints_back_decodes_only_the_last_of_each_partition(
    target: LiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[str] = []
    real = CheckpointTopic._apply_record

    def count(self: CheckpointTopic, record: Any) -> None:
        applied.append(record.key)
        real(self, record)

    tps = [TopicPartition("many", number) for number in range(50)]
    async with Client({"bootstrap.servers": target.bootstrap}) as client:
        written = CheckpointTopic(client, "bounded")
        await written.create_if_missing()
        for offset in range(20):
            await written.write({tp: _checkpoint(offset) for tp in tps}, {tps[0]: {offset: b"b"}})
        await written.write({}, {tps[0]: {3: None}})
        monkeypatch.setattr(CheckpointTopic, "_apply_record", count)
        again = CheckpointTopic(client, "bounded")
        assert await again.read() == {tp: _checkpoint(19) for tp in tps}
    assert again.blocks == written.blocks
    assert sorted(again.blocks[tps[0]]) == [n for n in range(20) if n != 3]
    assert len(applied) == len(tps) + 20
