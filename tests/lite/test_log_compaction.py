"""Compaction of one log: what stays, what goes, and that no crash makes a difference."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.cleaning import cleaning
from shoal.lite.storage.cleaning.cleaning import CleanJob
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.lite.storage.recovery.log_end_file import LogEndFile
from shoal.wire.batch import iter_batches
from shoal.wire.records.records import (
    ControlType,
    Record,
    decode_control,
    decode_records,
    encode_batch,
    encode_control_batch,
)
from support.lite.batches import NOW_MS, append, append_marker

SETTINGS = LogSettings(
    segment_bytes=300,
    index_interval_bytes=60,
    compacts=True,
    deletes=False,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
    producer_id_expiration_ms=1 << 60,
)
Pairs = list[tuple[bytes, bytes | None]]
NO_PRODUCER = (-1, -1, -1)


def open_log(folder: Path, settings: LogSettings = SETTINGS) -> PartitionLog:
    return PartitionLog(folder, settings, last_shutdown=LastShutdown.KILLED)


def write(
    log: PartitionLog,
    pairs: Pairs,
    *,
    producer: tuple[int, int, int] = NO_PRODUCER,
    is_transactional: bool = False,
    codec: int = 0,
) -> bool:
    """Write one batch; whether it was a duplicate."""
    records = [Record(0, NOW_MS + i, key, value) for i, (key, value) in enumerate(pairs)]
    producer_id, producer_epoch, base_sequence = producer
    batch = encode_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )
    return append(log, batch).is_duplicate


def end_transaction(
    log: PartitionLog, producer_id: int, kind: ControlType, producer_epoch: int = 0
) -> None:
    marker = encode_control_batch(
        kind,
        timestamp=NOW_MS,
        coordinator_epoch=0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    append_marker(log, marker)


def fill(log: PartitionLog) -> None:
    """Enough that everything before lies in sealed segments."""
    for number in range(8):
        write(log, [(b"filler", b"%d" % number * 40)])


def compact(log: PartitionLog, now_ms: int = NOW_MS) -> CleanJob | None:
    job = log.due_cleaning(now_ms, stable_offset=log.end_offset)
    if job is not None:
        job.run()
        log.on_cleaned(job)
    return job


def records_of(log: PartitionLog, offset: int = 0) -> list[Record]:
    """All records, read as a consumer would."""
    records: list[Record] = []
    while offset < log.end_offset:
        data = memoryview(bytes(log.read(offset, 500, upper_offset=log.end_offset)))
        if not data:
            break
        for batch in iter_batches(data):
            batch.check_crc()
            if not batch.is_control:
                records += [r for r in decode_records(batch) if r.offset >= offset]
            offset = batch.next_offset
    return records


def latest(records: Iterable[Record]) -> dict[bytes | None, tuple[int, bytes | None]]:
    return {record.key: (record.offset, record.value) for record in records}


keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
values = st.one_of(st.none(), st.binary(min_size=1, max_size=60))
batches = st.lists(st.lists(st.tuples(keys, values), min_size=1, max_size=5), max_size=30)


@given(rounds=st.lists(batches, min_size=1, max_size=3), codec=st.integers(0, 4))
def test_the_last_record_of_each_key_stays(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[Pairs]], codec: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = open_log(folder)
    for number, round_of_batches in enumerate(rounds):
        for pairs in round_of_batches:
            write(log, pairs, codec=codec)
        before = records_of(log)
        end_offset = log.end_offset
        compact(log, NOW_MS + number)
        after = records_of(log)
        assert latest(after) == latest(before)
        assert set(after) <= set(before)
        assert [r.offset for r in after] == sorted({r.offset for r in after})
        assert log.end_offset == end_offset
        cleaned = [record for record in after if record.offset < log.segments[-1].base_offset]
        assert len({record.key for record in cleaned}) == len(cleaned)
        for offset in range(0, end_offset, 3):
            assert records_of(log, offset) == [r for r in after if r.offset >= offset]
    log.close()
    again = open_log(folder)
    assert records_of(again) == after
    assert again.end_offset == end_offset
    again.close()


def test_tombstones_stay_until_their_horizon(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, [(b"gone", b"x"), (b"kept", b"y")])
    write(log, [(b"gone", None)])
    fill(log)
    assert compact(log, NOW_MS) is not None
    found = latest(records_of(log))
    assert found[b"gone"] == (2, None)
    assert found[b"kept"] == (1, b"y")
    assert [r.timestamp for r in records_of(log) if r.key == b"gone"] == [NOW_MS]
    fill(log)
    compact(log, NOW_MS + 999)
    assert b"gone" in latest(records_of(log))
    fill(log)
    compact(log, NOW_MS + 1000)
    assert b"gone" not in latest(records_of(log))
    assert latest(records_of(log))[b"kept"] == (1, b"y")
    log.close()


def test_what_was_aborted_goes_and_what_was_committed_stays(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, [(b"k", b"before")])
    write(log, [(b"k", b"aborted")], producer=(7, 0, 0), is_transactional=True)
    write(log, [(b"c", b"committed")], producer=(8, 0, 0), is_transactional=True)
    end_transaction(log, 7, ControlType.ABORT)
    end_transaction(log, 8, ControlType.COMMIT)
    fill(log)
    compact(log, NOW_MS)
    found = latest(records_of(log))
    assert found[b"k"] == (0, b"before")
    assert found[b"c"] == (2, b"committed")
    assert {producer_id for producer_id, _ in log.producers.items()} == {7, 8}
    log.producers.forget_older_than(NOW_MS + 1)
    fill(log)
    compact(log, NOW_MS + 5)  # what was left of the producer goes
    fill(log)
    compact(log, NOW_MS + 10)  # now the marker has nothing left to end: it gets a horizon
    fill(log)
    compact(log, NOW_MS + 5000)
    markers = [
        batch.producer_id
        for segment in log.segments
        for batch in iter_batches(memoryview(segment.read_at(0, segment.size)))
        if batch.is_control and batch.record_count
    ]
    assert markers == [8]
    log.close()
    again = open_log(tmp_path)
    assert latest(records_of(again))[b"c"] == (2, b"committed")
    again.close()


def test_what_was_aborted_in_a_later_segment_supersedes_nothing(tmp_path: Path) -> None:
    """The segment with the aborted records is compacted, that with their marker is active."""
    log = open_log(tmp_path)
    write(log, [(b"k", b"committed")])
    write(log, [(b"k", b"aborted")], producer=(7, 0, 0), is_transactional=True)
    fill(log)
    log.roll()
    end_transaction(log, 7, ControlType.ABORT)
    for number in range(3):
        compact(log, NOW_MS + number)
        assert latest(records_of(log))[b"k"] == (0, b"committed")
        fill(log)
    log.close()
    again = open_log(tmp_path)
    assert latest(records_of(again))[b"k"] == (0, b"committed")
    again.close()


def test_what_is_left_of_an_aborted_transaction_aborts_no_later_one(tmp_path: Path) -> None:
    """In the second protocol a marker has the next epoch, and is the producer's last batch."""
    log = open_log(tmp_path)
    write(log, [(b"k", b"aborted")], producer=(7, 0, 0), is_transactional=True)
    end_transaction(log, 7, ControlType.ABORT, producer_epoch=1)
    for now_ms in (NOW_MS, NOW_MS + 5, NOW_MS + 5000, NOW_MS + 9000):
        fill(log)
        compact(log, now_ms)
    committed = log.end_offset
    write(log, [(b"k", b"committed")], producer=(7, 1, 0), is_transactional=True)
    end_transaction(log, 7, ControlType.COMMIT, producer_epoch=2)
    found = log.read(0, 1 << 20, upper_offset=log.end_offset)
    assert log.find_aborted(0, found, log.end_offset) == []
    for now_ms in (NOW_MS + 9001, NOW_MS + 9002):
        fill(log)
        compact(log, now_ms)
        assert latest(records_of(log))[b"k"] == (committed, b"committed")
    log.close()


