"""Consumer groups that move from source to target by the offset map, judged by librdkafka."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from shoal.client.client import Client
from shoal.client.cluster.coordinators import Coordinator, CoordinatorType
from shoal.client.groups.group_offsets import fetch_committed_offsets
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import GroupRules, MirrorConfig, TopicRules
from shoal.mirror.mm2.naming import Naming
from shoal.mirror.translation import GroupSync, Translator
from shoal.model.exit_codes import ExitCode
from shoal.model.topics import TopicPartition
from support.client.topic_reader import SILENT
from support.mirror.runs import PATIENCE_S, client, make, running


@pytest.fixture(scope="module", name="source")
def source_address(source: LiteCluster) -> str:
    return source.bootstrap


@pytest.fixture(scope="module", name="target")
def target_address(target: LiteCluster) -> str:
    return target.bootstrap


def _config(source: str, target: str, topic: str, **options: Any) -> MirrorConfig:
    clusters = {"bootstrap.servers": source}, {"bootstrap.servers": target}
    return MirrorConfig(*clusters, (topic,), name=topic, **options)


def _transactions(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Transactions of five records, each third one aborted; what was committed, in order."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer", **SILENT}
    )
    producer.init_transactions(PATIENCE_S)
    committed = []
    for number in range(count):
        producer.begin_transaction()
        values = [f"{topic}-{number}-{record}".encode() for record in range(5)]
        for value in values:
            producer.produce(topic, value=value, partition=0)
        if number % 3 == 1:
            assert producer.flush(PATIENCE_S) == 0
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
            committed += values
    producer.close()
    return committed


def _read(bootstrap: str, topic: str, group: str, count: int) -> list[bytes]:
    """So many records as a member of the group, from its position on; commits at the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            **SILENT,
        }
    )
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    consumer.subscribe([topic])
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records"
            message = consumer.poll(0.1)
            if message is None:
                continue
            assert message.error() is None, message.error()
            value = message.value()
            assert value is not None
            found.append(value)
            consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()
    return found


