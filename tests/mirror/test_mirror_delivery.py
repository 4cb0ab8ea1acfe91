"""At least once, in transactions, and what is chosen for records that are too old; Kafka Lite."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from shoal.lite.cluster import LiteCluster
from shoal.mirror.offsets.checkpoints import Checkpoints, CheckpointTopic
from shoal.mirror.routes import Route
from shoal.mirror.run.copier import Copier
from shoal.mirror.run.start import PartitionStarter
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from support.client.topic_reader import SILENT
from support.mirror.copies import (
    HOUR_MS,
    PATIENCE_S,
    assert_same,
    client,
    config_of,
    fill,
    make_topic,
    mirror_all,
)
from support.mirror.kills import MIRROR, SOURCE, TARGET, MirrorKills


@pytest.mark.parametrize("delivery", ["at-least-once", "transactional"])
async def test_a_copy_that_is_stopped_goes_on(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"goes-on-{delivery}"
    await make_topic(source.bootstrap, topic, 3)
    config = config_of(source.bootstrap, target.bootstrap, topic, delivery=delivery, name=topic)
    for first in (0, 600):
        fill(source.bootstrap, topic, range(first, first + 600), partitions=3)
        status = await mirror_all(config)
        assert (status.parked, status.lag, status.counts.records) == ((), 0, 600)
        assert status.deliveries == {topic: (delivery, None)}
    batches = await assert_same(source.bootstrap, target.bootstrap, topic, 1200, 3)
    assert batches >= 60  # unopened


async def test_positions_stand_in_the_transaction_of_their_records(
    source: LiteCluster, target: LiteCluster
) -> None:
    await make_topic(source.bootstrap, "positions", 2)
    fill(source.bootstrap, "positions", range(200), partitions=2)
    config = config_of(
        source.bootstrap, target.bootstrap, "positions", delivery="transactional", name="here"
    )
    await mirror_all(config)
    async with client(target.bootstrap) as one:
        found = await CheckpointTopic(one, "here").read()
    for number in range(2):
        checkpoint = found[TopicPartition("positions", number)]
        assert (checkpoint.source_offset, checkpoint.delivery) == (100, "transactional")
        assert (checkpoint.transactional_id, checkpoint.mirror_epoch) == ("shoal-mirror-here-0", 1)
    with pytest.raises(ConfigError, match="was mirrored with --delivery transactional"):
        await mirror_all(
            config_of(
                source.bootstrap,
                target.bootstrap,
                "positions",
                delivery="at-least-once",
                name="here",
            )
        )


async def test_what_somebody_else_wrote_is_refused_when_a_transactional_mirror_goes_on(
    source: LiteCluster, target: LiteCluster
) -> None:
    await make_topic(source.bootstrap, "foreign")
    fill(source.bootstrap, "foreign", range(100))
    config = config_of(
        source.bootstrap, target.bootstrap, "foreign", delivery="transactional", name="foreign"
    )
    await mirror_all(config)
    fill(target.bootstrap, "foreign", [1])
    with pytest.raises(ConfigError, match="another producer has written to it"):
        await mirror_all(config)


async def test_old_records_are_delivered_by_a_mode_that_is_safe_for_them(
    source: LiteCluster, target: LiteCluster, tmp_path: Path
) -> None:
    now_ms = time.time_ns() // 1_000_000
    for topic, age_h in (("old", 48), ("young", 1)):
        await make_topic(source.bootstrap, topic)
        fill(source.bootstrap, topic, range(100), at_ms=now_ms - age_h * HOUR_MS)
        fill(source.bootstrap, topic, range(100, 200))
    positions = tmp_path / "positions.json"
    config = config_of(source.bootstrap, target.bootstrap, "old", name="old", positions=positions)
    status = await mirror_all(config)
    delivery, why = status.deliveries["old"]
    assert delivery == "compare-and-append"
    assert "records older than the 24 h" in (why or "")
    assert '"delivery": "compare-and-append"' in positions.read_text()
    assert "older than the 24 h" in positions.read_text()
    await assert_same(source.bootstrap, target.bootstrap, "old", 200)
    status = await mirror_all(config)
    assert status.deliveries["old"].delivery == "compare-and-append"
    young = config_of(source.bootstrap, target.bootstrap, "young", name="young")
    assert (await mirror_all(young)).deliveries == {"young": ("idempotent", None)}


@pytest.mark.parametrize("what", ["own-place", "partition-of-another", "place-of-a-worker"])
async def test_what_a_dead_one_left_open_is_not_waited_for(
    source: LiteCluster, target: LiteCluster, what: str
) -> None:
    """Its time would be out in ten minutes."""
    topic = f"left-open-{what}"
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(100))
    config = config_of(
        source.bootstrap, target.bootstrap, topic, delivery="transactional", name=topic
    )
    await mirror_all(config)
    lane = f"shoal-mirror-{topic}-{1 if what == 'place-of-a-worker' else 0}"
    dead = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "transactional.id": lane,
            "transaction.timeout.ms": 600_000,
            **SILENT,
        }
    )
    dead.init_transactions()
    dead.begin_transaction()
    dead.produce(f"__shoal_mirror_{topic}", key=b"{}", value=b"not to be seen")
    assert dead.flush(60) == 0
    route = Route(TopicPartition(topic, 0), TopicPartition(topic, 0))
    worker = 1 if what == "partition-of-another" else 0
    async with (
        client(source.bootstrap) as reads,
        client(target.bootstrap) as writes,
        asyncio.timeout(60),
    ):
        starter = PartitionStarter(reads, writes, replace(config, worker=worker))
        if what == "own-place":
            await starter.load_state()
        elif what == "partition-of-another":
            await starter.load_state([route])
        else:
            await starter.load_state(workers=range(2))
        assert await starter.check([route])
    fill(source.bootstrap, topic, range(100, 150))
    assert (await mirror_all(config)).counts.records == 50


@pytest.mark.long
def test_transactions_survive_kills_of_everything(tmp_path: Path) -> None:
    options = ("--max-bytes-per-s", "60000", "--delivery", "transactional")
    with LiteCluster() as source, LiteCluster(3) as target:
        kills = MirrorKills(source, target, tmp_path, *options)
        outcome = kills.run("transactions", 6_000, [MIRROR, TARGET, MIRROR, SOURCE])
    assert outcome.problems == []
    assert outcome.kills.total() == 4


@pytest.mark.parametrize("delivery", ["idempotent", "transactional", "compare-and-append"])
@pytest.mark.quick("transactional")
async def test_a_copy_begins_where_it_is_told_to(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    now_ms = time.time_ns() // 1_000_000
    topics = {f"{start}-{delivery}": start for start in ("at-time", "late")}
    for topic in topics:
        await make_topic(source.bootstrap, topic)
        # All in one batch: the copy begins inside of it.
        numbers: dict[str, Any] = {
            "at_ms": now_ms - HOUR_MS,
            "linger_ms": 500,
            "batch_num_messages": 1000,
        }
        fill(source.bootstrap, topic, range(100), **numbers)
        fill(source.bootstrap, topic, range(100, 150))
    start = str(now_ms - HOUR_MS // 2)
    topic = f"at-time-{delivery}"
    options = {"delivery": delivery, "name": topic, "start": start}
    status = await mirror_all(config_of(source.bootstrap, target.bootstrap, topic, **options))
    assert status.counts.records == 50
    topic = f"late-{delivery}"
    options = {"delivery": delivery, "name": topic, "start": "latest"}
    config = config_of(source.bootstrap, target.bootstrap, topic, **options)
    assert (await mirror_all(config)).counts.records == 0
    fill(source.bootstrap, topic, range(150, 160))
    assert (await mirror_all(config)).counts.records == 10


async def test_workers_that_take_each_others_partitions_over_all_begin(
    source: LiteCluster, target: LiteCluster
) -> None:
    """Each fences the transactional.id of the other on its way."""
    topic = "swapped"
    for cluster in (source, target):
        await make_topic(cluster.bootstrap, topic, 2)
    config = config_of(
        source.bootstrap, target.bootstrap, topic, delivery="transactional", name=topic
    )
    routes = [Route(tp, tp) for tp in (TopicPartition(topic, 0), TopicPartition(topic, 1))]

    async def begin(worker: int, route: Route) -> None:
        async with client(source.bootstrap) as reads, client(target.bootstrap) as writes:
            starter = PartitionStarter(reads, writes, replace(config, worker=worker))
            await starter.load_state()
            assert list(await starter.begin([route])) == [route]
            starter.transaction_writers.stop()
            await starter.transaction_writers.run()

    for turn in range(5):
        mine, theirs = routes[turn % 2], routes[1 - turn % 2]
        await asyncio.wait_for(asyncio.gather(begin(0, mine), begin(1, theirs)), 60)


async def test_one_that_was_fenced_and_goes_on_before_it_is_replaced_writes_nothing_twice(
    source: LiteCluster, target: LiteCluster
) -> None:
    """It restarts after its successor has read the positions and before the claim."""
    topic = "fenced-and-awake"
    for cluster in (source, target):
        await make_topic(cluster.bootstrap, topic)
    config = config_of(
        source.bootstrap, target.bootstrap, topic, delivery="transactional", name=topic
    )
    route = Route(TopicPartition(topic, 0), TopicPartition(topic, 0))
    async with (
        client(source.bootstrap) as reads,
        client(target.bootstrap) as writes,
        asyncio.timeout(PATIENCE_S),
        asyncio.TaskGroup() as tasks,
    ):
        old, new = (
            Copier(reads, writes, replace(config, worker=worker), is_of_team=True)
            for worker in range(2)
        )

        async def copied(copier: Copier, position: int) -> None:
            while copier.status().positions[route.source] < position:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        fill(source.bootstrap, topic, range(100))
        await old.assign([route])
        tasks.create_task(old.run())
        await copied(old, 100)
        writer = new._starter.transaction_writers._writers[0]
        check, looks = writer._check, 0

        async def goes_on_meanwhile(known: Checkpoints) -> None:
            nonlocal looks
            await check(known)
            looks += 1
            if looks == 1:
                fill(source.bootstrap, topic, range(100, 150))
                await copied(old, 150)

        writer._check = goes_on_meanwhile  # type: ignore[method-assign]
        await new.assign([route])
        tasks.create_task(new.run())
        fill(source.bootstrap, topic, range(150, 200))
        await copied(new, 200)
        old.stop()
        new.stop()
    assert looks > 1
    await assert_same(source.bootstrap, target.bootstrap, topic, 200)
