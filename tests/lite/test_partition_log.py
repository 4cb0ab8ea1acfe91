"""The log of a partition: what was appended is read back, whatever happened in between."""

import errno
import resource
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.header import unpack_header
from shoal.lite.storage.offline import LogOffline
from shoal.lite.storage.partition_log import LogAppendInfo, PartitionLog
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from support.lite.batches import NOW_MS, append, batch_of, everything_in, values_of

SMALL = LogSettings(segment_bytes=500, index_interval_bytes=100)


def fill(log: PartitionLog, count: int, *, size: int = 40, leader_epoch: int = 0) -> list[bytes]:
    """One record per batch."""
    values = [f"{log.end_offset + i:06d}".encode().ljust(size, b".") for i in range(count)]
    for value in values:
        append(log, batch_of(value), leader_epoch=leader_epoch)
    return values


def test_batches_get_offsets_and_epochs_and_keep_their_bytes(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "t-0", LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    first, second = batch_of(b"a", b"b", b"c"), batch_of(b"d")
    records = bytes(first[21:])
    assert append(log, first, leader_epoch=4) == LogAppendInfo(0, is_duplicate=False)
    assert append(log, second, leader_epoch=4) == LogAppendInfo(3, is_duplicate=False)
    data = bytes(log.read(0, 10_000, upper_offset=log.end_offset))
    assert data == bytes(first) + bytes(second)
    assert data[21 : len(first)] == records
    assert unpack_header(data, len(first))[:3] == (3, len(second) - 12, 4)
    assert log.epochs.entries == ((4, 0),)
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n4 0\n"
    log.close()


def test_reads_are_whole_batches_within_the_limits(tmp_path: Path) -> None:
    log = PartitionLog(
        tmp_path, LogSettings(index_interval_bytes=100), last_shutdown=LastShutdown.CLEANLY
    )
    values = fill(log, 50)
    size = len(batch_of(values[0]))
    end = log.end_offset
    assert values_of(log.read(7, 3 * size, upper_offset=end)) == values[7:10]
    assert values_of(log.read(7, 3 * size - 1, upper_offset=end)) == values[7:9]
    assert values_of(log.read(7, 1, upper_offset=end)) == values[7:8]
    assert len(log.read(7, 1, upper_offset=end, at_least_one=False)) == 0
    assert values_of(log.read(7, 1 << 20, upper_offset=12)) == values[7:12]
    assert len(log.read(50, 1 << 20, upper_offset=end)) == 0
    log.close()


def test_an_offset_inside_a_batch_gives_the_whole_batch(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    append(log, batch_of(b"a", b"b", b"c"))
    append(log, batch_of(b"d"))
    assert values_of(log.read(2, 1, upper_offset=4)) == [b"a", b"b", b"c"]
    log.close()


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=30),
    max_bytes=st.integers(1, 1500),
    segment_bytes=st.integers(100, 2000),
)
def test_whatever_the_sizes_a_reader_sees_every_record_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], max_bytes: int, segment_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    settings = LogSettings(segment_bytes=segment_bytes, index_interval_bytes=150)
    log = PartitionLog(folder, settings, last_shutdown=LastShutdown.CLEANLY)
    values: list[bytes | None] = [bytes(size) for size in sizes]
    for size in sizes:
        append(log, batch_of(bytes(size)))
    offset = 0
    while offset < log.end_offset:
        data = log.read(offset, max_bytes, upper_offset=log.end_offset)
        read = values_of(data)
        assert len(data) <= max_bytes or len(read) == 1
        assert read == values[offset : offset + len(read)]
        offset += len(read)
    log.close()
    again = PartitionLog(folder, settings, last_shutdown=LastShutdown.CLEANLY)
    assert everything_in(again) == values
    again.close()


