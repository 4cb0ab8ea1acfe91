"""Opening a log again: what is read for it, what is known then, and what was forced to disk."""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.cluster import LiteCluster
from shoal.lite.storage import segment
from shoal.lite.storage.files import DamagedFile
from shoal.lite.storage.partition_log import LogAppendInfo, PartitionLog
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.lite.storage.state.producer_state import ProducerState, ProducerStates, WrittenBatch
from shoal.lite.storage.state.snapshots import decode_snapshot, encode_snapshot
from support.lite.batches import append, batch_of, everything_in
from support.lite.clusters import create_topic, eventually, send

SMALL = LogSettings(segment_bytes=500, index_interval_bytes=100)
PRODUCER = 5


def batch_from(sequence: int, producer_id: int = PRODUCER) -> bytearray:
    now_ms = time.time_ns() // 1_000_000
    return batch_of(b"%04d" % sequence, timestamp_ms=now_ms, producer=(producer_id, 0, sequence))


def snapshots(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.snapshot"))


def bases(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


@st.composite
def producers(draw: st.DrawFn) -> ProducerStates:
    states = ProducerStates()
    for producer_id in draw(st.sets(st.integers(0, 1 << 40), max_size=5)):
        last_offset = draw(st.integers(0, 1 << 40))
        delta = draw(st.integers(0, min(last_offset, 1000)))
        sequence = draw(st.integers(0, (1 << 31) - 1))
        timestamp_ms = draw(st.integers(-1, 1 << 42))
        producer = ProducerState(
            draw(st.integers(0, (1 << 15) - 1)),
            coordinator_epoch=draw(st.integers(-1, 100)),
            first_offset=draw(st.integers(-1, 1 << 40)),
            timestamp_ms=timestamp_ms,
        )
        if draw(st.booleans()):
            first = (sequence - delta) % (1 << 31)
            span = (first, sequence, last_offset - delta, last_offset, timestamp_ms)
            producer.batches.append(WrittenBatch(*span))
        states.restore(producer_id, producer)
    return states


@given(producers())
def test_a_snapshot_tells_what_it_was_told(states: ProducerStates) -> None:
    content = encode_snapshot(states)
    assert decode_snapshot(content, source="x") == dict(states.items())
    for end in {0, 1, 6, 9, len(content) - 1} - {len(content)}:
        with pytest.raises(DamagedFile):
            decode_snapshot(content[:end], source="x")


def test_segments_begin_with_a_snapshot_and_a_log_ends_with_one(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for sequence in range(20):
        append(log, batch_from(sequence))
    assert snapshots(tmp_path) == bases(tmp_path)[1:]
    log.delete_before(12)
    assert snapshots(tmp_path) == [base for base in bases(tmp_path) if base]
    log.close()
    assert snapshots(tmp_path)[-1] == 20
    again = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    assert append(again, batch_from(19)) == LogAppendInfo(19, is_duplicate=True)
    # Those before the last come from the log: a producer may repeat any of its last five.
    assert append(again, batch_from(15)) == LogAppendInfo(15, is_duplicate=True)
    assert append(again, batch_from(20)) == LogAppendInfo(20, is_duplicate=False)
    again.close()


@pytest.mark.parametrize("ended", LastShutdown)
def test_a_producer_may_repeat_its_last_five_after_any_end(
    tmp_path: Path, ended: LastShutdown
) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for sequence in range(33):
        append(log, batch_from(sequence))
        append(log, batch_from(sequence, PRODUCER + 1))
    if ended is LastShutdown.CLEANLY:
        log.close()
    again = PartitionLog(tmp_path, SMALL, last_shutdown=ended)
    for sequence in range(28, 33):
        assert append(again, batch_from(sequence)).base_offset == 2 * sequence
        assert append(again, batch_from(sequence, PRODUCER + 1)).base_offset == 2 * sequence + 1
    assert append(again, batch_from(33)) == LogAppendInfo(66, is_duplicate=False)
    again.close()


@pytest.mark.parametrize("cut_bytes", [1, 20, 61, 75, 200])
def test_a_log_that_was_cut_after_it_was_closed_ends_with_its_last_whole_batch(
    tmp_path: Path, cut_bytes: int
) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for number in range(20):
        append(log, batch_from(number))
    log.close()
    last = max(tmp_path.glob("*.log"))
    os.truncate(last, max(0, last.stat().st_size - cut_bytes))
    again = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    assert again.end_offset == int(last.stem) + last.stat().st_size // len(batch_from(0))
    assert everything_in(again) == [b"%04d" % number for number in range(again.end_offset)]
    append(again, batch_from(again.end_offset))
    again.close()


def test_a_damaged_snapshot_is_removed_and_costs_nothing_but_time(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for sequence in range(20):
        append(log, batch_from(sequence))
    log.close()
    for offset in snapshots(tmp_path):
        (tmp_path / f"{offset:020d}.snapshot").write_bytes(b"rubbish")
    again = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    assert append(again, batch_from(17)) == LogAppendInfo(17, is_duplicate=True)
    assert snapshots(tmp_path) == []
    again.close()


def test_a_cut_takes_snapshots_above_it_along(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for sequence in range(40):
        append(log, batch_from(sequence))
    log.truncate_to(13)
    assert max(snapshots(tmp_path)) <= 13
    assert append(log, batch_from(12)) == LogAppendInfo(12, is_duplicate=True)
    assert append(log, batch_from(13)) == LogAppendInfo(13, is_duplicate=False)
    log.close()
    again = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.KILLED)
    assert append(again, batch_from(13)) == LogAppendInfo(13, is_duplicate=True)
    again.close()


class Reads:
    """Which bytes of which segment were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_base: dict[int, int] = {}
        self.times: Counter[int] = Counter()
        real = segment.Segment.read_at

        def read_at(one: segment.Segment, position: int, count: int) -> bytes:
            data = real(one, position, count)
            self.by_base[one.base_offset] = self.by_base.get(one.base_offset, 0) + len(data)
            self.times[one.base_offset] += 1
            return data

        monkeypatch.setattr(segment.Segment, "read_at", read_at)


@pytest.fixture
def look_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.lite.storage.state.replaying.LOOK_BACK_BYTES", 600)


@pytest.mark.usefixtures("look_back")
@pytest.mark.parametrize("ended", [LastShutdown.CLEANLY, LastShutdown.KILLED])
def test_of_old_segments_only_the_end_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: LastShutdown
) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for sequence in range(60):
        append(log, batch_from(sequence))
    if ended is LastShutdown.CLEANLY:
        log.close()
    reads = Reads(monkeypatch)
    again = PartitionLog(tmp_path, SMALL, last_shutdown=ended)
    assert again.end_offset == 60
    assert {reads.times[base] for base in bases(tmp_path)[:-3]} == {1}
    assert append(again, batch_from(57)) == LogAppendInfo(57, is_duplicate=True)
    again.close()


def truncate_inside_a_batch(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 20)


def truncate_between_batches(path: Path) -> None:
    os.truncate(path, path.stat().st_size - len(batch_from(0)))


def truncate_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("ended", [LastShutdown.CLEANLY, LastShutdown.KILLED, LastShutdown.UNKNOWN])
@pytest.mark.parametrize(
    "damage", [truncate_inside_a_batch, truncate_between_batches, truncate_to_nothing, Path.unlink]
)
def test_a_log_ends_where_something_is_missing_in_the_middle(
    tmp_path: Path, damage: Callable[[Path], None], ended: LastShutdown
) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for number in range(40):
        append(log, batch_from(number))
    log.close()
    damage(sorted(tmp_path.glob("*.log"))[2])
    again = PartitionLog(tmp_path, SMALL, last_shutdown=ended)
    assert again.truncation_marker.is_set
    assert 0 < again.end_offset < 20
    assert everything_in(again) == [b"%04d" % number for number in range(again.end_offset)]
    for number in range(again.end_offset, 30):
        append(again, batch_from(number))
    again.close()
    last = PartitionLog(tmp_path, SMALL, last_shutdown=ended)
    # Until it is told: what was missing is nowhere to be seen any more.
    assert last.truncation_marker.is_set
    assert everything_in(last) == [b"%04d" % number for number in range(30)]
    last.truncation_marker.clear()
    last.close()
    told = PartitionLog(tmp_path, SMALL, last_shutdown=ended)
    assert not told.truncation_marker.is_set
    told.close()


@pytest.mark.parametrize("ended", [LastShutdown.CLEANLY, LastShutdown.KILLED, LastShutdown.UNKNOWN])
def test_what_is_missing_at_the_begin_is_noticed_until_the_log_leads(
    tmp_path: Path, ended: LastShutdown
) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for number in range(40):
        append(log, batch_from(number))
    log.delete_before(1)
    log.close()
    paths = sorted(tmp_path.glob("*.log"))
    paths[0].unlink()
    begin = int(paths[1].stem)
    for _ in range(2):
        again = PartitionLog(tmp_path, SMALL, last_shutdown=ended)
        assert (again.truncation_marker.is_set, again.lacks_start) == (True, True)
        assert (again.start_offset, again.end_offset) == (begin, 40)
        assert everything_in(again) == [b"%04d" % number for number in range(begin, 40)]
        again.truncation_marker.clear()
        again.close()
    leading = PartitionLog(tmp_path, SMALL, last_shutdown=ended)
    leading.begin_epoch(7)
    leading.truncation_marker.clear()
    leading.close()
    last = PartitionLog(tmp_path, SMALL, last_shutdown=ended)
    assert (last.truncation_marker.is_set, last.lacks_start, last.start_offset) == (
        False,
        False,
        begin,
    )
    last.close()


def test_after_a_kill_only_the_last_batch_is_doubted(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    for sequence in range(10):
        append(log, batch_from(sequence))
    [path] = tmp_path.glob("*.log")
    size = path.stat().st_size
    for cut in (1, 60, 71):
        os.truncate(path, size - cut)
        again = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.KILLED)
        assert again.end_offset == 9
        assert path.stat().st_size == size // 10 * 9
        append(again, batch_from(9))
        again.close()
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.KILLED).end_offset == 9


def flush_due(log: PartitionLog) -> bool:
    job = log.due_flush(time.time_ns() // 1_000_000)
    if job is None:
        return False
    job.run()
    log.on_flushed(job)
    return True


def test_after_a_power_loss_what_was_flushed_is_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for sequence in range(30):
        append(log, batch_from(sequence))
    assert flush_due(log)
    assert not flush_due(log)
    known = bases(tmp_path)[-1]
    assert (tmp_path / "recovery-point-checkpoint").read_text() == f"0\n1\n0 {known}\n"
    for sequence in range(30, 50):
        append(log, batch_from(sequence))
    values = everything_in(log)
    reads = Reads(monkeypatch)
    again = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.UNKNOWN)
    assert everything_in(again) == values
    monkeypatch.undo()
    checked = [base for base in bases(tmp_path) if base >= known]
    for base in checked:
        size = (tmp_path / f"{base:020d}.log").stat().st_size
        assert reads.by_base[base] >= size
    assert again.epochs.entries == ((0, 0),)
    again.close()


def test_a_cut_below_the_recovery_point_takes_it_back(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for sequence in range(30):
        append(log, batch_from(sequence))
    assert flush_due(log)
    log.truncate_to(7)
    for sequence in range(7, 30):
        append(log, batch_from(sequence))
    [_, point] = (tmp_path / "recovery-point-checkpoint").read_text().split("\n")[2].split()
    assert int(point) in bases(tmp_path)
    assert int(point) <= 7
    # What the power took of the new records is cut off, though it was once on the disk.
    second = tmp_path / f"{bases(tmp_path)[2]:020d}.log"
    second.write_bytes(bytes(second.stat().st_size))
    again = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.UNKNOWN)
    assert again.end_offset == int(second.stem)
    again.close()


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        counted.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return counted


def test_so_many_records_are_forced_to_the_disk_at_once(tmp_path: Path, syncs: list[int]) -> None:
    log = PartitionLog(tmp_path, LogSettings(flush_messages=3), last_shutdown=LastShutdown.CLEANLY)
    counts = []
    for sequence in range(6):
        append(log, batch_from(sequence))
        counts.append(len(syncs))
    # The first time the folder too.
    assert counts == [0, 0, 2, 2, 2, 3]
    log.close()


def test_records_are_forced_to_the_disk_after_some_time(tmp_path: Path, syncs: list[int]) -> None:
    log = PartitionLog(tmp_path, LogSettings(flush_ms=5000), last_shutdown=LastShutdown.CLEANLY)
    append(log, batch_from(0))
    now_ms = time.time_ns() // 1_000_000
    assert log.due_flush(now_ms + 4000) is None
    job = log.due_flush(now_ms + 6000)
    assert job is not None
    assert log.due_flush(now_ms + 6000) is None
    append(log, batch_from(1))
    job.run()
    log.on_flushed(job)
    assert len(syncs) >= 1
    # What came meanwhile waits for the next time.
    assert log.due_flush(now_ms + 20_000) is not None
    log.close()


def test_a_broker_flushes_sealed_segments_by_itself() -> None:
    with LiteCluster() as cluster:
        create_topic(cluster, "t", 1, 1, internal_segment_bytes="200")
        for number in range(5):
            assert send(cluster, "t", b"%d" % number) == [None]
        folder = cluster.log_dirs()[1] / "t-0"
        eventually((folder / "recovery-point-checkpoint").exists)
        assert len(bases(folder)) > 1
