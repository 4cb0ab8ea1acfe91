"""A partition without a leader, on either side: every other one is copied, and status says why."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from shoal.client.results import LATEST
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import MirrorConfig, TopicRules
from shoal.mirror.flow import Flow
from shoal.mirror.mm2.patterns import Selection
from shoal.mirror.offsets.checkpoints import CheckpointTopic
from shoal.mirror.run.copier import Copier
from shoal.mirror.status import MirrorStatus
from shoal.mirror.translation import GroupSync, Translator
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from support.client.topic_reader import SILENT
from support.mirror.copies import assert_same, client, config_of, fill, mirror_all, verify_copies
from support.mirror.leaderless import await_leader, kill_leader, make_placed
from support.mirror.runs import Running, running

DELIVERIES = ["at-least-once", "idempotent", "transactional", "compare-and-append"]
# Broker 2 leads partition 1 alone; what is internal has a replica on broker 1, which stays.
PLACES = {0: [1], 1: [2], 2: [1]}


@pytest.fixture(name="pair")
def pair_of_clusters() -> Iterator[tuple[LiteCluster, LiteCluster]]:
    with (
        LiteCluster(brokers=2, profile="available") as source,
        LiteCluster(brokers=2, profile="available") as target,
    ):
        yield source, target


def _config(source: LiteCluster, target: LiteCluster, *topics: str, **options: Any) -> MirrorConfig:
    rules = TopicRules(refresh_s=0.5)
    return config_of(
        source.bootstrap, target.bootstrap, *topics, **{"rules": rules, "name": "m", **options}
    )


def _waiting(status: MirrorStatus, partition: int) -> str:
    return next(p.waiting for p in status.partitions if p.route.source.partition == partition)


async def _await_copied(
    mirror: Running, positions: dict[int, int], topic: str = "t"
) -> MirrorStatus:
    wanted = {TopicPartition(topic, number): offset for number, offset in positions.items()}
    return await mirror.until(
        lambda status: all(status.positions.get(tp, -1) >= end for tp, end in wanted.items())
    )


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.quick("source-idempotent", "target-transactional")
async def test_a_leaderless_partition_holds_back_no_other(
    pair: tuple[LiteCluster, LiteCluster], side: str, delivery: str
) -> None:
    source, target = pair
    for cluster in pair:
        await make_placed(cluster, "t", PLACES)
    await asyncio.to_thread(fill, source.bootstrap, "t", range(300), partitions=3)
    bad = source if side == "source" else target
    await kill_leader(bad, "t", 1, 2)
    config = _config(source, target, "t", "later", delivery=delivery)
    async with running(config) as mirror:
        status = await _await_copied(mirror, {0: 100, 2: 100})
        assert "no leader" in _waiting(status, 1)
        assert status.lag == -1
        # A topic that is found later is copied too.
        await make_placed(source, "later", {0: [1]})
        await make_placed(target, "later", {0: [1]})
        await asyncio.to_thread(fill, source.bootstrap, "later", range(50))
        await _await_copied(mirror, {0: 50}, "later")
        await asyncio.to_thread(bad.restart, 2)
        await await_leader(bad, "t", 1, 2)
        status = await _await_copied(mirror, {0: 100, 1: 100, 2: 100})
        status = await mirror.until(lambda status: status.lag == 0)
        assert not any(each.waiting for each in status.partitions)
    await assert_same(source.bootstrap, target.bootstrap, "t", 300, partitions=3)


@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
@pytest.mark.quick("idempotent")
async def test_a_partition_that_loses_its_leader_while_it_is_copied_is_shown(
    pair: tuple[LiteCluster, LiteCluster], delivery: str
) -> None:
    source, target = pair
    for cluster in pair:
        await make_placed(cluster, "t", PLACES)
    await asyncio.to_thread(fill, source.bootstrap, "t", range(300), partitions=3)
    flow = Flow(_config(source, target, "t", delivery=delivery), make_backend=Copier)
    running_flow = asyncio.create_task(flow.run())
    try:
        await _until(flow, lambda status: status.lag == 0)
        await kill_leader(source, "t", 1, 2)
        began = time.monotonic()
        flow.pause()
        status = await flow.status()
        assert status is not None
        # The limit of those who ask is 30 s.
        assert time.monotonic() - began < 20
        assert status.paused
        flow.resume()
        await _until(flow, lambda status: "no leader" in _waiting(status, 1))
        await asyncio.to_thread(fill, source.bootstrap, "t", range(300, 600, 3), partitions=3)
        await _until(flow, lambda status: status.positions[TopicPartition("t", 0)] == 200)
        await asyncio.to_thread(source.restart, 2)
        await _until(flow, lambda status: not _waiting(status, 1))
    finally:
        flow.stop()
        await running_flow


async def _until(flow: Flow, is_so: Any) -> MirrorStatus:
    async with asyncio.timeout(90):
        while True:
            status = await flow.status()
            if status is not None and status.partitions and is_so(status):
                return status
            await asyncio.sleep(0.2)


async def _stick(source: LiteCluster, target: LiteCluster) -> None:
    """Kill a leader whose partition is part of a transaction that cannot be ended before."""
    for node_id in (1, 2):
        await asyncio.to_thread(target.fail_requests, node_id, ApiKey.END_TXN, times=10_000)
    await asyncio.to_thread(fill, source.bootstrap, "t", range(300, 900), partitions=3)
    tp = TopicPartition("t", 1)
    async with asyncio.timeout(60), client(target.bootstrap) as one:
        before = (await one.list_offsets({tp: LATEST}, isolation="read_committed"))[tp].offset
        while (await one.list_offsets({tp: LATEST}))[tp].offset <= before:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await asyncio.to_thread(target.kill, 2)
    await asyncio.to_thread(target.heal)


async def _writers(target: LiteCluster) -> dict[int, str]:
    """Which transactional.id wrote each partition last."""
    async with client(target.bootstrap) as one:
        found = await CheckpointTopic(one, "m").read()
    return {tp.partition: checkpoint.transactional_id for tp, checkpoint in found.items()}


async def _copy_first(pair: tuple[LiteCluster, LiteCluster]) -> MirrorConfig:
    source, target = pair
    for cluster in pair:
        await make_placed(cluster, "t", PLACES)
    await asyncio.to_thread(fill, source.bootstrap, "t", range(300), partitions=3)
    return _config(source, target, "t", delivery="transactional")


async def test_partitions_of_a_stuck_transaction_continue_under_another_id(
    pair: tuple[LiteCluster, LiteCluster],
) -> None:
    source, target = pair
    async with running(await _copy_first(pair)) as mirror:
        await _await_copied(mirror, {0: 100, 1: 100, 2: 100})
        await _stick(source, target)
        status = await _await_copied(mirror, {0: 300, 2: 300})
        assert "no leader" in _waiting(status, 1)
        await asyncio.to_thread(fill, source.bootstrap, "t", range(900, 1200, 3), partitions=3)
        await _await_copied(mirror, {0: 400, 2: 300})
        assert (await _writers(target))[0] == "shoal-mirror-m-0.1"
        await asyncio.to_thread(target.restart, 2)
        await _await_copied(mirror, {0: 400, 1: 300, 2: 300})
        await asyncio.to_thread(fill, source.bootstrap, "t", range(1200, 1500), partitions=3)
        await _await_copied(mirror, {0: 500, 1: 400, 2: 400})
    await assert_same(source.bootstrap, target.bootstrap, "t", 1300, partitions=3)


@pytest.mark.long
async def test_a_mirror_starts_although_its_last_transaction_cannot_end(
    pair: tuple[LiteCluster, LiteCluster],
) -> None:
    source, target = pair
    config = await _copy_first(pair)
    async with running(config) as mirror:
        await _await_copied(mirror, {0: 100, 1: 100, 2: 100})
        await _stick(source, target)
    async with running(config) as mirror:
        await _await_copied(mirror, {0: 300, 2: 300})
        await asyncio.to_thread(target.restart, 2)
        await _await_copied(mirror, {0: 300, 1: 300, 2: 300})
    await assert_same(source.bootstrap, target.bootstrap, "t", 900, partitions=3)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.quick("source")
async def test_verify_translate_and_group_sync_report_a_leaderless_partition(
    pair: tuple[LiteCluster, LiteCluster], side: str
) -> None:
    source, target = pair
    for cluster in pair:
        await make_placed(cluster, "t", PLACES)
    await asyncio.to_thread(fill, source.bootstrap, "t", range(300), partitions=3)
    await mirror_all(_config(source, target, "t"))
    await asyncio.to_thread(_commit, source, {0: 50, 1: 50, 2: 50})
    await kill_leader(source if side == "source" else target, "t", 1, 2)
    reports = await verify_copies(source.bootstrap, target.bootstrap, "t")
    assert [bool(report.unavailable) for report in reports] == [False, True, False]
    assert [report.records for report in reports] == [100, 0, 100]
    async with client(source.bootstrap) as ours, client(target.bootstrap) as theirs:
        translator = Translator(theirs, "m")
        await translator.refresh()
        places = [translator.translate(TopicPartition("t", number), 50) for number in range(3)]
        expected = [50, 50 if side == "source" else None, 50]
        assert [place.target_offset for place in places] == expected
        assert [bool(place.why) for place in places] == [False, side == "target", False]
        (move,) = await GroupSync(ours, theirs, translator).sync(Selection(("readers",), ()))
        assert move.committed == 3 if side == "source" else 2


def _commit(cluster: LiteCluster, offsets: dict[int, int]) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "readers", **SILENT}
    with Consumer({**settings, "enable.auto.commit": False}) as consumer:
        positions = [ConfluentPartition("t", number, at) for number, at in offsets.items()]
        consumer.commit(offsets=positions, asynchronous=False)
