"""The files of a member: what survives which crash, and what is refused."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from shoal.lite.raft.actions import (
    AppendEntries,
    LoadSnapshot,
    PersistVote,
    SaveSnapshot,
    SendToPeer,
    StorageAction,
    TruncateEntries,
)
from shoal.lite.raft.errors import NotFormatted, RaftInvariantViolated, StorageFailed
from shoal.lite.raft.messages import VoteResponse
from shoal.lite.raft.model import (
    QuorumState,
    RaftEntry,
    RaftSnapshot,
    RaftSnapshotId,
    ReplicaKey,
    StoredState,
    Voter,
    Voters,
)
from shoal.lite.raft.node import RaftNode
from shoal.lite.raft.storage import storage
from shoal.lite.raft.storage.codec import decode_snapshot, encode_entries, encode_snapshot
from shoal.lite.raft.storage.driver import perform_actions
from shoal.lite.raft.storage.storage import FileStorage, format_storage
from shoal.lite.storage.files import DamagedFile

KEY = ReplicaKey(100, UUID(int=5))
VOTERS = Voters([Voter(100, UUID(int=5), "localhost", 19093), Voter(101, UUID(int=6))])
# Of a batch; like its base offset they are outside of the checksum.
EPOCH_BYTES = range(12, 16)
A, B, C, D = (RaftEntry(epoch, (b"a", b"%d" % epoch)) for epoch in (1, 1, 2, 5))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "member"
    format_storage(folder, KEY, VOTERS)
    return folder


@contextmanager
def open_storage(folder: Path) -> Iterator[tuple[FileStorage, StoredState]]:
    found, stored = FileStorage.open(folder)
    try:
        yield found, stored
    finally:
        found.close()


def perform(folder: Path, *actions: StorageAction) -> None:
    with open_storage(folder) as (disk, _):
        for action in actions:
            disk.perform(action)


def read_stored(folder: Path) -> StoredState:
    with open_storage(folder) as (disk, stored):
        start = 0 if stored.snapshot is None else stored.snapshot.id.end_offset
        assert disk.end_offset == start + sum(entry.count for entry in stored.entries)
        return stored


def snapshot_at(end_offset: int, epoch: int) -> RaftSnapshot:
    return RaftSnapshot(RaftSnapshotId(end_offset, epoch), encode_snapshot(VOTERS, (b"s",), epoch))


def test_a_new_disk_is_empty_and_knows_whose_it_is(folder: Path) -> None:
    with open_storage(folder) as (disk, stored):
        assert disk.key == KEY
        assert disk.end_offset == 0
    assert stored == StoredState(VOTERS)


def test_everything_comes_back(folder: Path) -> None:
    state = QuorumState(7, ReplicaKey(101, UUID(int=6)), 101)
    perform(folder, PersistVote(state), AppendEntries(0, (A, B)), AppendEntries(4, (C,)))
    assert read_stored(folder) == StoredState(VOTERS, state, None, (A, B, C))


def test_a_cut_log_goes_on_where_it_was_cut(folder: Path) -> None:
    perform(folder, AppendEntries(0, (A, B, C)), TruncateEntries(2), AppendEntries(2, (D,)))
    assert read_stored(folder).entries == (A, D)
    perform(folder, TruncateEntries(4), TruncateEntries(0))
    assert read_stored(folder).entries == ()


def test_the_file_is_a_segment_of_record_batches(folder: Path) -> None:
    perform(folder, AppendEntries(0, (A, B)))
    [path] = (folder / storage.LOG_FOLDER).glob("*.log")
    assert path.name == "00000000000000000000.log"
    assert path.read_bytes() == encode_entries((A, B), 0)


# Crashes


@pytest.mark.slow
def test_a_torn_end_is_cut_at_whatever_byte(folder: Path) -> None:
    perform(folder, PersistVote(QuorumState(5)), AppendEntries(0, (A, B, C)))
    [path] = (folder / storage.LOG_FOLDER).glob("*.log")
    whole = path.read_bytes()
    ends = [len(encode_entries((A, B, C)[:count], 0)) for count in range(4)]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        expected = sum(end <= length for end in ends) - 1
        assert read_stored(folder).entries == (A, B, C)[:expected]
        assert path.stat().st_size == ends[expected]
        perform(folder, AppendEntries(2 * expected, (D,)))
        assert read_stored(folder).entries == (*(A, B, C)[:expected], D)


def test_damage_cuts_the_log_before_it(folder: Path) -> None:
    perform(folder, AppendEntries(0, (A, B, C)))
    [path] = (folder / storage.LOG_FOLDER).glob("*.log")
    whole = path.read_bytes()
    start, end = (len(encode_entries((A, B)[:count], 0)) for count in (1, 2))
    random = Random(4)
    for position in range(start, end):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << random.randrange(8)
        path.write_bytes(damaged)
        found = read_stored(folder).entries
        if position - start in EPOCH_BYTES:
            assert len(found) in {1, 2, 3}
        else:
            assert found == (A,)


def test_leftovers_of_an_older_history_do_not_follow_newer_entries(folder: Path) -> None:
    perform(folder, AppendEntries(0, (A, D)))
    [path] = (folder / storage.LOG_FOLDER).glob("*.log")
    # As if a cut had been lost, and what was written after it had not.
    path.write_bytes(encode_entries((A, D), 0) + encode_entries((C,), 4))
    assert read_stored(folder).entries == (A, D)
    path.write_bytes(encode_entries((A,), 0) + encode_entries((C,), 4))
    assert read_stored(folder).entries == (A,)


@pytest.mark.parametrize("crash_at", range(12))
def test_a_crash_around_a_snapshot_leaves_the_old_state_or_the_new(
    folder: Path, crash_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform(folder, PersistVote(QuorumState(5)), AppendEntries(0, (A, B, C)))
    before = read_stored(folder)
    after = {
        "save": StoredState(VOTERS, QuorumState(5), snapshot_at(4, 1), (C,)),
        "load": StoredState(VOTERS, QuorumState(5), snapshot_at(8, 4), ()),
    }
    for name, action in (
        ("save", SaveSnapshot(snapshot_at(4, 1))),
        ("load", LoadSnapshot(snapshot_at(8, 4), (b"s",))),
    ):
        copy = folder.with_name(f"copy-{name}-{crash_at}")
        shutil.copytree(folder, copy)
        crash_after(monkeypatch, crash_at)
        try:
            with open_storage(copy) as (disk, _):
                disk.perform(action)
        except PowerCut:
            pass
        monkeypatch.undo()
        assert read_stored(copy) in (before, after[name])
        if read_stored(copy) == before:
            perform(copy, action)
        assert read_stored(copy) == after[name]
        assert len(list((copy / storage.LOG_FOLDER).iterdir())) == 2


class PowerCut(BaseException):
    """The machine is off."""


def crash_after(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """Let only so many changes of the disk happen from now on."""
    left = [calls]

    def limited(module: object, name: str) -> None:
        real = getattr(module, name)

        def call(*args: object, **kwargs: object) -> object:
            if left[0] == 0:
                raise PowerCut
            left[0] -= 1
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    for name in ("fsync", "pwrite", "ftruncate"):
        limited(os, name)
    for name in ("replace", "unlink"):
        limited(Path, name)


def test_a_loaded_snapshot_replaces_entries_of_another_history(folder: Path) -> None:
    """A crash right after the snapshot got its name: what the log says is not what led to it."""
    perform(folder, PersistVote(QuorumState(5)), AppendEntries(0, (A, B, C)))
    logs = folder / storage.LOG_FOLDER
    for snapshot, entries in (
        (snapshot_at(2, 4), ()),
        (snapshot_at(3, 1), ()),
        (snapshot_at(99, 4), ()),
        (snapshot_at(2, 1), (B, C)),
        (snapshot_at(6, 2), ()),
    ):
        copy = folder.with_name(f"copy-{snapshot.id.end_offset}-{snapshot.id.epoch}")
        shutil.copytree(folder, copy)
        name = f"{snapshot.id.end_offset:020d}-{snapshot.id.epoch:010d}.checkpoint"
        (copy / logs.name / name).write_bytes(snapshot.data)
        assert read_stored(copy) == StoredState(VOTERS, QuorumState(5), snapshot, entries)
        perform(copy, AppendEntries(snapshot.id.end_offset + 2 * len(entries), (D,)))
        assert read_stored(copy).entries == (*entries, D)


# The order of things


class Recorder:
    """Notes what is forced to the disk, and what leaves, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        for name in ("fsync", "pwrite", "ftruncate"):
            self._wrap(monkeypatch, name)

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(os, name)

        def call(*args: object) -> object:
            self.events.append(name)
            return real(*args)

        monkeypatch.setattr(os, name, call)