def _begin(bootstrap: str, topic: str, group: str) -> None:
    """A new group stands before the first record."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **SILENT}
    )
    consumer.commit(offsets=[ConfluentPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()


def _translate(source: str, target: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoal", "mirror", "translate"]
    command += ["--source-bootstrap-server", source, "--target-bootstrap-server", target, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


async def _mirror_all(config: MirrorConfig, records: int) -> None:
    async with running(config) as mirror:
        await mirror.copied(records)
        await mirror.until(lambda status: status.lag == 0)


@pytest.mark.parametrize("delivery", ["idempotent", "transactional", "compare-and-append"])
@pytest.mark.quick("compare-and-append")
def test_a_moved_group_reads_every_committed_record_once(
    source: str, target: str, delivery: str
) -> None:
    _check_moved(source, target, f"moved-{delivery}", delivery)


def test_a_group_moves_from_apache_kafka_and_to_it(
    source: str, target: str, apache_bootstrap: str
) -> None:
    _check_moved(source, apache_bootstrap, "moved-to-apache", "idempotent")
    _check_moved(apache_bootstrap, target, "moved-from-apache", "idempotent")


def _check_moved(source: str, target: str, topic: str, delivery: str) -> None:
    group = topic
    asyncio.run(make(source, topic))
    committed = _transactions(source, topic, 12)
    _begin(source, topic, group)
    # In the middle of a transaction that lies behind aborted ones.
    seen = _read(source, topic, group, 23)
    asyncio.run(_mirror_all(_config(source, target, topic, delivery=delivery), len(committed)))
    moved = _translate(source, target, "--name", topic, "--group", group, "--commit")
    assert moved.returncode == 0, moved.stderr
    seen += _read(target, topic, group, len(committed) - len(seen))
    assert seen == committed


def test_the_command_tells_positions_and_what_is_not_known_yet(source: str, target: str) -> None:
    topic = "told"
    asyncio.run(make(source, topic))
    committed = _transactions(source, topic, 6)
    asyncio.run(_mirror_all(_config(source, target, topic), len(committed)))
    # Transactions take six offsets; numbers 1 and 4 were aborted.
    asked = [f"{topic}:0:{offset}" for offset in (0, 4, 5, 6, 11, 12, 35, 36)]
    told = _translate(source, target, "--name", topic, "--output", "json", *asked)
    assert told.returncode == 0, told.stderr
    found = [place["target_offset"] for place in json.loads(told.stdout)]
    assert found == [0, 4, 5, 5, 5, 5, 20, 20]
    late = _translate(source, target, "--name", topic, f"{topic}:0:37")
    assert (late.returncode, late.stdout) == (
        ExitCode.INCONCLUSIVE,
        f"{topic}-0 37 -> {topic}-0 not copied yet\n",
    )
    unknown = _translate(source, target, "--name", "nobody", f"{topic}:0:1")
    assert (unknown.returncode, "no checkpoints of a mirror named nobody" in unknown.stderr) == (
        ExitCode.USAGE,
        True,
    )


async def test_groups_follow_by_themselves_but_not_where_they_are_active(
    source: str, target: str
) -> None:
    await make(target, "elsewhere")
    await _check_followed(source, target, "followed")


@pytest.mark.long
async def test_groups_follow_from_apache_kafka_and_to_it(
    source: str, target: str, apache_bootstrap: str
) -> None:
    await make(apache_bootstrap, "elsewhere")
    await _check_followed(source, apache_bootstrap, "followed-to-apache")
    await make(target, "elsewhere-too")
    await _check_followed(apache_bootstrap, target, "followed-from-apache", "elsewhere-too")


async def _check_followed(
    source: str, target: str, topic: str, elsewhere: str = "elsewhere"
) -> None:
    await make(source, topic)
    committed = await asyncio.to_thread(_transactions, source, topic, 6)
    idle, active, tool = f"{topic}-idle", f"{topic}-active", f"console-consumer-{topic}"
    for group in (idle, active, tool):
        await asyncio.to_thread(_begin, source, topic, group)
        await asyncio.to_thread(_read, source, topic, group, 7)
    rules = TopicRules(naming=Naming("default", source_alias="us"))
    groups = GroupRules(sync=True, sync_s=0.2)
    with _member(target, active, elsewhere):
        async with running(_config(source, target, topic, rules=rules, groups=groups)) as mirror:
            await mirror.copied(len(committed))
            place = await _read_committed_offset(target, idle, topic)
        assert await _positions(target, active, topic) == {}
    assert await _positions(target, tool, topic) == {}
    assert place == 7
    assert await asyncio.to_thread(_read, target, f"us.{topic}", idle, 13) == committed[7:]


@contextmanager
def _member(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    """A consumer that is a member of a group as long as the block lasts."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **SILENT})
    assigned: list[object] = []
    consumer.subscribe([topic], on_assign=lambda *_: assigned.append(1))
    deadline = time.monotonic() + PATIENCE_S
    while not assigned and time.monotonic() < deadline:
        consumer.poll(0.1)
    try:
        assert assigned
        yield
    finally:
        consumer.close()


async def _read_committed_offset(bootstrap: str, group: str, topic: str) -> int:
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await _positions(bootstrap, group, topic)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return found[TopicPartition(f"us.{topic}", 0)]


async def _positions(bootstrap: str, group: str, topic: str) -> dict[TopicPartition, int]:
    partitions = [TopicPartition(name, 0) for name in (topic, f"us.{topic}")]
    async with client(bootstrap) as asked:
        coordinator = Coordinator(asked, CoordinatorType.GROUP, group)
        found = await fetch_committed_offsets(coordinator, group, partitions)
    return {tp: commit.offset for tp, commit in found.items()}


async def test_a_group_that_moves_within_a_running_mirror_goes_forwards_only(
    source: str, target: str
) -> None:
    topic = "forwards"
    await make(source, topic)
    committed = await asyncio.to_thread(_transactions, source, topic, 3)
    await _mirror_all(_config(source, target, topic), len(committed))
    await asyncio.to_thread(_begin, source, topic, "forwards")
    await asyncio.to_thread(_begin, target, topic, "forwards")
    await asyncio.to_thread(_read, target, topic, "forwards", 3)
    async with (
        Client({"bootstrap.servers": source}) as source_client,
        Client({"bootstrap.servers": target}) as target_client,
    ):
        translator = Translator(target_client, topic)
        await translator.refresh()
        groups = GroupSync(source_client, target_client, translator)
        kept = await groups.move("forwards", forwards_only=True)
        moved = await groups.move("forwards")
    assert (kept.committed, moved.committed) == (0, 1)
