"""The mirror between two Kafka Lite clusters: topics it makes, brokers that die, its own end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from shoal.client.admin import NewTopic, Resource, ResourceType
from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster
from shoal.mirror.command import mirror_until
from shoal.mirror.config import MirrorConfig, MirrorLimits
from shoal.mirror.offsets.positions import read_positions
from shoal.mirror.status import MirrorStatus
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from support.client.topic_reader import SILENT, read_topic

PARTITIONS = 3
COPIED = 30_000


def _client(cluster: LiteCluster) -> Client:
    return Client({"bootstrap.servers": cluster.bootstrap})


async def _make(cluster: LiteCluster, topic: str, **options: object) -> None:
    async with _client(cluster) as client:
        await client.admin.create_topics([NewTopic(topic, PARTITIONS, **options)])  # type: ignore[arg-type]


def _fill(cluster: LiteCluster, topic: str, count: int) -> None:
    settings = {"linger.ms": 1, "batch.num.messages": 50, "enable.idempotence": True, **SILENT}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    for number in range(count):
        producer.produce(topic, value=f"{number}", partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0
    producer.close()


def _config(source: LiteCluster, target: LiteCluster, topic: str, **options: Any) -> MirrorConfig:
    return MirrorConfig(
        {"bootstrap.servers": source.bootstrap},
        {"bootstrap.servers": target.bootstrap, "request.timeout.ms": 5000},
        (topic,),
        **options,
    )


def _command(source: LiteCluster, target: LiteCluster, topic: str, *more: str) -> list[str]:
    arguments = [sys.executable, "-m", "shoal", "mirror", "run"]
    arguments += ["--source-bootstrap-server", source.bootstrap]
    arguments += ["--target-bootstrap-server", target.bootstrap]
    return [*arguments, "--topics", topic, *more]


async def _mirror(config: MirrorConfig, count: int) -> MirrorStatus:
    done = asyncio.Event()

    def look(status: MirrorStatus) -> None:
        if status.counts.records >= count or status.parked:
            done.set()

    async with asyncio.timeout(60):
        return await mirror_until(done.wait, config, on_status=look)


def _check(target: LiteCluster, topic: str, count: int) -> None:
    """Every record once and in order, as a client that is not ours sees it."""
    found = read_topic(target.bootstrap, topic, partitions=PARTITIONS, count=count)
    for partition, records in found.partitions.items():
        expected = [f"{number}".encode() for number in range(partition, count, PARTITIONS)]
        assert [record.value for record in records] == expected


async def test_a_missing_topic_is_made_with_partitions_and_configs(
    source: LiteCluster, target: LiteCluster
) -> None:
    configs = {"max.message.bytes": "2000000", "retention.ms": "-1"}
    await _make(source, "made", configs=configs)
    _fill(source, "made", 600)
    status = await _mirror(_config(source, target, "made"), 600)
    assert (status.lag, status.parked) == (0, ())
    async with _client(target) as client:
        resource = Resource(ResourceType.TOPIC, "made")
        described = (await client.admin.describe_configs([resource]))[resource]
        assert {name: described[name].value for name in configs} == configs
        assert len((await client.metadata(["made"])).topics["made"].partitions) == PARTITIONS
    _check(target, "made", 600)


async def test_a_target_with_too_few_partitions_is_refused(
    source: LiteCluster, target: LiteCluster
) -> None:
    await _make(source, "narrow")
    async with _client(target) as client:
        await client.admin.create_topics([NewTopic("narrow", 1)])
    with pytest.raises(ConfigError, match="has 1 partitions, the source topic has 3") as caught:
        await _mirror(_config(source, target, "narrow"), 1)
    assert caught.value.remedy


async def test_a_log_that_begins_inside_a_batch_is_copied_from_there(
    source: LiteCluster, target: LiteCluster
) -> None:
    await _make(source, "trimmed")
    _fill(source, "trimmed", 600)
    # The log now begins inside a batch: that one is taken apart, the others go as they are.
    async with _client(source) as client:
        await client.admin.delete_records({TopicPartition("trimmed", 0): 60})
    status = await _mirror(_config(source, target, "trimmed"), 540)
    assert (status.counts.records, status.counts.trimmed) == (540, 1)
    found = read_topic(target.bootstrap, "trimmed", partitions=PARTITIONS, count=540)
    values = [record.value for record in found.partitions[0]]
    assert values == [f"{number}".encode() for number in range(180, 600, 3)]


@pytest.fixture
def victim() -> Iterator[LiteCluster]:
    """A cluster of the test's own: one that was harmed has other processes afterwards."""
    with LiteCluster() as cluster:
        yield cluster


