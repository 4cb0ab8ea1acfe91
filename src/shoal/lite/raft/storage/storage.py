"""The persistent storage of a quorum member: files, synced to the disk.

    <folder>/
        member.json                        the identity of the member; written by `format_storage`
        quorum-state.json                  epoch, vote and leader
        __cluster_metadata-0/
            00000000000000000042.log       entries from offset 42 on
            00000000000000000042-0000000003.checkpoint
                                           the state after 42 records, the last one is of epoch 3

Rules of this file:
- When `perform` returns, its action survives a power loss.
- A snapshot is on the disk before the part of the log that it covers is deleted. `open` completes
  what a crash interrupted in between.
- After a failed write or sync every further action fails. The kernel may have dropped the data
  and cleared the error, so that a retry succeeds with nothing on the disk.
"""

import os
from pathlib import Path

from shoal.lite.raft.actions import (
    AppendEntries,
    LoadSnapshot,
    PersistVote,
    SaveSnapshot,
    StorageAction,
    TruncateEntries,
)
from shoal.lite.raft.errors import NotFormatted, StorageFailed, require
from shoal.lite.raft.model import (
    QuorumState,
    RaftEntry,
    RaftSnapshot,
    RaftSnapshotId,
    ReplicaKey,
    StoredState,
    Voters,
)
from shoal.lite.raft.storage.codec import decode_snapshot
from shoal.lite.raft.storage.log_file import LogFile, create_log, log_path
from shoal.lite.raft.storage.small_files import (
    MEMBER_NAME,
    RESTORE_DISK,
    read_member,
    read_quorum_state,
    write_member,
    write_quorum_state,
)
from shoal.lite.storage.files import DamagedFile, replace_file, sync_folder
from shoal.model.errors import WireError

LOG_FOLDER = "__cluster_metadata-0"
_SNAPSHOT_SUFFIX = ".checkpoint"
_NO_SNAPSHOT = RaftSnapshotId(0, 0)


def format_storage(folder: Path, key: ReplicaKey, voters: Voters) -> None:
    """Make `folder` the disk of a new member of a quorum that begins with these voters.

    Done once per member. When a disk is lost, its member is removed from the quorum, and a new
    one with another directory id is added.
    """
    if (folder / MEMBER_NAME).exists():
        raise DamagedFile(f"{folder} is already formatted as the disk of a quorum member")
    logs = folder / LOG_FOLDER
    logs.mkdir(parents=True, exist_ok=True)
    create_log(logs, 0)
    write_quorum_state(folder, QuorumState())
    sync_folder(folder)
    # Last: this file marks the folder as complete.
    write_member(folder, key, voters)


