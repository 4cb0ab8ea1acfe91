"""Replicas of a broker: logs that cannot be opened, recreated topics, and work on many logs."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shoal.lite.base.codes import ApiError
from shoal.lite.base.configs import Layers
from shoal.lite.metadata.data.records import (
    NO_LEADER,
    PartitionRecord,
    Record,
    TopicRecord,
    TopicRemovedRecord,
)
from shoal.lite.metadata.data.requests import ControllerRequest
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.partitions.log_opening import topic_id_in
from shoal.lite.partitions.replicas import Replicas
from shoal.lite.storage.recovery.high_watermarks import HIGH_WATERMARKS
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.model.topics import TopicPartition
from support.lite.batches import append, batch_of, everything_in

FIRST = TopicPartition("t", 0)
LAYERS = Layers(dynamic={}, dynamic_default={}, static={})


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Disable logging: each log that cannot be opened is logged with a traceback."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def submit(_: ControllerRequest[Any]) -> None:
    """A controller that accepts every request."""


def state_of(topic_id: int | None) -> ClusterState:
    """A cluster with that topic, whose only replica is on broker 1, or without topics."""
    state = ClusterState()
    if topic_id is not None:
        state.apply(TopicRecord(UUID(int=topic_id), "t"))
        state.apply(PartitionRecord(UUID(int=topic_id), 0, (1,), (1,), NO_LEADER, 0, 0))
    return state


def open_replicas(folder: Path, state: ClusterState, ended: LastShutdown) -> Replicas:
    replicas = Replicas(1, folder, submit)
    replicas.open(state, LAYERS, ended)
    return replicas


def write(replicas: Replicas, *values: bytes) -> None:
    for value in values:
        append(replicas.partitions[FIRST].log, batch_of(value, timestamp_ms=1))


def obstacle(folder: Path) -> Path:
    """Create a folder that prevents the log from being opened."""
    path = folder / "t-0" / "log-start-offset-checkpoint"
    path.mkdir()
    return path


async def test_a_recreated_topic_has_nothing_of_one_that_could_not_be_opened(
    tmp_path: Path,
) -> None:
    first = open_replicas(tmp_path, state_of(1), LastShutdown.CLEANLY)
    write(first, b"old", b"older")
    await first.close()
    trouble = obstacle(tmp_path)
    second = open_replicas(tmp_path, state_of(1), LastShutdown.CLEANLY)
    assert second.offline.keys() == {FIRST}
    trouble.rmdir()
    second.apply_metadata(state_of(None), LAYERS, [])
    recreated = state_of(2)
    second.apply_metadata(recreated, LAYERS, recreated.partitions())
    write(second, b"new")
    assert everything_in(second.partitions[FIRST].log) == [b"new"]
    await second.close()
    third = open_replicas(tmp_path, recreated, LastShutdown.CLEANLY)
    assert everything_in(third.partitions[FIRST].log) == [b"new"]
    assert third.loss_report() is None
    await third.close()


async def test_a_broker_that_could_not_open_a_log_does_not_vouch_for_it(tmp_path: Path) -> None:
    first = open_replicas(tmp_path, state_of(1), LastShutdown.CLEANLY)
    assert await first.close()
    trouble = obstacle(tmp_path)
    second = open_replicas(tmp_path, state_of(1), LastShutdown.CLEANLY)
    assert not await second.close()
    trouble.rmdir()


async def test_a_reported_loss_is_not_reported_again(tmp_path: Path) -> None:
    first = open_replicas(tmp_path, state_of(1), LastShutdown.CLEANLY)
    write(first, b"a", b"b", b"c")
    await first.close()
    marks = tmp_path / HIGH_WATERMARKS
    marks.write_text("0\n1\nt 0 3\n")
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(b"")
    second = open_replicas(tmp_path, state_of(1), LastShutdown.KILLED)
    assert second.loss_report() is not None
    second.mark_losses_reported()
    # A process that starts after a kill now finds no trace of it.
    assert "t 0 0" in marks.read_text()
    assert not second.partitions[FIRST].log.truncation_marker.is_set
    await second.close()


BIG = 500
NAMESAKE = TopicPartition("again", 0)


def find_changed(state: ClusterState, *records: Record) -> list[PartitionRecord]:
    for record in records:
        state.apply(record)
    return [record for record in records if isinstance(record, PartitionRecord)]


def new_topic(number: int, name: str, partitions: int) -> list[Record]:
    topic_id = UUID(int=number)
    return [
        TopicRecord(topic_id, name),
        *(PartitionRecord(topic_id, i, (1,), (1,), 1, 0, 0) for i in range(partitions)),
    ]


def folders_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


async def wait_until_open(replicas: Replicas, count: int) -> None:
    for _ in range(60_000):
        if len(replicas.partitions) == count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{len(replicas.partitions)} replicas are open, not {count}")


@pytest.mark.parametrize("is_in_one_batch", [True, False])
async def test_a_topic_recreated_while_many_wait_has_nothing_of_the_old_one(
    tmp_path: Path, *, is_in_one_batch: bool
) -> None:
    state = ClusterState()
    find_changed(state, *new_topic(1, "again", 1))
    replicas = open_replicas(tmp_path, state, LastShutdown.CLEANLY)
    old = replicas.partitions[NAMESAKE]
    append(old.log, batch_of(b"old", timestamp_ms=1))
    batches: list[list[Record]] = [
        new_topic(2, "big", BIG),
        [TopicRemovedRecord(UUID(int=1))],
        new_topic(3, "again", 1),
    ]
    if is_in_one_batch:
        batches = [[record for batch in batches for record in batch]]
    for batch in batches:
        replicas.apply_metadata(state, LAYERS, find_changed(state, *batch))
        assert replicas.partitions.get(NAMESAKE) is not old or batch is batches[0]
    assert len(replicas.partitions) < BIG
    # Nothing more is written to the old log, even through references to it.
    with pytest.raises(ApiError):
        append(old.log, batch_of(b"late", timestamp_ms=1))
    with pytest.raises(ApiError):
        old.log.read(0, 1000, upper_offset=1)
    await wait_until_open(replicas, BIG + 1)
    new = replicas.partitions[NAMESAKE]
    assert (new.log.end_offset, new.high_watermark, new.record.topic_id) == (0, 0, UUID(int=3))
    append(new.log, batch_of(b"new", timestamp_ms=1))
    assert everything_in(new.log) == [b"new"]
    replicas.apply_metadata(state, LAYERS, find_changed(state, TopicRemovedRecord(UUID(int=2))))
    assert list(replicas.partitions) == [NAMESAKE]
    await replicas.close()
    # Folders that were not removed by then are removed at the next start.
    after = open_replicas(tmp_path, state, LastShutdown.CLEANLY)
    assert folders_in(tmp_path) == {"again-0"}
    assert everything_in(after.partitions[NAMESAKE].log) == [b"new"]
    await after.close()


def topic_ids(folder: Path) -> dict[str, UUID | None]:
    return {path.name: topic_id_in(path) for path in folder.iterdir() if path.is_dir()}


@pytest.mark.parametrize("partitions", [1, BIG])
async def test_a_topic_recreated_while_a_thread_opens_the_logs_of_the_old_one(
    tmp_path: Path, partitions: int
) -> None:
    state = ClusterState()
    replicas = open_replicas(tmp_path, state, LastShutdown.CLEANLY)
    replicas.apply_metadata(state, LAYERS, find_changed(state, *new_topic(1, "again", BIG)))
    # A thread opens the first logs; the event loop collects them only at the next await.
    for _ in range(2):
        await asyncio.sleep(0)
    records = [TopicRemovedRecord(UUID(int=1)), *new_topic(2, "again", partitions)]
    replicas.apply_metadata(state, LAYERS, find_changed(state, *records))
    await wait_until_open(replicas, partitions)
    assert {p.record.topic_id for p in replicas.partitions.values()} == {UUID(int=2)}
    append(replicas.partitions[NAMESAKE].log, batch_of(b"new", timestamp_ms=1))
    await replicas.close()
    after = open_replicas(tmp_path, state, LastShutdown.CLEANLY)
    names = {f"again-{number}" for number in range(partitions)}
    assert topic_ids(tmp_path) == dict.fromkeys(names, UUID(int=2))
    assert everything_in(after.partitions[NAMESAKE].log) == [b"new"]
    assert after.loss_report() is None
    await after.close()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_broker_ends_while_a_thread_opens_logs(tmp_path: Path, *, is_deleted: bool) -> None:
    state = ClusterState()
    replicas = open_replicas(tmp_path, state, LastShutdown.CLEANLY)
    replicas.apply_metadata(state, LAYERS, find_changed(state, *new_topic(1, "big", BIG)))
    for _ in range(2):
        await asyncio.sleep(0)
    if is_deleted:
        replicas.apply_metadata(state, LAYERS, find_changed(state, TopicRemovedRecord(UUID(int=1))))
    assert await replicas.close()
    assert not replicas.partitions
    after = open_replicas(tmp_path, state, LastShutdown.CLEANLY)
    count = 0 if is_deleted else BIG
    assert (len(after.partitions), len(folders_in(tmp_path))) == (count, count)
    await after.close()


async def test_one_of_many_that_cannot_be_opened_is_offline_alone(tmp_path: Path) -> None:
    state = ClusterState()
    replicas = open_replicas(tmp_path, state, LastShutdown.CLEANLY)
    (tmp_path / "big-7").write_bytes(b"where a folder should be")
    replicas.apply_metadata(state, LAYERS, find_changed(state, *new_topic(1, "big", BIG)))
    await wait_until_open(replicas, BIG - 1)
    assert replicas.offline.keys() == {TopicPartition("big", 7)}
    replicas.apply_metadata(state, LAYERS, find_changed(state, TopicRemovedRecord(UUID(int=1))))
    assert not replicas.offline
    await replicas.close()


async def test_work_on_many_partitions_leaves_turns_for_others(tmp_path: Path) -> None:
    state = ClusterState()
    find_changed(state, *new_topic(1, "again", 1))
    replicas = open_replicas(tmp_path, state, LastShutdown.CLEANLY)
    turns = 0
    replicas.apply_metadata(state, LAYERS, find_changed(state, *new_topic(2, "big", BIG)))
    while len(replicas.partitions) < BIG + 1:
        await asyncio.sleep(0)
        turns += 1
    # To open a log takes a third of a millisecond at the very least.
    assert turns >= 5
    # A new leader of an open replica is applied before the others are opened.
    records = new_topic(3, "bigger", BIG)
    moved = PartitionRecord(UUID(int=1), 0, (1,), (1,), 1, 1, 1)
    replicas.apply_metadata(state, LAYERS, find_changed(state, *records, moved))
    assert replicas.partitions[NAMESAKE].replica.role.leader_epoch == 1
    assert len(replicas.partitions) < 2 * BIG + 1
    await replicas.close()


async def test_one_that_cannot_be_opened_is_forgotten_with_its_topic(tmp_path: Path) -> None:
    first = open_replicas(tmp_path, state_of(1), LastShutdown.CLEANLY)
    write(first, b"old")
    await first.close()
    trouble = obstacle(tmp_path)
    second = open_replicas(tmp_path, state_of(1), LastShutdown.CLEANLY)
    assert second.offline.keys() == {FIRST}
    trouble.rmdir()
    # Deleted and recreated within one change of the metadata.
    recreated = state_of(2)
    second.apply_metadata(recreated, LAYERS, recreated.partitions())
    assert not second.offline
    assert second.partitions[FIRST].high_watermark == 0
    assert everything_in(second.partitions[FIRST].log) == []
    await second.close()