def test_appending_and_cutting_end_with_a_sync(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_storage(folder) as (disk, _):
        recorder = Recorder(monkeypatch)
        disk.perform(AppendEntries(0, (A, B)))
        assert recorder.events == ["pwrite", "fsync"]
        recorder.events.clear()
        disk.perform(TruncateEntries(2))
        assert recorder.events == ["ftruncate", "fsync"]
        recorder.events.clear()
        disk.perform(PersistVote(QuorumState(3)))
        # The file beside, then the folder with the new name.
        assert recorder.events == ["pwrite", "fsync", "fsync"]


def test_what_is_found_is_forced_to_the_disk_before_it_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform(folder, AppendEntries(0, (A,)))
    recorder = Recorder(monkeypatch)
    read_stored(folder)
    assert "fsync" in recorder.events


def test_a_vote_is_on_the_disk_before_it_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_storage(folder) as (disk, stored):
        node = RaftNode(KEY, stored, now_ms=0, random=Random(1))
        recorder = Recorder(monkeypatch)

        def send(action: object) -> None:
            assert isinstance(action, SendToPeer)
            recorder.events.append(type(action.message).__name__)

        node.tick(5000)
        perform_actions(node, disk, send, 5000)
        # A pre-vote promises nothing.
        assert recorder.events == ["VoteRequest"]
        recorder.events.clear()
        node.receive(5000, 101, VoteResponse(0, None, granted=True, pre_vote=True))
        perform_actions(node, disk, send, 5000)
        assert recorder.events == ["pwrite", "fsync", "fsync", "VoteRequest"]
    assert read_stored(folder).quorum == QuorumState(1, KEY, None)


# What is refused


def test_an_empty_folder_is_no_member(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(NotFormatted, match="not formatted as the disk of a quorum member"):
        FileStorage.open(tmp_path)
    with pytest.raises(DamagedFile, match="already"):
        format_storage(folder, KEY, VOTERS)


def test_a_missing_log_is_no_empty_log(folder: Path) -> None:
    [path] = (folder / storage.LOG_FOLDER).glob("*.log")
    path.unlink()
    with pytest.raises(DamagedFile, match="missing"):
        FileStorage.open(folder)


@pytest.mark.parametrize("name", ["quorum-state.json", "member.json"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (b"", "damaged"),
        (b"{", "damaged"),
        (b"[]", "damaged"),
        (b'{"format": 1}', "damaged"),
        (b"\x00" * 80, "damaged"),
        (b'{"format": 2, "checksum": 0}', "format 2, this version of shoal knows 1"),
        (b'{"format": 1, "epoch": 3, "checksum": 0}', "checksum"),
    ],
)
def test_a_damaged_small_file_is_named(folder: Path, name: str, damage: bytes, words: str) -> None:
    (folder / name).write_bytes(damage)
    with pytest.raises(DamagedFile, match=words) as caught:
        FileStorage.open(folder)
    assert name in str(caught.value)
    assert caught.value.remedy


def test_a_lost_vote_is_an_error(folder: Path) -> None:
    (folder / "quorum-state.json").unlink()
    with pytest.raises(DamagedFile, match=r"quorum-state\.json is missing"):
        FileStorage.open(folder)


def test_no_changed_digit_passes(folder: Path) -> None:
    perform(folder, PersistVote(QuorumState(41, KEY, None)))
    path = folder / "quorum-state.json"
    content = json.loads(path.read_bytes())
    assert (content["format"], content["epoch"]) == (1, 41)
    path.write_bytes(path.read_bytes().replace(b"41", b"40"))
    with pytest.raises(DamagedFile, match="checksum"):
        FileStorage.open(folder)


def test_a_log_that_is_ahead_of_the_votes_is_an_error(folder: Path) -> None:
    perform(folder, PersistVote(QuorumState(3)), AppendEntries(0, (A, D)))
    with pytest.raises(
        RaftInvariantViolated, match="epoch 5, but the stored quorum state is of epoch"
    ):
        RaftNode(KEY, read_stored(folder), now_ms=0, random=Random(1))


def test_a_damaged_snapshot_is_an_error(folder: Path) -> None:
    perform(folder, AppendEntries(0, (A, B)), SaveSnapshot(snapshot_at(4, 1)))
    [path] = (folder / storage.LOG_FOLDER).glob("*.checkpoint")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match="checkpoint is damaged"):
        FileStorage.open(folder)
    path.unlink()
    with pytest.raises(DamagedFile, match="where the last snapshot ends"):
        FileStorage.open(folder)


def test_a_gap_is_refused(folder: Path) -> None:
    with (
        open_storage(folder) as (disk, _),
        pytest.raises(RaftInvariantViolated, match="entries at 3 are appended"),
    ):
        disk.perform(AppendEntries(3, (A,)))


def test_nothing_works_after_a_failed_sync(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with open_storage(folder) as (disk, _):
        disk.perform(AppendEntries(0, (A,)))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(StorageFailed, match="Input/output error"):
                disk.perform(AppendEntries(2, (B,)))
        with pytest.raises(StorageFailed, match="failed"):
            disk.perform(PersistVote(QuorumState(9)))
    assert read_stored(folder).quorum == QuorumState()


def test_a_member_with_real_files_keeps_its_promises(tmp_path: Path) -> None:
    """One voter, killed between any two of its lives, with a snapshot now and then."""
    folder = tmp_path / "single"
    format_storage(folder, KEY, Voters([Voter(KEY.id, KEY.directory)]))
    promised: list[bytes] = []
    for life in range(6):
        with open_storage(folder) as (disk, stored):
            node = RaftNode(KEY, stored, now_ms=life, random=Random(life))
            perform_actions(node, disk, lambda _: None, life)
            assert node.is_leader
            assert node.epoch == life + 1
            for number in range(3):
                record = b"%d.%d" % (life, number)
                end_offset = node.propose(life, [record])
                perform_actions(node, disk, lambda _: None, life)
                assert node.high_watermark == end_offset
                promised.append(record)
            if life % 2:
                node.save_snapshot(node.high_watermark, promised)
                perform_actions(node, disk, lambda _: None, life)
                assert node.log.start_offset == node.high_watermark
            assert node.next_deadline_ms() is None
    stored = read_stored(folder)
    assert stored.snapshot is not None
    assert list(decode_snapshot(stored.snapshot.data).records) == promised
