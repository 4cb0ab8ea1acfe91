"""Partitions and topics that came into being while a mirror was stopped: copied from their start.

Also with `--start latest`, which is the time at which the mirror first started.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import MirrorConfig
from shoal.mirror.offsets.checkpoints import Checkpoint
from shoal.mirror.routes import Route
from shoal.mirror.run.start_position import EarlierCopies, choose_start
from shoal.model.topics import TopicPartition
from support.mirror.copies import client, config_of, fill, make_topic, mirror_all, values_of

ON_STOCK = ["at-least-once", "idempotent", "transactional"]
DELIVERIES = [*ON_STOCK, "compare-and-append"]


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[LiteCluster, LiteCluster]]:
    with LiteCluster() as source, LiteCluster() as target:
        yield source, target


def _config(
    clusters: tuple[LiteCluster, LiteCluster], topics: str, name: str, **options: Any
) -> MirrorConfig:
    source, target = (each.bootstrap for each in clusters)
    return config_of(source, target, topics, name=name, start="latest", **options)


def _numbers(*numbers: int) -> list[bytes]:
    return [str(number).encode() for number in range(*numbers)]


async def _prepare(clusters: tuple[LiteCluster, LiteCluster], topic: str, **options: Any) -> None:
    """A mirror that was told `latest`, has copied five records of one partition, and is stopped."""
    source = clusters[0].bootstrap
    await make_topic(source, topic)
    fill(source, topic, range(10))
    config = _config(clusters, topic, topic, **options)
    await mirror_all(config)
    fill(source, topic, range(10, 15))
    await mirror_all(config)
    assert values_of(clusters[1].bootstrap, topic, 5) == _numbers(10, 15)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.quick("idempotent")
async def test_a_partition_that_was_added_while_the_mirror_was_stopped(
    clusters: tuple[LiteCluster, LiteCluster], delivery: str
) -> None:
    topic = f"grown-{delivery}"
    await _prepare(clusters, topic, delivery=delivery)
    async with client(clusters[0].bootstrap) as one:
        await one.admin.create_partitions({topic: 2})
    fill(clusters[0].bootstrap, topic, range(1, 60, 2), partitions=2)
    await mirror_all(_config(clusters, topic, topic, delivery=delivery))
    assert values_of(clusters[1].bootstrap, topic, 35, 1) == _numbers(1, 60, 2)


@pytest.mark.parametrize("delivery", ON_STOCK)
@pytest.mark.quick("transactional")
async def test_a_topic_that_was_created_again_with_more_partitions(
    clusters: tuple[LiteCluster, LiteCluster], delivery: str
) -> None:
    topic = f"again-{delivery}"
    await _prepare(clusters, topic, delivery=delivery)
    async with client(clusters[0].bootstrap) as one:
        await one.admin.delete_topics([topic])
    await make_topic(clusters[0].bootstrap, topic, partitions=2)
    fill(clusters[0].bootstrap, topic, range(80), partitions=2)
    await mirror_all(_config(clusters, topic, topic, delivery=delivery))
    assert values_of(clusters[1].bootstrap, topic, 85, 1) == _numbers(1, 80, 2)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.quick("compare-and-append")
async def test_a_topic_that_was_created_while_the_mirror_was_stopped(
    clusters: tuple[LiteCluster, LiteCluster], delivery: str
) -> None:
    name = f"new-{delivery}"
    await make_topic(clusters[0].bootstrap, f"{name}-a")
    fill(clusters[0].bootstrap, f"{name}-a", range(10))
    config = _config(clusters, f"{name}-.*", name, delivery=delivery)
    await mirror_all(config)
    await make_topic(clusters[0].bootstrap, f"{name}-b")
    fill(clusters[0].bootstrap, f"{name}-b", range(20))
    await mirror_all(config)
    assert values_of(clusters[1].bootstrap, f"{name}-b", 20) == _numbers(20)
    assert values_of(clusters[1].bootstrap, f"{name}-a", 0) == []


def _make_checkpoint(topic_id: str | None = "i", **fields: Any) -> Checkpoint:
    ids = ("s", topic_id, "j")
    return Checkpoint(*ids, "idempotent", 5, 5, **{"mirror_began_ms": 700, **fields})


STARTS = {
    "the first start": ({}, 0, "latest"),
    "added to the topic": ({0: _make_checkpoint(source_partitions=1)}, 1, "earliest"),
    "not started yet before": ({0: _make_checkpoint(source_partitions=2)}, 1, "700"),
    "of a topic that was created again": (
        {0: _make_checkpoint("h", source_partitions=2)},
        1,
        "earliest",
    ),
    "a checkpoint of an older version": ({0: _make_checkpoint(mirror_began_ms=0)}, 1, "earliest"),
}


@pytest.mark.parametrize(("found", "partition", "expected"), STARTS.values(), ids=list(STARTS))
def test_where_a_partition_without_a_checkpoint_begins(
    found: dict[int, Checkpoint], partition: int, expected: str
) -> None:
    route = Route(TopicPartition("a", partition), TopicPartition("b", partition))
    checkpoints = {TopicPartition("b", number): each for number, each in found.items()}
    assert choose_start(route, "latest", EarlierCopies.of(checkpoints), "i") == expected


def test_where_a_topic_without_a_checkpoint_begins() -> None:
    route = Route(TopicPartition("a", 0), TopicPartition("a", 0))
    others = {
        TopicPartition("x", 0): _make_checkpoint(),
        TopicPartition("x", 1): _make_checkpoint(mirror_began_ms=600),
    }
    assert choose_start(route, "latest", EarlierCopies.of(others), "i") == "600"
    assert choose_start(route, "2026-01-31", EarlierCopies.of(others), "i") == "2026-01-31"
    old = {**others, TopicPartition("y", 0): _make_checkpoint(mirror_began_ms=0)}
    assert choose_start(route, "latest", EarlierCopies.of(old), "i") == "latest"
