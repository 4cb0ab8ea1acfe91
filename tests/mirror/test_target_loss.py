"""A target that has lost records which it acknowledged: parked or refused, also after a restart."""

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Producer

from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import MirrorConfig, MirrorLimits, TopicRules
from shoal.mirror.copy.throttle import Throttle
from shoal.mirror.offsets.checkpoints import Checkpoint, CheckpointTopic
from shoal.mirror.run import resume
from shoal.mirror.run.resume import StartFinder
from shoal.mirror.run.transaction_session import TransactionWriter
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import iter_batches
from support.client.topic_reader import SILENT
from support.mirror.copies import config_of, fill, make_topic, mirror_all, values_of
from support.mirror.runs import client, make, running

DELIVERIES = ["at-least-once", "idempotent", "transactional", "compare-and-append"]


@pytest.fixture(autouse=True)
def settle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas of one broker need no time to agree."""
    monkeypatch.setattr(resume, "SETTLE_S", 3.0)


def cut_half(cluster_folder: Path, topic: str) -> None:
    """Take the second half of a log away, as a failed disk would."""
    (file,) = cluster_folder.glob(f"*/{topic}-0/{0:020}.log")
    batches = list(iter_batches(memoryview(bytearray(file.read_bytes()))))
    with file.open("r+b") as log:
        log.truncate(sum(batch.size for batch in batches[: len(batches) // 2]))


def _config(source: LiteCluster, target: LiteCluster, topic: str, delivery: str) -> MirrorConfig:
    # The good topic keeps the mirror running.
    return config_of(
        source.bootstrap,
        target.bootstrap,
        *(topic, f"{topic}-good"),
        name=topic,
        delivery=delivery,
        rules=TopicRules(refresh_s=0.5),
    )


async def _prepare(source: LiteCluster, topic: str) -> None:
    for name in (topic, f"{topic}-good"):
        await make_topic(source.bootstrap, name)
        fill(source.bootstrap, name, range(100), batch_num_messages=10)


async def _check_refused(config: MirrorConfig) -> None:
    async with running(config) as mirror:
        status = await mirror.until(lambda status: bool(status.refused))
    assert "lost records" in str(status.refused[0]) or "are lost" in str(status.refused[0])
    assert status.refused[0].remedy


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.quick("compare-and-append")
async def test_records_lost_while_the_mirror_was_stopped_refuse_its_start(
    tmp_path: Path, delivery: str
) -> None:
    with LiteCluster() as source:
        await _prepare(source, "t")
        with LiteCluster(directory=tmp_path) as target:
            status = await mirror_all(_config(source, target, "t", delivery))
            assert status.counts.records == 200
        cut_half(tmp_path, "t")
        fill(source.bootstrap, "t", range(100, 200))
        with LiteCluster(directory=tmp_path) as target:
            # Nothing is written behind the hole, at the first start or the second.
            for _ in range(2):
                await _check_refused(_config(source, target, "t", delivery))
            assert len(values_of(target.bootstrap, "t", 0)) < 100


@pytest.mark.parametrize("delivery", ["at-least-once", "idempotent"])
@pytest.mark.quick("at-least-once")
async def test_a_loss_that_a_running_mirror_met_outlives_its_restart(
    tmp_path: Path, delivery: str
) -> None:
    with LiteCluster() as source, LiteCluster(directory=tmp_path) as target:
        await _prepare(source, "t")
        config = _config(source, target, "t", delivery)
        async with running(config) as mirror:
            await mirror.copied(200)
            await asyncio.to_thread(target.kill, 1)
            cut_half(tmp_path, "t")
            await asyncio.to_thread(target.restart, 1)
            # One batch that is longer than what was lost: the end alone does not tell.
            fill(source.bootstrap, "t", range(100, 400), batch_num_messages=500, linger_ms=200)
            status = await mirror.until(lambda status: bool(status.parked))
        assert "lost records" in str(status.parked[0]) or "no longer has" in str(status.parked[0])
        await _check_refused(config)


@pytest.mark.parametrize("delivery", ["at-least-once", "idempotent"])
async def test_records_of_somebody_else_are_counted(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"shared-{delivery}"
    await _prepare(source, topic)
    async with running(_config(source, target, topic, delivery)) as mirror:
        await mirror.copied(200)
        fill(target.bootstrap, topic, [999])
        fill(source.bootstrap, topic, range(100, 200))
        status = await mirror.copied(300)
    assert status.counts.displaced == 1
    assert status.parked == ()


async def _find_reason(config: MirrorConfig) -> str:
    """Why the topic is parked or refused, once it is."""
    async with running(config) as mirror:
        status = await mirror.until(lambda status: bool(status.refused or status.parked))
    (reason,) = [*status.refused, *status.parked]
    assert reason.remedy
    return str(reason)


@pytest.mark.parametrize(
    ("delivery", "batch_num_messages"),
    [
        ("idempotent", 100),
        ("transactional", 100),
        ("compare-and-append", 100),
        ("compare-and-append", 10),
    ],
)
@pytest.mark.quick("transactional-100", "compare-and-append-10")
async def test_records_of_somebody_else_in_the_place_of_the_source_s_are_never_silent(
    source: LiteCluster, target: LiteCluster, delivery: str, batch_num_messages: int
) -> None:
    topic = f"foreign-{delivery}-{batch_num_messages}"
    await _prepare(source, topic)
    config = _config(source, target, topic, delivery)
    await mirror_all(config)
    fill(target.bootstrap, topic, range(900, 920), batch_num_messages=batch_num_messages)
    fill(source.bootstrap, topic, range(100, 120))
    for _ in range(2):
        assert "another producer" in await _find_reason(config)
    fill(source.bootstrap, topic, range(120, 150))
    assert "another producer" in await _find_reason(config)


async def test_at_least_once_announces_what_it_cannot_tell_from_its_own_records(
    source: LiteCluster, target: LiteCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await _prepare(source, "unclear")
    config = _config(source, target, "unclear", "at-least-once")
    await mirror_all(config)
    await mirror_all(config)
    assert "after the checkpoint" not in caplog.text
    fill(target.bootstrap, "unclear", range(900, 920))
    await mirror_all(config)
    assert "unclear-0 has 20 offsets after the checkpoint" in caplog.text


async def test_records_of_somebody_else_are_found_when_the_source_gets_so_far(
    source: LiteCluster, target: LiteCluster
) -> None:
    await _prepare(source, "early")
    config = _config(source, target, "early", "compare-and-append")
    await mirror_all(config)
    fill(target.bootstrap, "early", range(900, 920))
    async with running(config) as mirror:
        fill(source.bootstrap, "early-good", [100])
        await mirror.copied(1)
    fill(source.bootstrap, "early", range(100, 110))
    assert "another producer" in await _find_reason(config)


async def test_a_partition_that_met_somebody_else_stays_parked_after_a_restart(
    source: LiteCluster, target: LiteCluster
) -> None:
    await _prepare(source, "met")
    config = _config(source, target, "met", "compare-and-append")
    async with running(config) as mirror:
        await mirror.copied(200)
        fill(target.bootstrap, "met", range(900, 920))
        fill(source.bootstrap, "met", range(100, 120))
        await mirror.until(lambda status: bool(status.parked))
    for _ in range(2):
        assert "another producer" in await _find_reason(config)


async def test_aborted_records_in_the_place_of_committed_ones_are_a_loss(
    target: LiteCluster,
) -> None:
    await make(target.bootstrap, "aborted")
    settings = {"bootstrap.servers": target.bootstrap, "transactional.id": "a", **SILENT}
    with Producer(settings) as producer:
        producer.init_transactions(30)
        for number in range(2):
            producer.begin_transaction()
            for _ in range(20):
                producer.produce("aborted", b"value", partition=0)
            assert producer.flush(30) == 0
            if number:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
    tp = TopicPartition("aborted", 0)
    async with client(target.bootstrap) as connected:
        await connected.metadata(["aborted"])
        topic = CheckpointTopic(connected, "aborted")
        writer = TransactionWriter(
            connected,
            topic,
            StartFinder(connected, connected, {}),
            limits=MirrorLimits(),
            throttle=Throttle(0),
        )
        # Committed up to 20, and aborted from 21 to 40.
        assert await writer._find_mismatch(tp, _checkpoint(20)) is None
        assert "are lost" in (await writer._find_mismatch(tp, _checkpoint(31)) or "")
        assert "are lost" in (await writer._find_mismatch(tp, _checkpoint(41)) or "")


def _checkpoint(target_offset: int) -> Checkpoint:
    return Checkpoint("cluster", None, None, "transactional", target_offset, target_offset)


async def test_a_refused_start_names_the_partition(target: LiteCluster) -> None:
    await make(target.bootstrap, "short")
    tp = TopicPartition("short", 0)
    async with client(target.bootstrap) as connected:
        await connected.metadata(["short"])
        found = StartFinder(connected, connected, {})
        with pytest.raises(ConfigError, match="short-0 is not as this mirror left it"):
            await found.await_written(tp, _checkpoint(5))
        await found.await_written(tp, _checkpoint(0))


@pytest.mark.parametrize("delivery", ["at-least-once", "idempotent", "transactional"])
@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.quick("True-transactional", "False-at-least-once")
async def test_records_of_another_producer_before_the_first_batch_are_counted(
    source: LiteCluster, target: LiteCluster, delivery: str, *, is_resumed: bool
) -> None:
    topic = f"before-{delivery}-{is_resumed}"
    for name in (topic, f"{topic}-good"):
        await make_topic(source.bootstrap, name)
    config = _config(source, target, topic, delivery)
    if is_resumed:
        fill(source.bootstrap, topic, range(100))
        await mirror_all(config)
    async with running(config) as mirror:
        # The good topic tells that the mirror has looked at both and copies.
        fill(source.bootstrap, f"{topic}-good", range(10))
        await mirror.copied(10)
        fill(target.bootstrap, topic, range(900, 920))
        fill(source.bootstrap, topic, range(100, 200))
        await mirror.copied(110)
        status = await mirror.until(lambda status: bool(status.counts.displaced))
    assert status.counts.displaced == 1
    assert status.parked == ()
