"""An unclean election at the source: nothing of the new history is missing at the target.

What the target has of the former history stays there, counted and found by `verify`; what was
fetched and not written is dropped.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition

from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import MirrorConfig, TopicRules
from shoal.mirror.status import MirrorStatus
from shoal.mirror.translation import Translator
from shoal.model.topics import TopicPartition
from support.client.topic_reader import SILENT
from support.mirror.copies import client, config_of, fill, mirror_all, values_of, verify_copies
from support.mirror.leaderless import await_leader, make_placed
from support.mirror.runs import Running, running

STOCK = ["at-least-once", "idempotent", "transactional"]
TP = TopicPartition("t", 0)
# Both replicas have 100 records, then broker 1 alone gets 200, then broker 2 leads and gets 150.
COMMON, FORMER, NEW = range(100), range(100, 300), range(1000, 1150)


@pytest.fixture(name="source")
def source_cluster() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=2, profile="available") as cluster:
        yield cluster


@pytest.fixture(name="target")
def target_cluster() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        yield cluster


def _config(source: LiteCluster, target: LiteCluster, delivery: str) -> MirrorConfig:
    rules = TopicRules(refresh_s=0.5)
    return config_of(source.bootstrap, target.bootstrap, "t", delivery=delivery, rules=rules)


async def _fill(source: LiteCluster, numbers: range, **settings: Any) -> None:
    await asyncio.to_thread(fill, source.bootstrap, "t", numbers, **settings)


async def _write_former(source: LiteCluster) -> None:
    """Records that only broker 1 has."""
    await asyncio.to_thread(source.kill, 2)
    await _fill(source, FORMER)


async def _elect_uncleanly(source: LiteCluster) -> None:
    await asyncio.to_thread(source.kill, 1)
    await asyncio.to_thread(source.restart, 2)
    await await_leader(source, "t", 0, 2)
    await _fill(source, NEW)


async def _make(source: LiteCluster) -> None:
    await make_placed(source, "t", {0: [1, 2]}, unclean_leader_election_enable="true")
    await await_leader(source, "t", 0, 1)
    await _fill(source, COMMON)


def _read(target: LiteCluster) -> dict[int, int]:
    """The numbers by offset, as librdkafka reads them, to the end."""
    found: dict[int, int] = {}
    deadline = time.monotonic() + 60
    with Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "judge",
            "enable.partition.eof": True,
            **SILENT,
        }
    ) as consumer:
        consumer.assign([ConfluentPartition("t", 0, 0)])
        while time.monotonic() < deadline:
            for message in consumer.consume(10_000, timeout=0.1):
                error = message.error()
                if error is None:
                    found[message.offset() or 0] = int(message.value() or b"-1")
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
    raise AssertionError("the topic cannot be read to its end")


async def _check(
    source: LiteCluster, target: LiteCluster, status: MirrorStatus, at_most: int
) -> None:
    """The new history is there, in order, behind what was written of the former one."""
    at = await asyncio.to_thread(_read, target)
    # At least once: a batch whose answer was lost may stand there again.
    values = list(dict.fromkeys(at.values()))
    phantoms = [value for value in values if value in FORMER]
    assert [value for value in values if value not in FORMER] == [*COMMON, *NEW]
    assert values[100 : 100 + len(phantoms)] == list(FORMER)[: len(phantoms)]
    assert len(phantoms) <= at_most
    assert status.counts.truncated == len(phantoms)
    await _check_places(target, at)
    (report,) = await verify_copies(source.bootstrap, target.bootstrap, "t")
    assert (report.difference is not None) == bool(phantoms)


async def _check_places(target: LiteCluster, at: dict[int, int]) -> None:
    """The offset map leads past the records of the former history."""
    async with client(target.bootstrap) as one:
        translator = Translator(one)
        await translator.refresh()
        for offset, value in ((99, 99), (100, 1000), (249, 1149)):
            place = translator.translate(TP, offset).target_offset
            assert place is not None
            assert at[place] == value


async def _done(mirror: Running) -> MirrorStatus:
    return await mirror.until(
        lambda status: bool(status.parked) or (status.lag == 0 and status.positions[TP] == 250)
    )


@pytest.mark.parametrize("delivery", STOCK)
@pytest.mark.quick("idempotent")
async def test_what_was_fetched_and_not_written_is_dropped(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    await _make(source)
    async with running(_config(source, target, delivery)) as mirror:
        await mirror.copied(100)
        await asyncio.to_thread(target.pause, 1)
        await _write_former(source)
        await mirror.until(lambda status: status.partitions[0].last_stable_offset == 300)
        await _elect_uncleanly(source)
        # Until it knows of the new leader it cannot know better.
        await mirror.until(lambda status: "other records" in status.partitions[0].waiting)
        await asyncio.to_thread(target.resume, 1)
        status = await _done(mirror)
        assert not status.parked
    # Five batches of twenty may be on their way, or a whole transaction.
    at_most = 200 if delivery == "transactional" else 100
    await _check(source, target, mirror.status or status, at_most)


@pytest.mark.parametrize("delivery", STOCK)
@pytest.mark.parametrize("runs", [True, False], ids=["running", "stopped"])
@pytest.mark.quick("running-idempotent", "stopped-transactional")
async def test_what_was_written_stays_and_is_counted(
    source: LiteCluster, target: LiteCluster, delivery: str, *, runs: bool
) -> None:
    config = _config(source, target, delivery)
    await _make(source)
    await _write_former(source)
    if runs:
        async with running(config) as mirror:
            await mirror.copied(300)
            await _elect_uncleanly(source)
            status = await _done(mirror)
    else:
        await mirror_all(config)
        await _elect_uncleanly(source)
        status = await mirror_all(config)
    assert not status.parked
    await _check(source, target, status, at_most=200)
    # The next start still tells of them.
    assert (await mirror_all(config)).counts.truncated == 200


async def test_compare_and_append_parks(source: LiteCluster, target: LiteCluster) -> None:
    config = _config(source, target, "compare-and-append")
    await _make(source)
    await _write_former(source)
    async with running(config) as mirror:
        await mirror.copied(300)
        await _elect_uncleanly(source)
        status = await mirror.until(lambda status: bool(status.parked))
    assert "it lost the records from offset 100 on, which are copied up to 300" in str(
        status.parked[0]
    )
    assert values_of(target.bootstrap, "t", 300)[-1] == b"299"
