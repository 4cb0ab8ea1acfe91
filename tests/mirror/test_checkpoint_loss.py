"""A checkpoint topic that is deleted under a running mirror is written again from memory."""

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.mirror.offsets.checkpoints import PREFIX, CheckpointTopic
from shoal.mirror.translation import Translator
from shoal.mirror.watch import checkpoint_loss
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from support.mirror.copies import client, config_of, fill, make_topic, mirror_all, values_of
from support.mirror.runs import running

DELIVERIES = ["at-least-once", "idempotent", "transactional", "compare-and-append"]


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_loss, "LOOK_EVERY_S", 0.1)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.quick("idempotent")
async def test_a_checkpoint_topic_that_is_deleted_is_written_again(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"forgotten-{delivery}"
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(100))
    config = config_of(source.bootstrap, target.bootstrap, topic, name=topic, delivery=delivery)
    async with running(config) as mirror:
        await mirror.copied(100)
        async with client(target.bootstrap) as one:
            await one.admin.delete_topics([PREFIX + topic])
        # Nothing is copied meanwhile: it is noticed nevertheless.
        status = await mirror.until(lambda status: bool(status.notices))
        assert f"{PREFIX}{topic} was deleted; 1 checkpoints were written again" in status.notices[0]
        fill(source.bootstrap, topic, range(100, 150))
        await mirror.copied(150)
    fill(source.bootstrap, topic, range(150, 180))
    status = await mirror_all(config)
    assert (status.counts.records, status.parked, status.refused) == (30, (), ())
    assert values_of(target.bootstrap, topic, 180) == [f"{n}".encode() for n in range(180)]
    async with client(target.bootstrap) as one:
        translator = Translator(one, topic)
        await translator.refresh()
        place = translator.translate(TopicPartition(topic, 0), 42)
        # The map of what was copied before the loss is whole; a marker may stand before.
        assert place.target_offset is not None
        assert 42 <= place.target_offset <= (44 if delivery == "transactional" else 42)


async def test_a_checkpoint_topic_deleted_while_the_mirror_was_stopped_refuses_the_start(
    source: LiteCluster, target: LiteCluster
) -> None:
    await make_topic(source.bootstrap, "unknown")
    fill(source.bootstrap, "unknown", range(30))
    config = config_of(source.bootstrap, target.bootstrap, "unknown", name="unknown")
    await mirror_all(config)
    async with client(target.bootstrap) as one:
        await one.admin.delete_topics([f"{PREFIX}unknown"])
    with pytest.raises(ConfigError, match="is not empty") as caught:
        await mirror_all(config)
    assert "delete the target topic" in str(caught.value.remedy)


async def test_a_topic_that_was_never_written_is_not_lost(target: LiteCluster) -> None:
    partition = TopicPartition("t", 0)
    async with client(target.bootstrap) as one:
        topic = CheckpointTopic(one, "unused")
        # As a mirror that copies no partition yet does each second.
        await topic.write({}, {partition: {}})
        assert not await topic.is_lost()
        await topic.create_if_missing()
        await topic.write({}, {partition: {0: b"block"}})
        await one.admin.delete_topics([f"{PREFIX}unused"])
        assert await topic.is_lost()
