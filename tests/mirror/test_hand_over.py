"""Old records go to a stock target in large transactions; then idempotent delivery follows."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.client.client import Client
from shoal.client.results import LATEST
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import MirrorConfig, MirrorLimits
from shoal.mirror.copy.delivery.names import IDEMPOTENT, TRANSACTIONAL
from shoal.mirror.offsets.checkpoints import Checkpoints, CheckpointTopic
from shoal.mirror.run import transaction_session
from shoal.mirror.status import MirrorStatus
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.compare_and_append import FEATURE
from support.mirror.copies import HOUR_MS, assert_same, client, config_of, fill, make_topic
from support.mirror.killed_mirror import KILL_AT, STEPS
from support.mirror.leaderless import kill_leader, make_placed
from support.mirror.runs import running

PATIENCE_S = 60.0
OLD, YOUNG = 600, 200
QUICK_STEPS = (
    "batches are in an open transaction",
    "the checkpoint is written",
    "the checkpoint is committed",
    "the first batch is written",
)


async def disable_compare_and_append(cluster: LiteCluster) -> None:
    """From now on it offers what Apache Kafka offers."""
    update = {"feature": FEATURE, "max_version_level": 0, "upgrade_type": 2}
    values = {"timeout": 10_000, "feature_updates": [update], "validate_only": False}
    async with client(cluster.bootstrap) as one:
        response = await one.call(ApiKey.UPDATE_FEATURES, values, at_least=1)
        assert response.error_code == 0, response.error_message


@pytest.fixture(name="stock", scope="module")
def stock_target() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        asyncio.run(disable_compare_and_append(cluster))
        yield cluster


def _old_ms() -> int:
    return time.time_ns() // 1_000_000 - 72 * HOUR_MS


async def _make(source: LiteCluster, stock: LiteCluster, topic: str, partitions: int = 2) -> None:
    for cluster in (source, stock):
        await make_topic(cluster.bootstrap, topic, partitions, retention_ms="-1")


def _deliveries(status: MirrorStatus) -> set[str]:
    return {each.delivery for each in status.partitions}


def _is_handed_over(status: MirrorStatus) -> bool:
    return _deliveries(status) == {IDEMPOTENT} and status.lag == 0


async def _checkpoints(target: Client, name: str) -> Checkpoints:
    """What is decided: a mirror that was killed leaves a transaction open for a minute."""
    topic = CheckpointTopic(target, name)
    await topic.read_decided()
    return topic.found


async def _offsets(bootstrap: str, topic: str, partitions: int = 2) -> int:
    async with client(bootstrap) as one:
        asked = {TopicPartition(topic, number): LATEST for number in range(partitions)}
        return sum(end.offset for end in (await one.list_offsets(asked)).values())


async def test_old_records_take_few_markers_and_nothing_stays_transactional(
    source: LiteCluster, stock: LiteCluster
) -> None:
    topic = "aged"
    await _make(source, stock, topic)
    fill(source.bootstrap, topic, range(OLD), partitions=2, at_ms=_old_ms())
    slow = MirrorLimits(max_bytes_per_s=8000)
    config = config_of(source.bootstrap, stock.bootstrap, topic, name=topic, limits=slow)
    began: list[Any] = []
    async with running(config) as mirror:
        status = await mirror.until(lambda status: TRANSACTIONAL in _deliveries(status))
        began.append(status.deliveries[topic])
        await mirror.until(_is_handed_over)
        assert await _offsets(stock.bootstrap, topic) <= 1.02 * OLD
        fill(source.bootstrap, topic, range(OLD, OLD + YOUNG), partitions=2)
        status = await mirror.until(lambda s: s.counts.records == OLD + YOUNG and s.lag == 0)
    ((delivery, why),) = began
    assert delivery == TRANSACTIONAL
    assert "idempotent once it caught up" in why
    assert (status.parked, _deliveries(status)) == ((), {IDEMPOTENT})
    await assert_same(source.bootstrap, stock.bootstrap, topic, OLD + YOUNG, 2)
    async with client(stock.bootstrap) as one:
        found = await _checkpoints(one, topic)
    assert {(each.delivery, each.transactional_id) for each in found.values()} == {(IDEMPOTENT, "")}
    assert all(each.producer_id >= 0 and each.sequence == YOUNG // 2 for each in found.values())


async def test_a_mirror_that_was_transactional_for_old_records_is_handed_over(
    source: LiteCluster, stock: LiteCluster
) -> None:
    """Its checkpoint may be of a version that left it so, and nothing may be left to copy."""
    topic = "left"
    await _make(source, stock, topic)
    fill(source.bootstrap, topic, range(100), partitions=2, at_ms=_old_ms())
    options = {"name": topic, "delivery": TRANSACTIONAL}
    async with running(config_of(source.bootstrap, stock.bootstrap, topic, **options)) as mirror:
        status = await mirror.until(lambda s: s.counts.records == 100 and s.lag == 0)
        assert _deliveries(status) == {TRANSACTIONAL}
    config = config_of(source.bootstrap, stock.bootstrap, topic, name=topic)
    async with running(config) as mirror:
        await mirror.until(_is_handed_over)
        fill(source.bootstrap, topic, range(100, 200), partitions=2)
        await mirror.until(lambda s: s.counts.records == 100 and s.lag == 0)
    await assert_same(source.bootstrap, stock.bootstrap, topic, 200, 2)


async def test_an_idle_partition_whose_topic_is_throttled_is_handed_over(
    source: LiteCluster, stock: LiteCluster
) -> None:
    """The limit is reached with its only batch, and no later one comes."""
    topic = "reached"
    await _make(source, stock, topic, 1)
    fill(source.bootstrap, topic, range(20), at_ms=_old_ms(), linger_ms=500)
    # After its last batch the topic is closed for hours.
    limits = MirrorLimits(topic_max_bytes_per_s={topic: 1})
    config = config_of(source.bootstrap, stock.bootstrap, topic, name=topic, limits=limits)
    async with running(config) as mirror:
        status = await mirror.until(_is_handed_over)
    assert status.counts.records == 20


async def test_one_partition_alone_fills_large_transactions(
    source: LiteCluster, stock: LiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the open transaction takes no room from what is fetched next."""
    monkeypatch.setattr(transaction_session, "BACKFILL_S", PATIENCE_S)
    topic = "alone"
    await _make(source, stock, topic, 1)
    key = "k" * 10_000
    fill(source.bootstrap, topic, range(OLD), at_ms=_old_ms(), key=lambda _: key, linger_ms=500)
    config = config_of(source.bootstrap, stock.bootstrap, topic, name=topic)
    async with running(config) as mirror:
        await mirror.until(_is_handed_over)
    # 6 MB: of 8 MiB for a transaction, and of more than 1 MiB for a partition.
    assert await _offsets(stock.bootstrap, topic, 1) <= OLD + 2


