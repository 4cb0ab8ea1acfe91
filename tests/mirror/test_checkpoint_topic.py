"""The checkpoint topic: how it is created, how much is written, and that maps stay small."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.client.admin import Resource, ResourceType
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import TopicRules
from shoal.mirror.offsets import checkpoints
from shoal.mirror.offsets.checkpoints import (
    Checkpoint,
    CheckpointTopic,
    _checkpoint,
    encode_checkpoints,
)
from shoal.mirror.offsets.offset_map import MapWriter, OffsetSpan
from shoal.mirror.run.checkpointer import Checkpointer
from shoal.mirror.translation import Translator
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.records import decode_records
from support.mirror.copies import client, config_of, fill, make_topic
from support.mirror.runs import running

ORDERS = TopicPartition("orders", 0)


def _make_moved(count: int) -> dict[TopicPartition, Checkpoint]:
    """Checkpoints of partitions that moved within the last second."""
    return {
        TopicPartition("orders", number): Checkpoint(
            source_cluster="5L6g3nShT-eMCtK--X86sw",
            source_topic_id="0f1c2d3e-4b5a-4678-9abc-def012345678",
            target_topic_id="1f1c2d3e-4b5a-4678-9abc-def012345678",
            delivery="idempotent",
            source_offset=1_000_000 + 7919 * number,
            target_offset=900_000 + 7907 * number,
            producer_id=1000 + number,
            producer_epoch=0,
            sequence=800_000 + 7901 * number,
            source_epoch=3,
            source_epochs=((3, 0),),
            began_at=0,
            mirror_began_ms=1_700_000_000_000,
            source_partitions=count,
        )
        for number in range(count)
    }


def test_many_partitions_are_one_small_batch() -> None:
    moved = _make_moved(500)
    batches = [bytes(batch) for batch in encode_checkpoints(moved)]
    assert len(batches) == 1
    assert len(batches[0]) < 500 * 60
    records = list(decode_records(Batch(memoryview(batches[0]))))
    assert [_checkpoint(record.value or b"") for record in records] == list(moved.values())


async def test_the_topic_has_small_segments_and_the_wanted_replication_factor() -> None:
    async with LiteCluster(brokers=3) as cluster, client(cluster.bootstrap) as one:
        for name, factor in (("three", 3), ("one", 1)):
            topic = CheckpointTopic(one, name, replication_factor=factor)
            assert await topic.create_if_missing()
            found = topic.partition
            known = (await one.metadata([found.topic], refresh=True)).partition(found)
            assert known is not None
            assert len(known.replicas) == factor
            resource = Resource(ResourceType.TOPIC, found.topic)
            configs = (await one.admin.describe_configs([resource]))[resource]
            assert configs["segment.bytes"].value == str(4 << 20)
            assert configs["cleanup.policy"].value == "compact"


async def test_a_mirror_gives_its_checkpoint_topic_the_factor_of_its_topics(
    source: LiteCluster,
) -> None:
    await make_topic(source.bootstrap, "factor")
    fill(source.bootstrap, "factor", range(5))
    async with LiteCluster(brokers=3) as target:
        rules = TopicRules(replication_factor=2)
        config = config_of(source.bootstrap, target.bootstrap, "factor", name="factor", rules=rules)
        async with running(config) as mirror:
            await mirror.copied(5)
        async with client(target.bootstrap) as one:
            found = CheckpointTopic(one, "factor").partition
            known = (await one.metadata([found.topic], refresh=True)).partition(found)
    assert known is not None
    assert len(known.replicas) == 2


async def test_a_map_above_its_limit_loses_its_oldest_blocks_and_they_are_refused(
    target: LiteCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checkpoints, "MAP_LIMIT_BYTES", 300)
    await make_topic(target.bootstrap, "orders")
    writer, source, position = MapWriter(0), 0, 0
    async with client(target.bootstrap) as one:
        topic = CheckpointTopic(one, "small-map")
        await topic.create_if_missing()
        for _ in range(40):
            for _ in range(50):
                writer.add([OffsetSpan(source, 10, 10)], position)
                source, position = source + 11, position + 10
            checkpoint = Checkpoint(None, None, None, "idempotent", source, position)
            blocks = writer.blocks_to_save()
            await topic.write({ORDERS: checkpoint}, topic.limit_maps({ORDERS: blocks}))
            writer.mark_saved(blocks)
        assert sum(map(len, topic.blocks[ORDERS].values())) < 600
        translator = Translator(one, "small-map")
        await translator.refresh()
        newest, oldest = translator.translate(ORDERS, source - 11), translator.translate(ORDERS, 5)
        behind = translator.translate(ORDERS, source + 1)
    assert (newest.target_offset, newest.why) == (position - 10, "")
    assert oldest.target_offset is None
    assert "offset map keeps the newest" in oldest.why
    assert (behind.target_offset, behind.why) == (None, "")


async def test_the_maps_of_many_partitions_have_a_common_limit(
    target: LiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAPS_LIMIT_BYTES", 4000)
    parts = [TopicPartition("many", number) for number in range(10)]
    writers = {tp: MapWriter(0) for tp in parts}
    largest = 0
    async with client(target.bootstrap) as one:
        topic = CheckpointTopic(one, "many-maps")
        await topic.create_if_missing()
        source = position = 0
        for _ in range(30):
            # Irregular gaps, which cannot be compressed much.
            steps = [random.randrange(1, 1 << 20) for _ in range(50)]
            for step in steps:
                for writer in writers.values():
                    writer.add([OffsetSpan(source, 10, 10)], position)
                source, position = source + 10 + step, position + 10
            one_checkpoint = Checkpoint(None, None, None, "idempotent", source, position)
            blocks = {tp: writer.blocks_to_save() for tp, writer in writers.items()}
            await topic.write(dict.fromkeys(parts, one_checkpoint), topic.limit_maps(blocks))
            for tp, writer in writers.items():
                writer.mark_saved(blocks[tp])
            sizes = [sum(map(len, topic.blocks[tp].values())) for tp in parts]
            largest = max(largest, sum(sizes))
    # Twice the limit, and the last block of each, which is never dropped.
    assert 4000 < largest <= 2 * 4000 + 10 * 600


async def test_what_moved_is_written_after_an_unexpected_error(
    source: LiteCluster, target: LiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition does not move again: only the note says that its checkpoint is old."""
    await make_topic(source.bootstrap, "noted")
    fill(source.bootstrap, "noted", range(20))
    failed = asyncio.Event()
    write = Checkpointer._write_moved

    async def fail(self: Checkpointer, mirrors: Any) -> bool:
        chosen = list(mirrors)
        if not failed.is_set() and any(each.done == 20 for each in chosen):
            failed.set()
            raise IndexError("planted")
        return await write(self, chosen)

    monkeypatch.setattr(Checkpointer, "_write_moved", fail)
    config = config_of(source.bootstrap, target.bootstrap, "noted", name="noted")
    async with running(config) as mirror:
        await mirror.copied(20)
        async with asyncio.timeout(60), client(target.bootstrap) as one:
            await failed.wait()
            topic = CheckpointTopic(one, "noted")
            tp = TopicPartition("noted", 0)
            while (await topic.read())[tp].source_offset < 20:  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.1)
    assert failed.is_set()


