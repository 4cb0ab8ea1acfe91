"""The whole mirror between two clusters that are not ours: librdkafka's mocks."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.client.client import Client
from shoal.mirror.command import mirror_until
from shoal.mirror.config import MirrorConfig
from shoal.mirror.handlers import load_handler
from shoal.mirror.offsets.positions import read_positions
from shoal.mirror.status import MirrorStatus
from shoal.model.errors import ConfigError, LedgerError, UsageError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch, iter_batches
from support.client.mock_cluster import PARTITIONS, MockCluster, mock_cluster
from support.client.topic_reader import read_topic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT = 2000


@pytest.fixture
def target() -> Iterator[MockCluster]:
    # Mocks know no admin requests: what a mirror would make must be there.
    with mock_cluster("__shoal_mirror_default", brokers=2) as cluster:
        yield cluster


def _fill(cluster: MockCluster, topic: str, *, first: int = 0, count: int = COUNT) -> None:
    for number in range(first, first + count):
        cluster.producer.produce(
            topic,
            key=None if number % 10 == 0 else f"key-{number}",
            value=None if number % 11 == 0 else f"value-{number}-" * (number % 7 + 1),
            partition=number % PARTITIONS,
            headers=[("number", str(number)), ("none", None)] if number % 3 else None,
            timestamp=1_700_000_000_000 + number,
        )
        cluster.producer.poll(0)
    assert cluster.producer.flush(30) == 0


async def _mirror_all(
    source: MockCluster, target: MockCluster, topics: tuple[str, ...], count: int, **options: Any
) -> MirrorStatus:
    """Mirror until so many records have arrived."""
    done = asyncio.Event()

    def look(status: MirrorStatus) -> None:
        if status.counts.records >= count or status.parked:
            done.set()

    config = MirrorConfig(
        {"bootstrap.servers": source.bootstrap},
        {"bootstrap.servers": target.bootstrap},
        topics,
        **options,
    )
    async with asyncio.timeout(30):
        return await mirror_until(done.wait, config, on_status=look)


async def _batches(cluster: MockCluster, topic: str) -> dict[int, list[Batch]]:
    """All batches of a topic, raw."""
    found: dict[int, list[Batch]] = {partition: [] for partition in range(PARTITIONS)}
    async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
        positions = {TopicPartition(topic, partition): 0 for partition in range(PARTITIONS)}
        moved = True
        while moved:
            moved = False
            fetched = await client.fetch(positions, max_wait_ms=10)
            for tp, part in fetched.items():
                for batch in iter_batches(part.records):
                    batch.check_crc()
                    found[tp.partition].append(batch)
                    positions[tp] = batch.next_offset
                    moved = True
    return found


@pytest.mark.parametrize("codec", CODECS)
async def test_records_arrive_as_they_were_and_batches_keep_their_bytes(
    codec: str, target: MockCluster
) -> None:
    settings: dict[str, Any] = {"compression.type": codec, "linger.ms": 2, "batch.size": 4000}
    with mock_cluster(brokers=2, **settings) as source:
        _fill(source, "t")
        target.make_topic("t")
        status = await _mirror_all(source, target, ("t",), COUNT)
        assert status.parked == ()
        assert (status.counts.records, status.counts.resent) == (COUNT, 0)
        sent = read_topic(source.bootstrap, "t", partitions=PARTITIONS, count=COUNT)
        arrived = read_topic(target.bootstrap, "t", partitions=PARTITIONS, count=COUNT)
        assert arrived == sent
        source_batches, target_batches = await _batches(source, "t"), await _batches(target, "t")
    assert status.counts.batches == sum(map(len, source_batches.values())) > 2 * PARTITIONS
    for partition, batches in source_batches.items():
        copies = target_batches[partition]
        assert [bytes(b.records) for b in copies] == [bytes(b.records) for b in batches]
        assert [b.codec for b in copies] == [b.codec for b in batches]
        assert [b.base_offset for b in copies] == [b.base_offset for b in batches]
        assert [b.max_timestamp for b in copies] == [b.max_timestamp for b in batches]


async def test_several_topics_and_records_that_come_later(
    target: MockCluster, tmp_path: Path
) -> None:
    with mock_cluster(brokers=2) as source:
        for topic in ("a", "b"):
            _fill(source, topic, count=100)
            target.make_topic(topic)

        async def more() -> None:
            await asyncio.sleep(0.3)
            await asyncio.to_thread(_fill, source, "a", first=100, count=100)

        adding = asyncio.create_task(more())
        positions = tmp_path / "positions.json"
        status = await _mirror_all(source, target, ("a", "b"), 300, positions=positions)
        await adding
        copied = read_topic(target.bootstrap, "a", partitions=PARTITIONS, count=200)
        original = read_topic(source.bootstrap, "a", partitions=PARTITIONS, count=200)
        assert copied == original
    assert read_positions(positions) == dict(status.positions)
    assert sum(read_positions(positions).values()) == 300


def lose_partition_2(partition: TopicPartition, batch: Batch) -> Batch | None:
    return None if partition.partition == 2 else batch


async def test_a_handler_named_on_the_command_line_sees_every_batch(
    target: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = "mirror_handler_for_a_test:lose"
    module = type("module", (), {"lose": staticmethod(lose_partition_2)})
    monkeypatch.setitem(__import__("sys").modules, "mirror_handler_for_a_test", module)
    with mock_cluster() as source:
        _fill(source, "t", count=400)
        target.make_topic("t")
        status = await _mirror_all(source, target, ("t",), 300, handler=handler)
    assert status.counts.records == 300
    assert status.counts.dropped_by_handler > 0
    assert sum(status.positions.values()) == 400


async def test_a_target_that_is_not_empty_is_refused(target: MockCluster) -> None:
    with mock_cluster() as source:
        _fill(source, "t", count=10)
        _fill(target, "t", count=1)
        with pytest.raises(ConfigError, match="t-0 is not empty: it has 1 offsets") as caught:
            await _mirror_all(source, target, ("t",), 10)
    assert caught.value.remedy


async def test_a_topic_that_the_source_does_not_have_is_named(target: MockCluster) -> None:
    with mock_cluster() as source, pytest.raises(UsageError, match="has no topic nowhere"):
        await _mirror_all(source, target, ("nowhere",), 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": {}}, "source cluster has no bootstrap.servers"),
        ({"target": {}}, "target cluster has no bootstrap.servers"),
        ({"topics": ()}, "no topics to mirror"),
        ({"topics": ("a", "")}, "no topics to mirror"),
        ({"topics": ("a", "a")}, "listed twice"),
        ({"name": "a/b"}, "is not a valid name"),
        ({"target": {"bootstrap.servers": "s:1"}}, "same cluster"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(changes: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {
        "source": {"bootstrap.servers": "s:1"},
        "target": {"bootstrap.servers": "t:1"},
        "topics": ("a",),
    }
    assert MirrorConfig.from_json(MirrorConfig(**good).to_json()) == MirrorConfig(**good)
    with pytest.raises(ConfigError, match=said):
        MirrorConfig(**good | changes)


async def test_a_stop_while_the_clusters_are_still_sought_ends_it_at_once(
    target: MockCluster,
) -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # accepts, and never says a word
    with silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config = MirrorConfig(
            {"bootstrap.servers": address}, {"bootstrap.servers": target.bootstrap}, ("t",)
        )

        async def soon() -> None:
            await asyncio.sleep(0.2)

        async with asyncio.timeout(60):
            status = await mirror_until(soon, config)
    assert status.positions == {}


async def test_a_place_for_positions_that_cannot_be_written_shows_at_the_start(
    target: MockCluster, tmp_path: Path
) -> None:
    with mock_cluster() as source:
        _fill(source, "t", count=10)
        target.make_topic("t")
        with pytest.raises(LedgerError, match="cannot write the positions") as caught:
            await _mirror_all(source, target, ("t",), 10, positions=tmp_path / "no" / "file")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nocolon", "not a valid handler"),
        ("no.such.module:f", "cannot import"),
        ("json:no_such_function", "has no function"),
    ],
)
def test_a_handler_that_is_not_there_is_named(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_handler(name)
