"""Logs of a broker that cannot be opened for a while, and what becomes of them."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shoal.lite.base.codes import Refused
from shoal.lite.base.configs import Layers
from shoal.lite.metadata.data.records import (
    NO_LEADER,
    PartitionRecord,
    Record,
    TopicRecord,
    TopicRemovedRecord,
)
from shoal.lite.metadata.data.requests import Request
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.partitions.log_opening import topic_id_in
from shoal.lite.partitions.replicas import Replicas
from shoal.lite.storage.recovery.high_watermarks import HIGH_WATERMARKS
from shoal.lite.storage.recovery.last_shutdown import Ended
from shoal.model.topics import TopicPartition
from support.lite_batches import append, batch_of, everything_in

FIRST = TopicPartition("t", 0)
LAYERS = Layers(dynamic={}, dynamic_default={}, static={})


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What cannot be opened is told at length."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def submit(_: Request[Any]) -> None:
    """A controller that takes note of everything."""


def state_of(topic_id: int | None) -> ClusterState:
    """A cluster with that topic, of which broker 1 has the only replica, or with none."""
    state = ClusterState()
    if topic_id is not None:
        state.apply(TopicRecord(UUID(int=topic_id), "t"))
        state.apply(PartitionRecord(UUID(int=topic_id), 0, (1,), (1,), NO_LEADER, 0, 0))
    return state


def opened(folder: Path, state: ClusterState, ended: Ended) -> Replicas:
    replicas = Replicas(1, folder, submit)
    replicas.open(state, LAYERS, ended)
    return replicas


def write(replicas: Replicas, *values: bytes) -> None:
    for value in values:
        append(replicas.partitions[FIRST].log, batch_of(value, timestamp_ms=1))


def obstacle(folder: Path) -> Path:
    """Keeps the log from being opened for as long as it is there."""
    path = folder / "t-0" / "log-start-offset-checkpoint"
    path.mkdir()
    return path


async def test_a_topic_made_anew_has_nothing_of_one_that_could_not_be_opened(
    tmp_path: Path,
) -> None:
    first = opened(tmp_path, state_of(1), Ended.CLEANLY)
    write(first, b"old", b"older")
    await first.close()
    trouble = obstacle(tmp_path)
    second = opened(tmp_path, state_of(1), Ended.CLEANLY)
    assert second.offline.keys() == {FIRST}
    trouble.rmdir()
    second.follow(state_of(None), LAYERS, [])
    made_anew = state_of(2)
    second.follow(made_anew, LAYERS, made_anew.partitions())
    write(second, b"new")
    assert everything_in(second.partitions[FIRST].log) == [b"new"]
    await second.close()
    third = opened(tmp_path, made_anew, Ended.CLEANLY)
    assert everything_in(third.partitions[FIRST].log) == [b"new"]
    assert third.losses() is None
    await third.close()


async def test_who_could_not_open_a_log_does_not_vouch_for_it(tmp_path: Path) -> None:
    first = opened(tmp_path, state_of(1), Ended.CLEANLY)
    assert await first.close()
    trouble = obstacle(tmp_path)
    second = opened(tmp_path, state_of(1), Ended.CLEANLY)
    assert not await second.close()
    trouble.rmdir()


async def test_a_loss_that_was_told_is_not_told_again(tmp_path: Path) -> None:
    first = opened(tmp_path, state_of(1), Ended.CLEANLY)
    write(first, b"a", b"b", b"c")
    await first.close()
    marks = tmp_path / HIGH_WATERMARKS
    marks.write_text("0\n1\nt 0 3\n")
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(b"")
    second = opened(tmp_path, state_of(1), Ended.KILLED)
    assert second.losses() is not None
    second.losses_told()
    # Whoever comes after a kill now finds no trace of it.
    assert "t 0 0" in marks.read_text()
    assert not second.partitions[FIRST].log.cut_mark.is_set
    await second.close()


BIG = 500
NAMESAKE = TopicPartition("again", 0)


def changed_by(state: ClusterState, *records: Record) -> list[PartitionRecord]:
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


async def drained(replicas: Replicas, count: int) -> None:
    for _ in range(60_000):
        if len(replicas.partitions) == count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{len(replicas.partitions)} replicas are open, not {count}")


@pytest.mark.parametrize("is_in_one_batch", [True, False])
async def test_a_topic_made_anew_while_many_wait_has_nothing_of_the_old_one(
    tmp_path: Path, *, is_in_one_batch: bool
) -> None:
    state = ClusterState()
    changed_by(state, *new_topic(1, "again", 1))
    replicas = opened(tmp_path, state, Ended.CLEANLY)
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
        replicas.follow(state, LAYERS, changed_by(state, *batch))
        assert replicas.partitions.get(NAMESAKE) is not old or batch is batches[0]
    assert len(replicas.partitions) < BIG
    # Nothing is written to the old log from now on, by whoever still holds it.
    with pytest.raises(Refused):
        append(old.log, batch_of(b"late", timestamp_ms=1))
    with pytest.raises(Refused):
        old.log.read(0, 1000, upper_offset=1)
    await drained(replicas, BIG + 1)
    new = replicas.partitions[NAMESAKE]
    assert (new.log.end_offset, new.high_watermark, new.record.topic_id) == (0, 0, UUID(int=3))
    append(new.log, batch_of(b"new", timestamp_ms=1))
    assert everything_in(new.log) == [b"new"]
    replicas.follow(state, LAYERS, changed_by(state, TopicRemovedRecord(UUID(int=2))))
    assert list(replicas.partitions) == [NAMESAKE]
    await replicas.close()
    # What was not removed by then goes at the next start.
    after = opened(tmp_path, state, Ended.CLEANLY)
    assert folders_in(tmp_path) == {"again-0"}
    assert everything_in(after.partitions[NAMESAKE].log) == [b"new"]
    await after.close()


def topic_ids(folder: Path) -> dict[str, UUID | None]:
    return {path.name: topic_id_in(path) for path in folder.iterdir() if path.is_dir()}


@pytest.mark.parametrize("partitions", [1, BIG])
async def test_a_topic_made_anew_while_a_thread_opens_the_logs_of_the_old_one(
    tmp_path: Path, partitions: int
) -> None:
    state = ClusterState()
    replicas = opened(tmp_path, state, Ended.CLEANLY)
    replicas.follow(state, LAYERS, changed_by(state, *new_topic(1, "again", BIG)))
    # The first logs are given to a thread; who takes them from it has no turn before the next wait.
    for _ in range(2):
        await asyncio.sleep(0)
    records = [TopicRemovedRecord(UUID(int=1)), *new_topic(2, "again", partitions)]
    replicas.follow(state, LAYERS, changed_by(state, *records))
    await drained(replicas, partitions)
    assert {p.record.topic_id for p in replicas.partitions.values()} == {UUID(int=2)}
    append(replicas.partitions[NAMESAKE].log, batch_of(b"new", timestamp_ms=1))
    await replicas.close()
    after = opened(tmp_path, state, Ended.CLEANLY)
    names = {f"again-{number}" for number in range(partitions)}
    assert topic_ids(tmp_path) == dict.fromkeys(names, UUID(int=2))
    assert everything_in(after.partitions[NAMESAKE].log) == [b"new"]
    assert after.losses() is None
    await after.close()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_broker_ends_while_a_thread_opens_logs(tmp_path: Path, *, is_deleted: bool) -> None:
    state = ClusterState()
    replicas = opened(tmp_path, state, Ended.CLEANLY)
    replicas.follow(state, LAYERS, changed_by(state, *new_topic(1, "big", BIG)))
    for _ in range(2):
        await asyncio.sleep(0)
    if is_deleted:
        replicas.follow(state, LAYERS, changed_by(state, TopicRemovedRecord(UUID(int=1))))
    assert await replicas.close()
    assert not replicas.partitions
    after = opened(tmp_path, state, Ended.CLEANLY)
    count = 0 if is_deleted else BIG
    assert (len(after.partitions), len(folders_in(tmp_path))) == (count, count)
    await after.close()


async def test_one_of_many_that_cannot_be_opened_is_offline_alone(tmp_path: Path) -> None:
    state = ClusterState()
    replicas = opened(tmp_path, state, Ended.CLEANLY)
    (tmp_path / "big-7").write_bytes(b"where a folder should be")
    replicas.follow(state, LAYERS, changed_by(state, *new_topic(1, "big", BIG)))
    await drained(replicas, BIG - 1)
    assert replicas.offline.keys() == {TopicPartition("big", 7)}
    replicas.follow(state, LAYERS, changed_by(state, TopicRemovedRecord(UUID(int=1))))
    assert not replicas.offline
    await replicas.close()


async def test_work_on_many_partitions_leaves_turns_for_others(tmp_path: Path) -> None:
    state = ClusterState()
    changed_by(state, *new_topic(1, "again", 1))
    replicas = opened(tmp_path, state, Ended.CLEANLY)
    turns = 0
    replicas.follow(state, LAYERS, changed_by(state, *new_topic(2, "big", BIG)))
    while len(replicas.partitions) < BIG + 1:
        await asyncio.sleep(0)
        turns += 1
    # To open a log takes a third of a millisecond at the very least.
    assert turns >= 5
    # A new leader of a replica that is open does not wait behind those that are to be opened.
    records = new_topic(3, "bigger", BIG)
    moved = PartitionRecord(UUID(int=1), 0, (1,), (1,), 1, 1, 1)
    replicas.follow(state, LAYERS, changed_by(state, *records, moved))
    assert replicas.partitions[NAMESAKE].replica.role.leader_epoch == 1
    assert len(replicas.partitions) < 2 * BIG + 1
    await replicas.close()


async def test_one_that_cannot_be_opened_is_forgotten_with_its_topic(tmp_path: Path) -> None:
    first = opened(tmp_path, state_of(1), Ended.CLEANLY)
    write(first, b"old")
    await first.close()
    trouble = obstacle(tmp_path)
    second = opened(tmp_path, state_of(1), Ended.CLEANLY)
    assert second.offline.keys() == {FIRST}
    trouble.rmdir()
    # Deleted and made anew within one change of the metadata.
    made_anew = state_of(2)
    second.follow(made_anew, LAYERS, made_anew.partitions())
    assert not second.offline
    assert second.partitions[FIRST].high_watermark == 0
    assert everything_in(second.partitions[FIRST].log) == []
    await second.close()
