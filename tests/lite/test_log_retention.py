"""When a segment ends, and how long it is kept."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shoal.lite.base.configs import Layers
from shoal.lite.base.log_settings import LogSettings
from shoal.lite.cluster import LiteCluster
from shoal.lite.metadata.data.records import PartitionRecord, TopicRecord
from shoal.lite.metadata.data.requests import ControllerRequest
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.partitions.replicas import Replicas
from shoal.lite.storage.cleaning.retention import RetentionSegment, find_expired_offset
from shoal.lite.storage.flushing import RECOVERY_POINT
from shoal.lite.storage.header import unpack_header
from shoal.lite.storage.offline import LogOffline
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.lite.storage.recovery.start_offset import START_CHECKPOINT
from support.lite.batches import NOW_MS, append, batch_of, everything_in
from support.lite.clusters import await_values, create_topic, eventually, partition_of, read, send


def bases(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def test_a_segment_ends_when_its_timestamps_lie_too_far_apart(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(segment_ms=1000), last_shutdown=LastShutdown.CLEANLY)
    for after_ms in (0, 1000, 1001, 500, 2001, 2002):
        append(log, batch_of(b"x", timestamp_ms=NOW_MS + after_ms))
    assert bases(tmp_path) == [0, 2, 5]
    log.close()
    again = PartitionLog(tmp_path, LogSettings(segment_ms=1000), last_shutdown=LastShutdown.CLEANLY)
    append(again, batch_of(b"x", timestamp_ms=NOW_MS + 3002))
    append(again, batch_of(b"x", timestamp_ms=NOW_MS + 3003))
    assert bases(tmp_path) == [0, 2, 5, 7]
    again.close()


def test_a_segment_without_timestamps_ends_by_the_clock(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(segment_ms=1), last_shutdown=LastShutdown.CLEANLY)
    append(log, batch_of(b"x", timestamp_ms=-1))

    def has_rolled() -> bool:
        append(log, batch_of(b"x", timestamp_ms=-1))
        return len(bases(tmp_path)) > 1

    assert eventually(has_rolled) >= 0
    log.close()


def test_a_segment_ends_when_an_index_is_full(tmp_path: Path) -> None:
    settings = LogSettings(index_interval_bytes=1, segment_index_bytes=48)
    log = PartitionLog(tmp_path, settings, last_shutdown=LastShutdown.CLEANLY)
    for number in range(12):
        append(log, batch_of(b"x", timestamp_ms=NOW_MS + number))
    # Three entries of twelve bytes each, and room for a last one.
    assert bases(tmp_path) == [0, 4, 8]
    log.close()


def test_jitter_ends_segments_earlier_but_not_before_their_time(tmp_path: Path) -> None:
    settings = LogSettings(segment_ms=1000, segment_jitter_ms=500)
    log = PartitionLog(tmp_path, settings, last_shutdown=LastShutdown.CLEANLY)
    for number in range(100):
        append(log, batch_of(b"x", timestamp_ms=NOW_MS + 100 * number))
    found = bases(tmp_path)
    steps = {later - earlier for earlier, later in pairwise(found)}
    assert min(steps) >= 5
    assert max(steps) <= 11
    assert len(steps) > 1
    log.close()


SEGMENTS = [
    RetentionSegment(10, 100, 1000),
    RetentionSegment(20, 100, 2000),
    RetentionSegment(30, 100, 3000),
]


@pytest.mark.parametrize(
    ("settings", "committed", "expected"),
    [
        (LogSettings(retention_ms=-1), 30, None),
        (LogSettings(retention_ms=3000), 30, None),
        (LogSettings(retention_ms=2999), 30, 10),
        (LogSettings(retention_ms=1000), 30, 20),
        (LogSettings(retention_ms=1000), 19, 10),
        (LogSettings(retention_ms=0), 30, 30),
        (LogSettings(retention_ms=0), 29, 20),
        (LogSettings(retention_ms=0, deletes=False), 30, None),
        (LogSettings(retention_ms=-1, retention_bytes=201), 30, None),
        (LogSettings(retention_ms=-1, retention_bytes=200), 30, 10),
        (LogSettings(retention_ms=-1, retention_bytes=0), 30, 30),
        (LogSettings(retention_ms=2999, retention_bytes=100), 30, 20),
    ],
)
def test_what_is_kept(settings: LogSettings, committed: int, expected: int | None) -> None:
    assert find_expired_offset(SEGMENTS, settings, committed=committed, now_ms=4000) == expected


def test_an_empty_segment_stays() -> None:
    segments = [RetentionSegment(10, 100, 1000), RetentionSegment(10, 0, 0)]
    settings = LogSettings(retention_ms=0)
    assert find_expired_offset(segments, settings, committed=10, now_ms=4000) == 10
    assert find_expired_offset(segments[1:], settings, committed=10, now_ms=4000) is None


def delete_expired(log: PartitionLog, now_ms: int, *, high_watermark: int) -> None:
    job = log.due_expiry(now_ms, high_watermark=high_watermark)
    assert job is not None
    job.run()
    log.on_expired(job)


def test_expired_segments_are_gone_also_the_one_that_is_written_to(tmp_path: Path) -> None:
    settings = LogSettings(segment_ms=1000, retention_ms=5000)
    log = PartitionLog(tmp_path, settings, last_shutdown=LastShutdown.CLEANLY)
    for number in range(6):
        append(log, batch_of(b"%d" % number, timestamp_ms=NOW_MS + 1001 * number))
    delete_expired(log, NOW_MS + 5500, high_watermark=6)
    assert (log.start_offset, everything_in(log)) == (1, [b"1", b"2", b"3", b"4", b"5"])
    delete_expired(log, NOW_MS + 20_000, high_watermark=3)
    assert (log.start_offset, bases(tmp_path)) == (3, [3, 4, 5])
    delete_expired(log, NOW_MS + 20_000, high_watermark=6)
    assert (log.start_offset, log.end_offset, bases(tmp_path)) == (6, 6, [6])
    append(log, batch_of(b"next"))
    assert everything_in(log) == [b"next"]
    log.close()
    again = PartitionLog(tmp_path, settings, last_shutdown=LastShutdown.KILLED)
    assert (again.start_offset, everything_in(again)) == (6, [b"next"])
    again.close()


def test_a_cluster_deletes_what_has_expired_on_all_replicas() -> None:
    properties = {"log.retention.check.interval.ms": "50", "replica.fetch.wait.max.ms": "50"}
    with LiteCluster(brokers=3, properties=properties) as cluster:
        create_topic(cluster, "t", 1, 3, segment_bytes="200", retention_bytes="400")
        values = [b"%03d" % number for number in range(20)]
        for value in values:
            assert send(cluster, "t", value) == [None]

        def segments_of(broker_id: int) -> list[int]:
            return bases(cluster.log_dirs()[broker_id] / "t-0")

        def is_short(broker_id: int) -> bool:
            logs = sorted((cluster.log_dirs()[broker_id] / "t-0").glob("*.log"))
            return sum(path.stat().st_size for path in logs[1:]) < 400

        eventually(lambda: all(is_short(broker_id) for broker_id in (1, 2, 3)))
        eventually(lambda: len({tuple(segments_of(broker_id)) for broker_id in (1, 2, 3)}) == 1)
        kept = read(cluster, "t")[0]
        assert kept == values[-len(kept) :]
        assert 0 < len(kept) < 20
        cluster.kill(partition_of(cluster, "t").leader)
        await_values(cluster, "t", kept)


def test_a_broker_that_has_just_started_deletes_nothing_yet() -> None:
    with LiteCluster() as cluster:
        create_topic(cluster, "t", 1, 1, retention_ms="1")
        assert send(cluster, "t", b"old") == [None]
        cluster.restart(1)
        # Longer than two of the broker's looks at its logs.
        time.sleep(2.5)
        assert read(cluster, "t")[0] == [b"old"]


def expiring(folder: Path) -> PartitionLog:
    """A log of six segments with one record each, all of which have expired."""
    settings = LogSettings(segment_ms=1000, retention_ms=1)
    log = PartitionLog(folder, settings, last_shutdown=LastShutdown.CLEANLY)
    for number in range(6):
        append(log, batch_of(b"%d" % number, timestamp_ms=NOW_MS + 1001 * number))
    return log


Step = Callable[[PartitionLog], None]


@pytest.mark.parametrize(
    ("meanwhile", "start", "end"),
    [
        (lambda _: None, 4, 6),
        (lambda log: log.delete_before(2), 2, 6),
        (lambda log: log.delete_before(5), 5, 6),
        (lambda log: log.truncate_to(3), 0, 3),
        (lambda log: log.truncate_to(5), 0, 5),
        (lambda log: log.truncate_fully(9), 9, 9),
    ],
)
@pytest.mark.parametrize("is_before_the_write", [True, False])
def test_expiry_never_overrides_what_happens_to_the_log_meanwhile(
    tmp_path: Path, meanwhile: Step, start: int, end: int, *, is_before_the_write: bool
) -> None:
    log = expiring(tmp_path)
    job = log.due_expiry(NOW_MS + 60_000, high_watermark=4)
    assert job is not None
    assert job.offset == 4
    if is_before_the_write:
        meanwhile(log)
        job.run()
    else:
        job.run()
        meanwhile(log)
    log.on_expired(job)
    assert (log.start_offset, log.end_offset) == (start, end)
    log.close()
    again = PartitionLog(tmp_path, log.settings, last_shutdown=LastShutdown.CLEANLY)
    assert (again.start_offset, again.end_offset) == (start, end)
    assert everything_in(again) == [b"%d" % number for number in range(start, min(end, 6))]
    again.close()


def test_expiry_writes_nothing_to_a_log_that_is_deleted(tmp_path: Path) -> None:
    log = expiring(tmp_path / "t-0")
    job = log.due_expiry(NOW_MS + 60_000, high_watermark=6)
    flush = log.due_flush(NOW_MS)
    assert job is not None
    assert flush is not None
    log.abandon()
    (tmp_path / "t-0").rename(tmp_path / "t-0-delete")
    anew = PartitionLog(tmp_path / "t-0", log.settings, last_shutdown=LastShutdown.CLEANLY)
    append(anew, batch_of(b"new"))
    job.run()
    with pytest.raises(LogOffline):
        log.on_expired(job)
    log.on_flushed(flush)
    assert not (tmp_path / "t-0" / START_CHECKPOINT).exists()
    assert not (tmp_path / "t-0" / RECOVERY_POINT).exists()
    assert everything_in(anew) == [b"new"]
    anew.close()


async def test_what_has_expired_is_forced_to_the_disk_outside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_count = 20
    state = ClusterState()
    state.apply(TopicRecord(UUID(int=1), "t"))
    for index in range(log_count):
        state.apply(PartitionRecord(UUID(int=1), index, (1,), (1,), 1, 0, 0))
    static = {"log.retention.check.interval.ms": "10", "log.retention.ms": "1"}
    layers = Layers(dynamic={}, dynamic_default={}, static=static)
    replicas = Replicas(1, tmp_path, submit)
    replicas.open(state, layers, LastShutdown.CLEANLY)
    for partition in replicas.partitions.values():
        view = memoryview(batch_of(b"old", timestamp_ms=1))
        header = unpack_header(view)
        partition.append(view, header, acks=-1, timeout_ms=0, on_acked=lambda _: None)
    in_loop: list[int] = []
    threads: list[int] = []

    def sync(descriptor: int) -> None:
        (in_loop if threading.current_thread() is threading.main_thread() else threads).append(1)
        os.fsync(descriptor)

    monkeypatch.setattr("shoal.lite.storage.files.sync", sync)
    for _ in range(6000):
        if all(p.log.start_offset == 1 for p in replicas.partitions.values()):
            break
        await asyncio.sleep(0.01)
    assert {p.log.start_offset for p in replicas.partitions.values()} == {1}
    assert not in_loop
    assert len(threads) >= 2 * log_count
    await replicas.close()


async def submit(_: ControllerRequest[Any]) -> None:
    """A controller that takes note of everything."""