class FileStorage:
    """The open disk of a member. One process at a time has it open."""

    def __init__(self, folder: Path, key: ReplicaKey, log: LogFile) -> None:
        """Use `open`."""
        self.key = key
        self._folder = folder
        self._log = log
        self._failure: str | None = None

    @classmethod
    def open(cls, folder: Path) -> tuple["FileStorage", StoredState]:
        """Open a formatted disk, complete what a crash interrupted, and return its state."""
        if not (folder / MEMBER_NAME).exists():
            raise NotFormatted(
                f"{folder} is not formatted as the disk of a quorum member",
                remedy="if the disk was lost, remove its member from the quorum and add a new one",
            )
        key, voters = read_member(folder)
        quorum = read_quorum_state(folder)
        logs = folder / LOG_FOLDER
        snapshot = _newest_snapshot(logs)
        start = _NO_SNAPSHOT if snapshot is None else snapshot.id
        log = LogFile.open_newest(logs)
        try:
            entries = log.recover()
            if log.base_offset != start.end_offset:
                log, entries = _start_log_after(logs, start, log, _tail_after(start, log, entries))
            _remove_all_except(logs, start)
        except BaseException:
            log.close()
            raise
        return cls(folder, key, log), StoredState(voters, quorum, snapshot, tuple(entries))

    @property
    def end_offset(self) -> int:
        """The end offset of the log, all of which is on the disk."""
        return self._log.end_offset

    def perform(self, action: StorageAction) -> None:
        """Perform the action; when it returns, it survives a power loss. Raises `StorageFailed`."""
        if self._failure is not None:
            raise StorageFailed(self._failure)
        try:
            self._perform(action)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            self._failure = f"the disk of {self._folder} failed: {reason}"
            raise StorageFailed(self._failure) from error

    def _perform(self, action: StorageAction) -> None:
        match action:
            case PersistVote(state):
                write_quorum_state(self._folder, state)
            case AppendEntries(base_offset, entries):
                require(
                    base_offset == self.end_offset,
                    f"the log ends at {self.end_offset}, but entries at {base_offset} are appended",
                )
                self._log.append(entries)
            case TruncateEntries(offset):
                self._log.truncate_to(offset)
            case SaveSnapshot(snapshot):
                self._store_snapshot(snapshot, tail=self._log.bytes_from(snapshot.id.end_offset))
            case LoadSnapshot(snapshot):
                self._store_snapshot(snapshot, tail=b"")

    def _store_snapshot(self, snapshot: RaftSnapshot, *, tail: bytes) -> None:
        """Store a snapshot, and keep only `tail`, the part of the log after it."""
        logs = self._folder / LOG_FOLDER
        replace_file(_snapshot_path(logs, snapshot.id), snapshot.data)
        self._log, _ = _start_log_after(logs, snapshot.id, self._log, tail)
        _remove_all_except(logs, snapshot.id)

    def close(self) -> None:
        self._log.close()


def _newest_snapshot(logs: Path) -> RaftSnapshot | None:
    ids = [_snapshot_id(path) for path in logs.glob(f"*{_SNAPSHOT_SUFFIX}")]
    if not ids:
        return None
    path = _snapshot_path(logs, max(ids))
    data = path.read_bytes()
    try:
        decode_snapshot(data)
    except WireError as error:
        # It was complete when it was renamed, and the log that it covers is deleted.
        raise DamagedFile(f"{path} is damaged: {error}", remedy=RESTORE_DISK) from error
    return RaftSnapshot(max(ids), data)


def _tail_after(start: RaftSnapshotId, log: LogFile, entries: list[RaftEntry]) -> bytes:
    """The part after a snapshot of a log that begins before it.

    Empty, if the log has no entry boundary at the end of the snapshot or another epoch there:
    then its entries are of another history, and the snapshot replaced them.
    """
    if log.base_offset > start.end_offset:
        raise DamagedFile(
            f"{log.path} begins after offset {start.end_offset}, where the last snapshot ends: "
            "entries between them are missing",
            remedy=RESTORE_DISK,
        )
    if not log.has_boundary(start.end_offset):
        return b""
    offset, epoch = log.base_offset, 0
    for entry in entries:
        if offset == start.end_offset:
            break
        offset, epoch = offset + entry.count, entry.epoch
    return log.bytes_from(start.end_offset) if epoch == start.epoch else b""


def _start_log_after(
    logs: Path, start: RaftSnapshotId, old: LogFile, tail: bytes
) -> tuple[LogFile, list[RaftEntry]]:
    """Write `tail` into a new log file; returns it, open, with its entries."""
    create_log(logs, start.end_offset, tail)
    fresh = LogFile(logs, start.end_offset)
    entries = fresh.recover()
    old.close()
    return fresh, entries


def _remove_all_except(logs: Path, kept: RaftSnapshotId) -> None:
    """Remove replaced logs and snapshots, and files that were never completed."""
    needed = {log_path(logs, kept.end_offset), _snapshot_path(logs, kept)}
    for path in logs.iterdir():
        if path not in needed:
            path.unlink()


def _snapshot_path(logs: Path, snapshot_id: RaftSnapshotId) -> Path:
    return logs / f"{snapshot_id.end_offset:020d}-{snapshot_id.epoch:010d}{_SNAPSHOT_SUFFIX}"


def _snapshot_id(path: Path) -> RaftSnapshotId:
    end_offset, epoch = path.stem.split("-")
    return RaftSnapshotId(int(end_offset), int(epoch))
