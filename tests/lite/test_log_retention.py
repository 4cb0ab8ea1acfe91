"""When a segment ends, and how long it is kept."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.lite.log.ended import Ended
from shoal.lite.log.partition_log import PartitionLog
from shoal.lite.log.retention import KeptSegment, expired_before
from shoal.lite.log.settings import LogSettings
from support.lite_batches import NOW_MS, append, batch_of, everything_in
from support.lite_clusters import create_topic, eventually, partition_of, read, send


def bases(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def test_a_segment_ends_when_its_timestamps_lie_too_far_apart(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(segment_ms=1000), ended=Ended.CLEANLY)
    for after_ms in (0, 1000, 1001, 500, 2001, 2002):
        append(log, batch_of(b"x", timestamp_ms=NOW_MS + after_ms))
    assert bases(tmp_path) == [0, 2, 5]
    log.close()
    again = PartitionLog(tmp_path, LogSettings(segment_ms=1000), ended=Ended.CLEANLY)
    append(again, batch_of(b"x", timestamp_ms=NOW_MS + 3002))
    append(again, batch_of(b"x", timestamp_ms=NOW_MS + 3003))
    assert bases(tmp_path) == [0, 2, 5, 7]
    again.close()


def test_a_segment_without_timestamps_ends_by_the_clock(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(segment_ms=1), ended=Ended.CLEANLY)
    append(log, batch_of(b"x", timestamp_ms=-1))

    def has_rolled() -> bool:
        append(log, batch_of(b"x", timestamp_ms=-1))
        return len(bases(tmp_path)) > 1

    assert eventually(has_rolled) >= 0
    log.close()


def test_a_segment_ends_when_an_index_is_full(tmp_path: Path) -> None:
    settings = LogSettings(index_interval_bytes=1, segment_index_bytes=48)
    log = PartitionLog(tmp_path, settings, ended=Ended.CLEANLY)
    for number in range(12):
        append(log, batch_of(b"x", timestamp_ms=NOW_MS + number))
    # Three entries of twelve bytes each, and room for a last one.
    assert bases(tmp_path) == [0, 4, 8]
    log.close()


def test_jitter_ends_segments_earlier_but_not_before_their_time(tmp_path: Path) -> None:
    settings = LogSettings(segment_ms=1000, segment_jitter_ms=500)
    log = PartitionLog(tmp_path, settings, ended=Ended.CLEANLY)
    for number in range(100):
        append(log, batch_of(b"x", timestamp_ms=NOW_MS + 100 * number))
    found = bases(tmp_path)
    steps = {later - earlier for earlier, later in pairwise(found)}
    assert min(steps) >= 5
    assert max(steps) <= 11
    assert len(steps) > 1
    log.close()


SEGMENTS = [KeptSegment(10, 100, 1000), KeptSegment(20, 100, 2000), KeptSegment(30, 100, 3000)]


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
    assert expired_before(SEGMENTS, settings, committed=committed, now_ms=4000) == expected


def test_an_empty_segment_stays() -> None:
    segments = [KeptSegment(10, 100, 1000), KeptSegment(10, 0, 0)]
    settings = LogSettings(retention_ms=0)
    assert expired_before(segments, settings, committed=10, now_ms=4000) == 10
    assert expired_before(segments[1:], settings, committed=10, now_ms=4000) is None


def test_expired_segments_are_gone_also_the_one_that_is_written_to(tmp_path: Path) -> None:
    settings = LogSettings(segment_ms=1000, retention_ms=5000)
    log = PartitionLog(tmp_path, settings, ended=Ended.CLEANLY)
    for number in range(6):
        append(log, batch_of(b"%d" % number, timestamp_ms=NOW_MS + 1001 * number))
    log.delete_expired(NOW_MS + 5500, high_watermark=6)
    assert (log.start_offset, everything_in(log)) == (1, [b"1", b"2", b"3", b"4", b"5"])
    log.delete_expired(NOW_MS + 20_000, high_watermark=3)
    assert (log.start_offset, bases(tmp_path)) == (3, [3, 4, 5])
    log.delete_expired(NOW_MS + 20_000, high_watermark=6)
    assert (log.start_offset, log.end_offset, bases(tmp_path)) == (6, 6, [6])
    append(log, batch_of(b"next"))
    assert everything_in(log) == [b"next"]
    log.close()
    again = PartitionLog(tmp_path, settings, ended=Ended.KILLED)
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

        eventually(lambda: all(min(segments_of(broker_id)) > 0 for broker_id in (1, 2, 3)))
        eventually(lambda: len({tuple(segments_of(broker_id)) for broker_id in (1, 2, 3)}) == 1)
        kept = read(cluster, "t")[0]
        assert kept == values[-len(kept) :]
        assert 0 < len(kept) < 20
        cluster.kill(partition_of(cluster, "t").leader)
        assert read(cluster, "t")[0] == kept


def test_a_broker_that_has_just_started_deletes_nothing_yet() -> None:
    with LiteCluster() as cluster:
        create_topic(cluster, "t", 1, 1, retention_ms="1")
        assert send(cluster, "t", b"old") == [None]
        cluster.restart(1)
        # Longer than two of the broker's looks at its logs.
        time.sleep(2.5)
        assert read(cluster, "t")[0] == [b"old"]