@pytest.mark.parametrize("is_noticed", [True, False], ids=["writes late", "of an older version"])
async def test_a_checkpoint_of_a_former_generation_does_not_count(*, is_noticed: bool) -> None:
    """A process that was stopped meanwhile has not noticed that a topic was created again."""
    former = replace(_make_moved(1)[ORDERS], generation=2)
    later = replace(former, source_topic_id="other", source_offset=7, generation=3)
    async with LiteCluster() as cluster, client(cluster.bootstrap) as one:
        sleeper, heir = CheckpointTopic(one, "m"), CheckpointTopic(one, "m")
        await sleeper.create_if_missing()
        await sleeper.write({ORDERS: former}, {ORDERS: {0: b"former"}})
        await heir.read()
        await heir.write({ORDERS: later}, {ORDERS: {0: b"later"}})
        late = replace(former, source_offset=former.source_offset + 1)
        if is_noticed:
            await sleeper.write({ORDERS: late}, {ORDERS: {0: b"late"}})
            assert sleeper.found == {ORDERS: later}
        else:
            for batch in encode_checkpoints({ORDERS: late}):
                assert (await one.produce({sleeper.partition: batch}, acks=-1))[
                    sleeper.partition
                ].is_ok
        reader = CheckpointTopic(one, "m")
        assert await reader.read() == {ORDERS: later}
        assert reader.blocks == {ORDERS: {0: b"later"}}
        assert await heir.read() == {ORDERS: later}


async def test_what_a_process_writes_is_not_read_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LiteCluster() as cluster, client(cluster.bootstrap) as one:
        topic = CheckpointTopic(one, "m")
        await topic.create_if_missing()
        await topic.write(_make_moved(2))

        async def refuse(position: int) -> None:
            raise AssertionError(f"it reads from {position}")

        monkeypatch.setattr(topic, "_read_from", refuse)
        await topic.write(_make_moved(3))
        await topic.write(_make_moved(2))
        assert topic.found == _make_moved(3) | _make_moved(2)