@pytest.mark.long
async def test_every_record_arrives_once_although_the_source_is_killed(
    victim: LiteCluster, target: LiteCluster
) -> None:
    status = await _copy_under_kills(victim, target, victim, topic="killed-source")
    assert (status.counts.records, status.parked) == (COPIED, ())
    _check(target, "killed-source", COPIED)


async def test_every_record_arrives_once_although_the_target_is_killed(
    source: LiteCluster, victim: LiteCluster
) -> None:
    status = await _copy_under_kills(source, victim, victim, topic="killed-target")
    assert (status.counts.records, status.parked) == (COPIED, ())
    assert status.counts.resent > 0
    _check(victim, "killed-target", COPIED)


async def _copy_under_kills(
    source: LiteCluster, target: LiteCluster, victim: LiteCluster, *, topic: str
) -> MirrorStatus:
    await _make(source, topic)
    _fill(source, topic, COPIED)
    node = victim.nodes()[0].id
    # Slow and in small steps, so that the kills fall into the copying.
    steps = MirrorLimits(fetch_bytes=20_000, partition_bytes=5_000, queue_bytes=20_000)
    config = _config(
        source, target, topic, limits=steps, handler="support.mirror.batches:pass_slowly"
    )
    ended = threading.Event()
    kills = 0

    def harm() -> None:
        nonlocal kills
        while not ended.wait(0.5) and kills < 3:
            # Paused for a moment, so that requests are surely unanswered when the kill comes.
            victim.pause(node)
            time.sleep(0.3)
            victim.kill(node)
            victim.restart(node)
            kills += 1

    harming = threading.Thread(target=harm)
    harming.start()
    status = await _mirror(config, COPIED)
    ended.set()
    harming.join()
    assert kills >= 2
    return status


def _wait_for_copy(positions: Path, total: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if positions.exists() and sum(read_positions(positions).values()) >= total:
            return
        time.sleep(0.05)
    pytest.fail(f"{positions} never told of {total} records")


def test_the_command_ends_in_order_when_it_is_told_to(
    source: LiteCluster, target: LiteCluster, tmp_path: Path
) -> None:
    asyncio.run(_make(source, "command"))
    _fill(source, "command", 300)
    positions = tmp_path / "positions.json"
    arguments = _command(source, target, "command", "--positions", str(positions))
    with subprocess.Popen(arguments) as process:
        _wait_for_copy(positions, 300)
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
    told = json.loads(positions.read_text())
    assert (told["reader"], told["final"], told["counts"]["records"]) == ("mirror", True, 300)
    assert {row["offset"] for row in told["positions"]} == {100}
    _check(target, "command", 300)


def test_the_command_ends_when_its_parent_is_killed(
    source: LiteCluster, target: LiteCluster, tmp_path: Path
) -> None:
    asyncio.run(_make(source, "orphan"))
    _fill(source, "orphan", 30)
    positions = tmp_path / "positions.json"
    arguments = _command(
        source, target, "orphan", "--positions", str(positions), "--stop-with-parent"
    )
    script = "import subprocess, sys, time; p = subprocess.Popen(sys.argv[1:]); "
    script += "print(p.pid, flush=True); time.sleep(600)"
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout as said:
        mirror = psutil.Process(int(said.readline()))
    _wait_for_copy(positions, 30)
    parent.kill()
    parent.wait()
    for _ in range(200):
        if not mirror.is_running() or mirror.status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.05)
    else:
        os.kill(mirror.pid, signal.SIGKILL)
        pytest.fail("the mirror outlived its parent by 10 s")
    assert json.loads(positions.read_text())["final"] is True
