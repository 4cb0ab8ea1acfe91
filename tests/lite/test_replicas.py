"""Logs of a broker that cannot be opened for a while, and what becomes of them."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shoal.lite.configs import Layers
from shoal.lite.controller.records import NO_LEADER, PartitionRecord, TopicRecord
from shoal.lite.controller.requests import Request
from shoal.lite.controller.state import ClusterState
from shoal.lite.log.ended import Ended
from shoal.lite.replicas import HIGH_WATERMARKS, Replicas
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
