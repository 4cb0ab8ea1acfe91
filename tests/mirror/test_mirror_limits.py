"""A record above the target's max.message.bytes waits for the settings, and then goes."""

import pytest
from confluent_kafka import Producer

from shoal.client.admin import Resource, ResourceType
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import TopicRules
from shoal.mirror.status import MirrorStatus, PartitionStatus
from support.client.topic_reader import SILENT
from support.mirror.copies import client, config_of, fill, make_topic, values_of
from support.mirror.runs import running

DELIVERIES = ["at-least-once", "idempotent", "transactional", "compare-and-append"]
_LARGE = b"x" * (2 << 20)


async def _raise_limit(cluster: LiteCluster, topic: str) -> None:
    async with client(cluster.bootstrap) as one:
        resource = Resource(ResourceType.TOPIC, topic)
        await one.admin.alter_configs({resource: {"max.message.bytes": str(4 << 20)}})


def _waiting(status: MirrorStatus) -> list[PartitionStatus]:
    return [each for each in status.partitions if each.waits_for_limit]


def _produce_large(cluster: LiteCluster, topic: str) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 4 << 20, **SILENT}
    with Producer(settings) as producer:
        producer.produce(topic, _LARGE, partition=0)
        assert producer.flush(60) == 0


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.quick("idempotent")
async def test_a_limit_that_is_raised_at_the_source_reaches_the_target_before_its_records(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"raised-{delivery}"
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(20))
    # The next look at settings is far away.
    config = config_of(
        source.bootstrap,
        target.bootstrap,
        topic,
        name=topic,
        delivery=delivery,
        rules=TopicRules(sync_configs_s=3600),
    )
    async with running(config) as mirror:
        await mirror.copied(20)
        await _raise_limit(source, topic)
        _produce_large(source, topic)
        fill(source.bootstrap, topic, range(20, 40))
        await mirror.copied(41)
        status = await mirror.until(lambda status: not _waiting(status))
    assert status.lag == 0
    numbers = [f"{number}".encode() for number in range(40)]
    assert values_of(target.bootstrap, topic, 41) == [*numbers[:20], _LARGE, *numbers[20:]]


async def test_a_limit_that_nobody_raises_is_shown_and_others_are_copied(
    source: LiteCluster, target: LiteCluster
) -> None:
    await make_topic(source.bootstrap, "kept-low", max_message_bytes=str(4 << 20))
    await make_topic(source.bootstrap, "beside")
    config = config_of(
        source.bootstrap,
        target.bootstrap,
        "kept-low",
        "beside",
        name="kept-low",
        rules=TopicRules(sync_configs=False),
    )
    await make_topic(target.bootstrap, "kept-low")
    _produce_large(source, "kept-low")
    fill(source.bootstrap, "beside", range(20))
    async with running(config) as mirror:
        status = await mirror.until(lambda status: bool(_waiting(status)))
        await mirror.copied(20)
        (partition,) = _waiting(status)
        assert "MESSAGE_TOO_LARGE" in partition.waiting
        assert "raise max.message.bytes" in partition.remedy
        await _raise_limit(target, "kept-low")
        await mirror.copied(21)
        status = await mirror.until(lambda status: not _waiting(status))
    assert status.parked == ()