def read_committed(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    """The last value of each key for a consumer, which drops aborted records itself."""
    found: dict[bytes | None, bytes | None] = {}
    offset = 0
    while offset < log.end_offset:
        piece = log.read(offset, 500, upper_offset=log.end_offset)
        ahead = log.find_aborted(offset, piece, log.end_offset)
        aborted: set[int] = set()
        for batch in iter_batches(memoryview(bytes(piece))):
            records = decode_records(batch)
            aborted |= {e.producer_id for e in ahead if e.first_offset < batch.next_offset}
            ahead = [e for e in ahead if e.first_offset >= batch.next_offset]
            if batch.is_control:
                if records and decode_control(records[0]).type == ControlType.ABORT:
                    aborted.discard(batch.producer_id)
            elif batch.producer_id not in aborted:
                found |= {record.key: record.value for record in records}
            offset = batch.next_offset
    return found


class Step(NamedTuple):
    """One transaction, and what happens during it and after it."""

    producer_id: int
    keys: list[bytes]
    commits: bool
    rolls_before_marker: bool
    rolls_after_marker: bool
    # How much later the log is compacted, each time.
    compactions_ms: list[int]


few_keys = st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=2)
times = st.lists(st.sampled_from([1, 2000]), max_size=3)
transactions = st.builds(
    Step, st.sampled_from([7, 8]), few_keys, st.booleans(), st.booleans(), st.booleans(), times
)