async def test_a_dead_partition_keeps_no_other_in_transactions() -> None:
    with LiteCluster() as source, LiteCluster(brokers=2, profile="available") as target:
        await disable_compare_and_append(target)
        await make_topic(source.bootstrap, "t", 3, retention_ms="-1")
        await make_placed(target, "t", {0: [1], 1: [2], 2: [1]})
        fill(source.bootstrap, "t", range(OLD), partitions=3, at_ms=_old_ms())
        await kill_leader(target, "t", 1, 2)
        config = config_of(source.bootstrap, target.bootstrap, "t", name="dead")
        async with running(config) as mirror:
            status = await mirror.until(
                lambda s: [each.delivery for each in s.partitions].count(IDEMPOTENT) == 2
            )
            assert [each.position for each in status.partitions if each.delivery] == [200, 200]


@pytest.mark.parametrize(
    "step",
    [s if s in QUICK_STEPS else pytest.param(s, marks=pytest.mark.long) for s in STEPS],
)
async def test_a_kill_at_any_step_loses_nothing_and_repeats_nothing(
    source: LiteCluster, stock: LiteCluster, tmp_path: Path, step: str
) -> None:
    topic = step.replace(" ", "-")
    await _make(source, stock, topic)
    fill(source.bootstrap, topic, range(OLD), partitions=2, at_ms=_old_ms())
    await _run_until_killed(source, stock, topic, step, tmp_path)
    fill(source.bootstrap, topic, range(OLD + YOUNG, OLD + 2 * YOUNG), partitions=2)
    config: MirrorConfig = config_of(source.bootstrap, stock.bootstrap, topic, name=topic)
    async with running(config) as mirror:
        status = await mirror.until(_is_handed_over)
    assert status.parked == ()
    await assert_same(source.bootstrap, stock.bootstrap, topic, OLD + 2 * YOUNG, 2)


async def _run_until_killed(
    source: LiteCluster, stock: LiteCluster, topic: str, step: str, folder: Path
) -> None:
    """Run a mirror that is killed at a step; more records come once it is handed over."""
    command = [sys.executable, "-m", "support.mirror.killed_mirror", "mirror", "run"]
    command += ["--source-bootstrap-server", source.bootstrap, "--topics", topic, "--name", topic]
    command += ["--target-bootstrap-server", stock.bootstrap, "--stop-with-parent"]
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, KILL_AT: step, "PYTHONPATH": tests}
    more = range(OLD, OLD + YOUNG)
    has_more = False
    with (folder / "mirror.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log, env=environment
        )
        try:
            async with asyncio.timeout(PATIENCE_S), client(stock.bootstrap) as one:
                while process.returncode is None:
                    found = await _checkpoints(one, topic)
                    if not has_more and any(c.delivery == IDEMPOTENT for c in found.values()):
                        fill(source.bootstrap, topic, more, partitions=2)
                        has_more = True
                    await asyncio.sleep(0.1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    assert process.returncode == -9, (folder / "mirror.log").read_text()
    if not has_more:
        fill(source.bootstrap, topic, more, partitions=2)