def test_segments_roll_by_size_and_are_named_by_their_first_offset(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    values = fill(log, 30)
    names = sorted(path.name for path in tmp_path.glob("*.log"))
    assert names[0] == "00000000000000000000.log"
    assert len(names) > 5
    assert all(path.stat().st_size <= 500 for path in tmp_path.glob("*.log"))
    assert everything_in(log) == values
    log.close()


@pytest.mark.parametrize("ended", list(LastShutdown))
def test_a_log_is_the_same_after_it_was_opened_again(tmp_path: Path, ended: LastShutdown) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    values = fill(log, 20) + fill(log, 20, leader_epoch=3)
    if ended is LastShutdown.CLEANLY:
        log.close()
    again = PartitionLog(tmp_path, SMALL, last_shutdown=ended)
    assert everything_in(again) == values
    assert again.epochs.entries == ((0, 0), (3, 20))
    assert append(again, batch_of(b"next")).base_offset == 40
    again.close()
    if ended is not LastShutdown.CLEANLY:
        log.close()


def test_a_tail_torn_at_any_byte_is_cut_at_the_last_whole_batch(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "whole", LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    values = fill(log, 3, size=30)
    log.close()
    name = "00000000000000000000.log"
    whole = (tmp_path / "whole" / name).read_bytes()
    start_of_last = len(whole) // 3 * 2
    for end in range(start_of_last, len(whole)):
        folder = tmp_path / f"torn-{end}"
        folder.mkdir()
        (folder / name).write_bytes(whole[:end])
        torn = PartitionLog(folder, LogSettings(), last_shutdown=LastShutdown.KILLED)
        assert torn.end_offset == 2
        assert everything_in(torn) == values[:2]
        assert (folder / name).stat().st_size == start_of_last
        assert append(torn, batch_of(b"again")).base_offset == 2
        torn.close()


def test_a_damaged_byte_anywhere_in_the_last_batch_cuts_it_off(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "whole", LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    fill(log, 3, size=30)
    log.close()
    name = "00000000000000000000.log"
    whole = (tmp_path / "whole" / name).read_bytes()
    start_of_last = len(whole) // 3 * 2
    # The offset and the leader's epoch in front are the leader's own and not in the checksum.
    for position in range(start_of_last + 16, len(whole)):
        folder = tmp_path / f"damaged-{position}"
        folder.mkdir()
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        (folder / name).write_bytes(damaged)
        cut = PartitionLog(folder, LogSettings(), last_shutdown=LastShutdown.UNKNOWN)
        assert cut.end_offset == 2
        cut.close()


def test_after_a_power_loss_damage_in_an_older_segment_ends_the_log_there(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    values = fill(log, 30)
    log.close()
    second = sorted(tmp_path.glob("*.log"))[1]
    damaged = bytearray(second.read_bytes())
    damaged[-1] ^= 1
    second.write_bytes(damaged)
    cut = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.UNKNOWN)
    assert 0 < cut.end_offset < 30
    assert everything_in(cut) == values[: cut.end_offset]
    assert append(cut, batch_of(b"next")).base_offset == len(values[: cut.end_offset - 1])
    cut.close()


def test_producers_are_known_again_after_a_restart(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    log.settings = LogSettings(segment_bytes=500, producer_id_expiration_ms=1 << 60)
    for sequence in range(20):
        append(log, batch_of(b"x" * 40, producer=(5, 0, sequence)))
    forever = LogSettings(segment_bytes=500, producer_id_expiration_ms=1 << 60)
    again = PartitionLog(tmp_path, forever, last_shutdown=LastShutdown.KILLED)
    duplicate = append(again, batch_of(b"x" * 40, producer=(5, 0, 17)))
    assert duplicate == LogAppendInfo(17, is_duplicate=True)
    assert again.end_offset == 20
    again.close()
    # The batches are years old by their own time: with the default expiry nothing is known.
    forgetful = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    assert len(forgetful.producers) == 0
    forgetful.close()
    log.close()


def test_deleted_records_stay_deleted(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    values = fill(log, 30)
    log.delete_before(17)
    files = len(list(tmp_path.glob("*.log")))
    assert everything_in(log) == values[17:]
    assert int(min(tmp_path.glob("*.log")).stem) <= 17
    log.close()
    again = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    assert (again.start_offset, again.end_offset) == (17, 30)
    assert len(list(tmp_path.glob("*.log"))) == files
    assert everything_in(again) == values[17:]
    again.delete_before(30)
    again.close()
    empty = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.KILLED)
    assert (empty.start_offset, empty.end_offset) == (30, 30)
    assert append(empty, batch_of(b"next")).base_offset == 30
    empty.close()


def test_a_power_loss_behind_deleted_records_starts_at_the_log_start(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    fill(log, 10)
    log.delete_before(8)
    log.close()
    next(tmp_path.glob("*.log")).write_bytes(b"")
    again = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.UNKNOWN)
    assert (again.start_offset, again.end_offset) == (8, 8)
    assert append(again, batch_of(b"next")).base_offset == 8
    again.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_batches_are_found_by_time(tmp_path: Path, sealed: bool) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    offsets = [100, 300, 200, 500, 400, 600, 700, 800, 900, 1000, 1100, 1200]
    for offset in offsets:
        append(log, batch_of(b"x" * 40, timestamp_ms=NOW_MS + offset))
    if sealed:
        log.close()
        log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for wanted in (0, 100, 101, 250, 450, 999, 1200):
        batch = log.batch_of_time(NOW_MS + wanted)
        assert batch is not None
        expected = next(i for i, offset in enumerate(offsets) if offset >= wanted)
        assert unpack_header(batch).base_offset == expected
    assert log.batch_of_time(NOW_MS + 1201) is None
    log.close()


def test_the_newest_record_is_found_also_when_a_newer_one_was_deleted(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    assert log.batch_of_max_time() is None
    for offset in (100, 900, 300, 500, 400):
        append(log, batch_of(b"x", timestamp_ms=NOW_MS + offset))
    newest = log.batch_of_max_time()
    assert newest is not None
    assert unpack_header(newest).base_offset == 1
    log.delete_before(2)
    newest = log.batch_of_max_time()
    assert newest is not None
    assert unpack_header(newest).base_offset == 3
    log.delete_before(5)
    assert log.batch_of_max_time() is None
    log.close()


def test_a_failed_write_takes_the_log_offline_and_leaves_no_torn_batch(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    values = fill(log, 5)
    before = log.size_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + 70, hard))
    try:
        with pytest.raises(LogOffline) as refused:
            fill(log, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.code is Code.KAFKA_STORAGE_ERROR
    assert isinstance(refused.value.__cause__, OSError)
    assert refused.value.__cause__.errno == errno.EFBIG
    with pytest.raises(LogOffline, match="offline"):
        fill(log, 1)
    with pytest.raises(LogOffline, match="offline"):
        log.read(0, 100, upper_offset=5)
    log.close()
    again = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.KILLED)
    assert everything_in(again) == values
    assert again.size_bytes == before
    again.close()


def test_flush_messages_forces_batches_to_the_disk(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(flush_messages=2), last_shutdown=LastShutdown.CLEANLY)
    values = fill(log, 3)
    log.flush()
    assert everything_in(log) == values
    log.close()


@pytest.mark.parametrize("ended", list(LastShutdown))
@pytest.mark.parametrize("kept", [0, 3, 5, 17, 39, 40])
def test_a_log_is_cut_where_it_is_told_and_goes_on(
    tmp_path: Path, ended: LastShutdown, kept: int
) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    values = fill(log, 20, leader_epoch=1) + fill(log, 20, leader_epoch=3)
    log.begin_epoch(7)
    log.truncate_to(kept)
    assert log.end_offset == kept
    assert log.epochs.entries == tuple((e, o) for e, o in ((1, 0), (3, 20)) if o < kept)
    assert everything_in(log) == values[:kept]
    values[kept:] = fill(log, 9, leader_epoch=8)
    if ended is LastShutdown.CLEANLY:
        log.close()
    again = PartitionLog(tmp_path, SMALL, last_shutdown=ended)
    assert everything_in(again) == values
    assert again.epochs.entries[-1] == (8, kept)
    again.close()


def test_a_cut_within_a_batch_takes_the_whole_batch(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    append(log, batch_of(b"a"))
    append(log, batch_of(b"b", b"c", b"d"))
    log.truncate_to(3)
    assert log.end_offset == 1
    assert everything_in(log) == [b"a"]
    log.close()


@pytest.mark.parametrize("cut", [2, 3])
def test_a_cut_within_the_batch_that_the_log_starts_in_leaves_it_empty(
    tmp_path: Path, cut: int
) -> None:
    log = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    append(log, batch_of(b"a"))
    append(log, batch_of(b"b", b"c", b"d"))
    log.delete_before(2)
    log.truncate_to(cut)
    assert (log.start_offset, log.end_offset, everything_in(log)) == (2, 2, [])
    assert append(log, batch_of(b"e")) == LogAppendInfo(2, is_duplicate=False)
    log.close()
    again = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    assert (again.start_offset, again.end_offset, everything_in(again)) == (2, 3, [b"e"])
    again.close()


def test_producers_know_after_a_cut_what_is_left_of_their_batches(tmp_path: Path) -> None:
    def batch_from(sequence: int, producer_id: int = 5, epoch: int = 0) -> bytearray:
        now_ms = time.time_ns() // 1_000_000
        return batch_of(b"x", timestamp_ms=now_ms, producer=(producer_id, epoch, sequence))

    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for sequence in range(12):
        append(log, batch_from(sequence))
    log.truncate_to(10)
    assert append(log, batch_from(9)).is_duplicate
    # Nothing that is remembered is left: the log tells.
    log.truncate_to(3)
    assert append(log, batch_from(2)) == LogAppendInfo(2, is_duplicate=True)
    assert append(log, batch_from(3)) == LogAppendInfo(3, is_duplicate=False)
    append(log, batch_from(0, epoch=1))
    log.truncate_to(4)
    assert append(log, batch_from(4)) == LogAppendInfo(4, is_duplicate=False)
    append(log, batch_from(7, producer_id=6))
    log.truncate_to(5)
    assert append(log, batch_from(0, producer_id=6)) == LogAppendInfo(5, is_duplicate=False)
    log.close()


def test_a_log_that_begins_again_elsewhere(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    fill(log, 30)
    log.truncate_fully(100)
    assert (log.start_offset, log.end_offset, log.epochs.entries) == (100, 100, ())
    values = fill(log, 3, leader_epoch=2)
    log.close()
    again = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    assert (again.start_offset, again.end_offset) == (100, 103)
    assert everything_in(again) == values
    again.close()


def test_what_a_leader_sent_is_written_as_it_is(tmp_path: Path) -> None:
    leader = PartitionLog(tmp_path / "leader", SMALL, last_shutdown=LastShutdown.CLEANLY)
    follower = PartitionLog(tmp_path / "follower", SMALL, last_shutdown=LastShutdown.CLEANLY)
    values = fill(leader, 5, leader_epoch=1) + fill(leader, 20, leader_epoch=4)
    while follower.end_offset < leader.end_offset:
        data = bytes(leader.read(follower.end_offset, 250, upper_offset=leader.end_offset))
        # A cut batch at the end is left for the next fetch.
        follower.append_fetched(memoryview(data + data[:70]) if data else memoryview(b""))
    assert everything_in(follower) == values
    assert follower.epochs.entries == leader.epochs.entries == ((1, 0), (4, 5))
    damaged = batch_of(b"x")
    append(leader, damaged, leader_epoch=4)
    damaged[-1] ^= 1
    for wrong in (bytes(damaged), bytes(leader.read(3, 1, upper_offset=25)), bytes(100)):
        with pytest.raises(ApiError):
            follower.append_fetched(memoryview(wrong))
    assert follower.end_offset == 25
    leader.close()
    follower.close()


@given(st.data())
def test_what_was_written_last_is_read_as_if_it_were_searched_for(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A log that is opened again remembers none of its newest batches, and must say the same."""
    folder = tmp_path_factory.mktemp("log")
    log = PartitionLog(folder, SMALL, last_shutdown=LastShutdown.CLEANLY)
    for _ in range(data.draw(st.integers(1, 6))):
        for count in data.draw(st.lists(st.integers(1, 4), max_size=30)):
            append(log, batch_of(*[b"x" * 20] * count))
        if data.draw(st.booleans()):
            log.truncate_to(data.draw(st.integers(0, log.end_offset)))
    end = log.end_offset
    places = st.integers(0, end)
    asked = [
        (data.draw(places), data.draw(places), data.draw(st.integers(0, 1000))) for _ in range(10)
    ]
    seen = [bytes(log.read(at, most, upper_offset=upper)) for at, upper, most in asked]
    log.close()
    again = PartitionLog(folder, SMALL, last_shutdown=LastShutdown.CLEANLY)
    assert seen == [bytes(again.read(at, most, upper_offset=upper)) for at, upper, most in asked]
    again.close()


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1)), min_size=1, max_size=30))
def test_what_a_leader_sent_at_once_is_written_as_if_it_came_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, int]]
) -> None:
    leader = PartitionLog(
        tmp_path_factory.mktemp("leader"), LogSettings(), last_shutdown=LastShutdown.CLEANLY
    )
    epoch = sequence = 0
    pieces = []
    for count, epoch_step in batches:
        epoch += epoch_step
        batch = batch_of(*[b"x" * 20] * count, producer=(7, 0, sequence))
        sequence += count
        append(leader, batch, leader_epoch=epoch)
        pieces.append(bytes(batch))
    found = []
    for batch_from in ([b"".join(pieces)], pieces):
        log = PartitionLog(
            tmp_path_factory.mktemp("follower"), SMALL, last_shutdown=LastShutdown.CLEANLY
        )
        for record_set in batch_from:
            log.append_fetched(memoryview(bytearray(record_set)))
        segments = {
            path.name: path.read_bytes() for path in log.folder.iterdir() if path.suffix == ".log"
        }
        producers = {number: list(each.batches) for number, each in log.producers.items()}
        found.append((segments, log.epochs.entries, producers, log.end_offset))
        log.close()
    leader.close()
    assert found[0] == found[1]


def test_what_lies_before_a_damaged_batch_is_written(tmp_path: Path) -> None:
    leader = PartitionLog(tmp_path / "leader", LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    values = fill(leader, 5)
    batch_from = bytearray(bytes(leader.read(0, 10_000, upper_offset=5)))
    batch_from[-1] ^= 1
    follower = PartitionLog(tmp_path / "follower", SMALL, last_shutdown=LastShutdown.CLEANLY)
    with pytest.raises(ApiError, match="damaged"):
        follower.append_fetched(memoryview(batch_from))
    assert everything_in(follower) == values[:4]
    leader.close()
    follower.close()