@pytest.mark.parametrize("is_bumped", [False, True])
@settings(max_examples=settings().max_examples // 4)
@given(steps=st.lists(transactions, max_size=8))
def test_consumers_find_the_last_committed_record_of_each_key(
    is_bumped: bool, steps: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With markers of either protocol, which have the epoch of the transaction or the next one."""
    log = open_log(tmp_path_factory.mktemp("log"))
    epochs, sequences, now_ms = {7: 0, 8: 0}, {7: 0, 8: 0}, NOW_MS
    committed: dict[bytes, bytes] = {}
    for step in steps:
        producer_id = step.producer_id
        for key in step.keys:
            value = b"%d" % log.end_offset
            identity = producer_id, epochs[producer_id], sequences[producer_id]
            write(log, [(key, value)], producer=identity, is_transactional=True)
            sequences[producer_id] += 1
            committed |= {key: value} if step.commits else {}
        if step.rolls_before_marker:
            log.roll()
        if is_bumped:
            epochs[producer_id], sequences[producer_id] = epochs[producer_id] + 1, 0
        kind = ControlType.COMMIT if step.commits else ControlType.ABORT
        end_transaction(log, producer_id, kind, producer_epoch=epochs[producer_id])
        if step.rolls_after_marker:
            log.roll()
        for later_ms in step.compactions_ms:
            now_ms += later_ms
            compact(log, now_ms)
            assert read_committed(log) == committed
    log.close()


def test_an_open_transaction_holds_compaction_up(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, [(b"k", b"1")])
    write(log, [(b"k", b"2")], producer=(7, 0, 0), is_transactional=True)
    fill(log)
    assert log.due_cleaning(NOW_MS, stable_offset=1) is None
    log.close()


def test_a_producers_last_batch_is_known_when_its_records_are_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, [(b"k", b"1"), (b"j", b"1")], producer=(7, 0, 0))
    write(log, [(b"k", b"2"), (b"j", b"2")], producer=(9, 0, 0))
    write(log, [(b"k", b"3"), (b"j", b"3")])
    fill(log)
    compact(log)
    assert b"1" not in {record.value for record in records_of(log)}
    log.close()
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()  # so that the log itself has to tell
    again = open_log(tmp_path)
    assert write(again, [(b"k", b"1"), (b"j", b"1")], producer=(7, 0, 0))
    assert not write(again, [(b"k", b"4")], producer=(7, 0, 2))
    again.close()


def test_small_segments_become_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(40):
        write(log, [(b"same", b"%d" % number * 10)])
    many = len(log.segments)
    compact(log)
    assert len(log.segments) < many / 4
    log.close()


class Crash(Exception):
    pass


@pytest.mark.parametrize("steps", range(12))
def test_no_crash_makes_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    log = open_log(tmp_path, replace(SETTINGS, segment_bytes=700))
    for number in range(60):
        write(log, [(b"k%d" % (number % 7), b"%d" % number * 5), (b"only%d" % number, b"v")])
    expected = latest(records_of(log))
    end_offset = log.end_offset
    job = log.due_cleaning(NOW_MS, stable_offset=log.end_offset)
    assert job is not None
    job.run()
    left = steps

    def step(*_: object) -> None:
        nonlocal left
        if left == 0:
            raise Crash
        left -= 1

    ordinary_unlink, ordinary_replace = Path.unlink, Path.replace

    def unlink(path: Path, missing_ok: bool = False) -> None:
        step()
        ordinary_unlink(path, missing_ok=missing_ok)

    def replaced(path: Path, target: str | os.PathLike[str]) -> Path:
        step()
        return ordinary_replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        patch.setattr(Path, "replace", replaced)
        try:
            log.on_cleaned(job)
        except Crash:
            assert left == 0
    again = open_log(tmp_path)
    assert latest(records_of(again)) == expected
    assert again.end_offset == end_offset
    assert not list(tmp_path.glob(f"*{cleaning.SWAP_SUFFIX}"))
    assert not list(tmp_path.glob(f"*{cleaning.CLEANED_SUFFIX}"))
    again.close()


def test_what_compaction_removed_at_the_begin_is_not_missing(tmp_path: Path) -> None:
    marks = LogEndFile(tmp_path, is_trusted=True)
    key = (UUID(int=1), 0)
    log = PartitionLog(
        tmp_path / "t", SETTINGS, last_shutdown=LastShutdown.CLEANLY, end_mark=marks.of(key)
    )
    for number in range(30):
        write(log, [(b"key", b"%d" % number * 60)])
    compact(log)
    assert min(int(path.stem) for path in (tmp_path / "t").glob("*.log")) > 0
    for ended in (LastShutdown.KILLED, LastShutdown.CLEANLY):
        mark = LogEndFile(tmp_path, is_trusted=True).of(key)
        again = PartitionLog(tmp_path / "t", SETTINGS, last_shutdown=ended, end_mark=mark)
        assert (again.truncation_marker.is_set, again.lacks_start) == (False, False)
        assert (again.start_offset, again.end_offset) == (0, 30)
        again.close()


def test_a_job_does_not_count_once_the_log_was_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(20):
        write(log, [(b"same", b"%d" % number * 10)])
    job = log.due_cleaning(NOW_MS, stable_offset=log.end_offset)
    assert job is not None
    job.run()
    log.truncate_to(3)
    log.on_cleaned(job)
    assert [record.offset for record in records_of(log)] == [0, 1, 2]
    assert not list(tmp_path.glob(f"*{cleaning.CLEANED_SUFFIX}"))
    log.close()


def test_a_follower_takes_what_compaction_left(tmp_path: Path) -> None:
    log = open_log(tmp_path / "leader")
    for number in range(30):
        write(log, [(b"k%d" % (number % 3), b"%d" % number * 10)])
    compact(log)
    follower = open_log(tmp_path / "follower")
    while follower.end_offset < log.end_offset:
        data = log.read(follower.end_offset, 400, upper_offset=log.end_offset)
        follower.append_fetched(memoryview(bytearray(bytes(data))))
    assert records_of(follower) == records_of(log)
    log.close()
    follower.close()


def test_more_keys_than_fit_take_several_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "MOST_KEYS", 3)
    log = open_log(tmp_path)
    for number in range(60):
        write(log, [(b"k%d" % (number % 10), b"%d" % number * 5)])
    expected = latest(records_of(log))
    passes = 0
    while compact(log) is not None:
        passes += 1
        assert latest(records_of(log)) == expected
        assert passes < 60
    assert passes > 3
    log.close()


def test_young_records_and_clean_logs_are_left_alone(tmp_path: Path) -> None:
    patient = replace(SETTINGS, min_compaction_lag_ms=500, min_cleanable_dirty_ratio=0.5)
    log = open_log(tmp_path, patient)
    for number in range(20):
        write(log, [(b"same", b"%d" % number * 10)])
    assert log.due_cleaning(NOW_MS + 499, stable_offset=log.end_offset) is None
    assert compact(log, NOW_MS + 501) is not None
    assert log.due_cleaning(NOW_MS + 501, stable_offset=log.end_offset) is None
    log.settings = replace(patient, compacts=False)
    fill(log)
    assert log.due_cleaning(NOW_MS + 10_000, stable_offset=log.end_offset) is None
    log.close()
