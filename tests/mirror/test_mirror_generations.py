"""Topics that are deleted and created again, or get ids, while a mirror runs or is stopped.

Judged by `shoal.mirror.verify` and by librdkafka, on real brokers.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import KafkaError
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import CopyRules, MirrorConfig, MirrorLimits, TopicRules
from shoal.mirror.offsets.checkpoints import CheckpointTopic
from shoal.mirror.status import MirrorStatus
from shoal.mirror.translation import Translator
from shoal.mirror.verify import verify
from shoal.model.errors import ConfigError
from shoal.model.serialised import to_plain
from shoal.model.topics import TopicPartition
from shoal.wire.records.records import Record, encode_batch
from support.client.topic_reader import read_topic
from support.mirror.copies import client, config_of, fill, make_topic, mirror_all, values_of
from support.mirror.runs import Running, running

ON_STOCK = ["at-least-once", "idempotent", "transactional"]
DELIVERIES = [*ON_STOCK, "compare-and-append"]
RAW_COPY = CopyRules(depth="raw")


def _config(
    source: LiteCluster, target: LiteCluster, topic: str, delivery: str, **options: Any
) -> MirrorConfig:
    rules = TopicRules(refresh_s=options.pop("refresh_s", 0.2))
    return config_of(
        source.bootstrap,
        target.bootstrap,
        options.pop("pattern", topic),
        name=topic,
        delivery=delivery,
        rules=rules,
        **options,
    )


async def _delete(cluster: LiteCluster, topic: str) -> None:
    async with client(cluster.bootstrap) as one:
        await one.admin.delete_topics([topic])


def _numbers(*ranges: Iterable[int]) -> list[bytes]:
    return [str(number).encode() for numbers in ranges for number in numbers]


async def _verify(source: LiteCluster, target: LiteCluster, topic: str) -> Any:
    async with client(source.bootstrap) as one, client(target.bootstrap) as other:
        (report,) = await verify(one, other, [topic])
    return report


def _problems(status: MirrorStatus) -> str:
    return "".join(map(str, status.parked + status.refused))


async def _caught_up(mirror: Running, generation: int, position: int) -> MirrorStatus:
    def is_there(status: MirrorStatus) -> bool:
        return any(
            (each.generation, each.position) == (generation, position) for each in status.partitions
        )

    return await mirror.until(is_there)


@pytest.mark.parametrize("delivery", ON_STOCK)
@pytest.mark.parametrize("matched_by", ["name", "pattern"])
@pytest.mark.parametrize("refreshed", [False, True], ids=["at once", "after a refresh"])
@pytest.mark.quick("after a refresh-pattern-idempotent", "at once-name-transactional")
async def test_a_source_topic_that_is_created_again_is_copied_from_its_start(
    source: LiteCluster, target: LiteCluster, delivery: str, matched_by: str, refreshed: bool
) -> None:
    topic = f"again-{delivery}-{matched_by}-{refreshed}"
    pattern = topic if matched_by == "name" else f"{topic[:-1]}.*"
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(100))
    async with running(_config(source, target, topic, delivery, pattern=pattern)) as mirror:
        await mirror.copied(100)
        await _delete(source, topic)
        if refreshed:
            await mirror.until(lambda status: not status.partitions)
        await make_topic(source.bootstrap, topic)
        fill(source.bootstrap, topic, range(1000, 1150))
        status = await _caught_up(mirror, 2, 150)
    assert _problems(status) == ""
    found = values_of(target.bootstrap, topic, 250)
    assert found == _numbers(range(100), range(1000, 1150))
    (partition,) = status.partitions
    assert "source topic was deleted and created again" in partition.generation_reason
    report = await _verify(source, target, topic)
    assert (report.difference, report.records, report.not_yet) == (None, 150, 0)
    assert report.earlier_generations == partition.generation_target_offset > 0
    await _check_translation(target, topic, partition.generation_target_offset)


async def _check_translation(target: LiteCluster, topic: str, generation_start: int) -> None:
    async with client(target.bootstrap) as one:
        translator = Translator(one, topic)
        await translator.refresh()
        place = translator.translate(TopicPartition(topic, 0), 0)
    assert place.target_offset is not None
    # A transaction's marker may stand before the first record.
    assert 0 <= place.target_offset - generation_start <= 2


@pytest.mark.parametrize("delivery", ON_STOCK)
@pytest.mark.parametrize("is_seen_deleted", [False, True])
@pytest.mark.quick("False-idempotent", "True-transactional")
async def test_what_a_deleted_source_topic_had_and_is_not_copied_is_lost(
    *, source: LiteCluster, target: LiteCluster, delivery: str, is_seen_deleted: bool
) -> None:
    topic, count = f"lagging-{delivery}-{is_seen_deleted}", 600
    limits = MirrorLimits(partition_bytes=300, fetch_bytes=300, max_bytes_per_s=1500, stop_s=0.5)
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(count))
    config = _config(source, target, topic, delivery, limits=limits, copy=RAW_COPY)
    async with running(config) as mirror:
        await mirror.copied(20)
        await _delete(source, topic)
        if is_seen_deleted:
            await mirror.until(lambda status: not status.partitions)
        await make_topic(source.bootstrap, topic)
        fill(source.bootstrap, topic, [1000])
        status = await _caught_up(mirror, 2, 1)
    (partition,) = status.partitions
    found = read_topic(target.bootstrap, topic, partitions=1, count=1).partitions[0]
    copied = len(found) - 1
    assert found[-1].value == b"1000"
    assert 0 < status.counts.lost == count - copied
    assert "the earlier one was copied to its offset" in partition.generation_reason


async def test_what_a_second_process_still_has_of_a_former_topic_is_refused(
    source: LiteCluster, target: LiteCluster
) -> None:
    """Its sequences are those of other records, which would be taken for duplicates."""
    topic, place = "former", TopicPartition("former", 0)
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(100))
    config = _config(source, target, topic, "idempotent")
    await mirror_all(config)
    async with client(target.bootstrap) as one:
        (before,) = (await CheckpointTopic(one, topic).read()).values()
    await _delete(source, topic)
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(1000, 1020))
    await mirror_all(config)
    async with client(target.bootstrap) as one:
        (after,) = (await CheckpointTopic(one, topic).read()).values()
        assert after.identity == before.identity._replace(epoch=before.producer_epoch + 1)
        assert (after.sequence, after.generation) == (20, 2)
        for sequence in (100, 120):
            batch = encode_batch(
                [Record(0, 0, None, b"late")],
                producer_id=before.producer_id,
                producer_epoch=before.producer_epoch,
                base_sequence=sequence,
            )
            result = (await one.produce({place: batch}, acks=-1))[place]
            assert result.error_code == Code.INVALID_PRODUCER_EPOCH
    fill(source.bootstrap, topic, range(1020, 1030))
    await mirror_all(config)
    assert values_of(target.bootstrap, topic, 130) == _numbers(range(100), range(1000, 1030))


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("matched_by", ["name", "pattern"])
@pytest.mark.quick("name-compare-and-append", "pattern-idempotent")
async def test_a_source_topic_created_again_while_the_mirror_was_stopped(
    source: LiteCluster, target: LiteCluster, delivery: str, matched_by: str
) -> None:
    topic = f"stopped-{delivery}-{matched_by}"
    pattern = topic if matched_by == "name" else f"{topic[:-1]}.*"
    config = _config(source, target, topic, delivery, pattern=pattern)
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(100))
    await mirror_all(config)
    await _delete(source, topic)
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(1000, 1150))
    if delivery == "compare-and-append":
        with pytest.raises(ConfigError, match="deleted and created again") as caught:
            await mirror_all(config)
        assert "delete the target topic" in str(caught.value.remedy)
        await _delete(target, topic)
        await mirror_all(config)
        assert values_of(target.bootstrap, topic, 150) == _numbers(range(1000, 1150))
        return
    status = await mirror_all(config)
    assert status.counts.records == 150
    assert values_of(target.bootstrap, topic, 250) == _numbers(range(100), range(1000, 1150))
    # And the next start continues in the new generation.
    fill(source.bootstrap, topic, range(1150, 1200))
    status = await mirror_all(config)
    assert (status.counts.records, status.partitions[0].generation) == (50, 2)
    report = await _verify(source, target, topic)
    assert (report.difference, report.records) == (None, 200)


@pytest.mark.parametrize("matched_by", ["name", "pattern"])
async def test_offsets_that_are_kept_do_not_allow_a_second_generation(
    source: LiteCluster, target: LiteCluster, matched_by: str
) -> None:
    topic = f"kept-{matched_by}"
    pattern = topic if matched_by == "name" else f"{topic[:-1]}.*"
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(100))
    config = _config(source, target, topic, "compare-and-append", pattern=pattern)
    async with running(config) as mirror:
        await mirror.copied(100)
        await _delete(source, topic)
        await make_topic(source.bootstrap, topic)
        fill(source.bootstrap, topic, range(1000, 1150))
        status = await mirror.until(lambda status: "created again" in _problems(status))
        assert all(error.remedy for error in status.parked + status.refused)
        assert values_of(target.bootstrap, topic, 100) == _numbers(range(100))
        # The remedy is taken up without a restart.
        await _delete(target, topic)
        await mirror.until(lambda status: status.positions == {TopicPartition(topic, 0): 150})
    assert values_of(target.bootstrap, topic, 150) == _numbers(range(1000, 1150))


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("created_by", ["the mirror", "a user"])
@pytest.mark.quick("the mirror-transactional", "a user-idempotent")
async def test_a_target_topic_that_is_deleted_is_filled_again(
    source: LiteCluster, target: LiteCluster, delivery: str, created_by: str
) -> None:
    topic = f"emptied-{delivery}-{created_by.split()[1]}"
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(100))
    config = _config(source, target, topic, delivery)
    async with running(config) as mirror:
        await mirror.copied(100)
        await _delete(target, topic)
        if created_by == "a user":
            with contextlib.suppress(KafkaError):  # the mirror may have been faster
                await make_topic(target.bootstrap, topic)
        fill(source.bootstrap, topic, range(100, 150))
        status = await _caught_up(mirror, 2, 150)
        assert "target's topic was deleted" in status.partitions[0].generation_reason
    report = await _verify(source, target, topic)
    assert (report.difference, report.records, report.not_yet) == (None, 150, 0)
    # A batch that was on its way when the topic was created again does not stay.
    assert values_of(target.bootstrap, topic, 150) == _numbers(range(150))
    # Its own topic is not refused.
    fill(source.bootstrap, topic, range(150, 180))
    status = await mirror_all(config)
    assert status.counts.records == 30
    report = await _verify(source, target, topic)
    assert (report.difference, report.records) == (None, 180)


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_a_target_topic_that_is_deleted_while_nothing_is_copied_is_noticed(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"idle-{delivery}"
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(60))
    async with running(_config(source, target, topic, delivery)) as mirror:
        await mirror.copied(60)
        await _delete(target, topic)
        await _caught_up(mirror, 2, 60)
    assert values_of(target.bootstrap, topic, 60) == _numbers(range(60))


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.quick("idempotent")
async def test_a_target_topic_created_again_while_stopped_is_filled_from_where_the_copy_began(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"began-{delivery}"
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(40))
    config = _config(source, target, topic, delivery, start="latest")
    async with running(config) as mirror:
        await mirror.until(lambda status: bool(status.positions))
        fill(source.bootstrap, topic, range(40, 90))
        await mirror.copied(50)
    await _delete(target, topic)
    fill(source.bootstrap, topic, range(90, 100))
    status = await mirror_all(config)
    assert status.counts.records == 60
    assert values_of(target.bootstrap, topic, 60) == _numbers(range(40, 100))


async def test_a_target_topic_that_somebody_else_filled_is_refused_not_added_to(
    source: LiteCluster, target: LiteCluster
) -> None:
    await make_topic(source.bootstrap, "foreign")
    fill(source.bootstrap, "foreign", range(50))
    async with running(_config(source, target, "foreign", "idempotent")) as mirror:
        await mirror.copied(50)
        await _delete(target, "foreign")
        await make_topic(target.bootstrap, "foreign")
        fill(target.bootstrap, "foreign", range(5000, 5020))
        status = await mirror.until(lambda status: bool(status.refused))
    assert "is not empty" in _problems(status)
    assert values_of(target.bootstrap, "foreign", 20) == _numbers(range(5000, 5020))


async def _without_ids(target: LiteCluster, name: str, *, offset_shift: int = 0) -> None:
    """The checkpoints of a mirror whose clusters had no topic ids yet."""
    async with client(target.bootstrap) as one:
        topic = CheckpointTopic(one, name)
        found = await topic.read()
        await topic.write(
            {
                tp: replace(
                    each,
                    source_topic_id=None,
                    target_topic_id=None,
                    source_offset=each.source_offset + offset_shift,
                )
                for tp, each in found.items()
            }
        )


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.quick("at-least-once")
async def test_topic_ids_that_appear_are_adopted(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"upgraded-{delivery}"
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(100))
    config = _config(source, target, topic, delivery)
    await mirror_all(config)
    await _without_ids(target, topic)
    fill(source.bootstrap, topic, range(100, 150))
    status = await mirror_all(config)
    assert (status.counts.records, status.partitions[0].generation) == (50, 1)
    assert values_of(target.bootstrap, topic, 150) == _numbers(range(150))
    async with client(target.bootstrap) as one:
        found = await CheckpointTopic(one, topic).read()
        ids = [(each.source_topic_id, each.target_topic_id) for each in found.values()]
    assert all(all(pair) for pair in ids)


async def test_ids_that_appear_on_a_shorter_source_are_not_adopted(
    source: LiteCluster, target: LiteCluster
) -> None:
    await make_topic(source.bootstrap, "shorter")
    fill(source.bootstrap, "shorter", range(100))
    config = _config(source, target, "shorter", "at-least-once")
    await mirror_all(config)
    await _without_ids(target, "shorter", offset_shift=500)
    with pytest.raises(
        ConfigError, match="ends at offset 100, below the copied offset 600"
    ) as caught:
        await mirror_all(config)
    assert caught.value.remedy


async def test_verify_says_that_a_new_generation_is_not_copied_yet(
    source: LiteCluster, target: LiteCluster
) -> None:
    await make_topic(source.bootstrap, "unseen")
    fill(source.bootstrap, "unseen", range(30))
    await mirror_all(_config(source, target, "unseen", "idempotent"))
    await _delete(source, "unseen")
    await make_topic(source.bootstrap, "unseen")
    fill(source.bootstrap, "unseen", range(30))
    report = await _verify(source, target, "unseen")
    assert report.difference is not None
    assert "created again" in report.difference.what


async def test_checkpoints_of_format_1_are_read(source: LiteCluster, target: LiteCluster) -> None:
    await make_topic(source.bootstrap, "old-format")
    fill(source.bootstrap, "old-format", range(50))
    config = _config(source, target, "old-format", "idempotent")
    await mirror_all(config)
    async with client(target.bootstrap) as one:
        await _write_as_format_1(one, "old-format")
    fill(source.bootstrap, "old-format", range(50, 70))
    assert (await mirror_all(config)).counts.records == 20
    assert values_of(target.bootstrap, "old-format", 70) == _numbers(range(70))


async def _write_as_format_1(target: Client, name: str) -> None:
    """As the version before wrote them."""
    topic = CheckpointTopic(target, name)
    new = ("generation", "generation_reason", "generation_target_offset", "began_at")
    records = []
    for tp, each in (await topic.read()).items():
        body = {"format": 1, **{k: v for k, v in to_plain(each).items() if k not in new}}
        key = json.dumps({"topic": tp.topic, "partition": tp.partition}).encode()
        records.append(Record(0, 0, key, json.dumps(body).encode()))
    result = await target.produce({topic.partition: encode_batch(records)}, acks=-1)
    assert all(each.is_ok for each in result.values())
