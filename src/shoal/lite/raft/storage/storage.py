"""Where a member of the quorum keeps what it must not forget: files, forced to the disk.

    <folder>/
        member.json                        who this disk belongs to; made when it is formatted
        quorum-state.json                  epoch, vote and leader
        __cluster_metadata-0/
            00000000000000000042.log       entries from offset 42 on
            00000000000000000042-0000000003.checkpoint
                                           the state after 42 records, the last one of epoch 3

Rules of this file:
- What `perform` returned for survives a power loss.
- A snapshot is on the disk before the part of the log goes that it stands for. Opening finishes
  what a crash interrupted in between.
- After a failed write or sync nothing works any more. The kernel may have dropped the data and
  forgotten the error, so that trying again succeeds with nothing on the disk.
"""

import os
from pathlib import Path

from shoal.lite.raft.actions import (
    AppendEntries,
    LoadSnapshot,
    PersistVote,
    SaveSnapshot,
    StorageAction,
    TruncateTo,
)
from shoal.lite.raft.errors import NotFormatted, StorageFailed, require
from shoal.lite.raft.model import (
    Entry,
    QuorumState,
    ReplicaKey,
    Snapshot,
    SnapshotId,
    StoredState,
    Voters,
)
from shoal.lite.raft.storage.codec import decode_snapshot
from shoal.lite.raft.storage.log_file import LogFile, create_log, log_path
from shoal.lite.raft.storage.small_files import (
    MEMBER_NAME,
    read_member,
    read_quorum_state,
    write_member,
    write_quorum_state,
)
from shoal.lite.storage.files import DamagedFile, replace_file, sync_folder
from shoal.model.errors import WireError

LOG_FOLDER = "__cluster_metadata-0"
_SNAPSHOT_SUFFIX = ".checkpoint"
_NOTHING = SnapshotId(0, 0)


def format_storage(folder: Path, key: ReplicaKey, voters: Voters) -> None:
    """Make `folder` the disk of a new member of a quorum that begins with these voters.

    Done once in the life of a member. When a disk is lost, its member is removed from the
    quorum and a new one added, with a directory id of its own.
    """
    if (folder / MEMBER_NAME).exists():
        raise DamagedFile(f"{folder} is the disk of a member already")
    logs = folder / LOG_FOLDER
    logs.mkdir(parents=True, exist_ok=True)
    create_log(logs, 0)
    write_quorum_state(folder, QuorumState())
    sync_folder(folder)
    # Last: with this file the folder is whole.
    write_member(folder, key, voters)


class FileStorage:
    """The open disk of a member. One process has it open at a time."""

    def __init__(self, folder: Path, key: ReplicaKey, log: LogFile) -> None:
        """Use `open`."""
        self.key = key
        self._folder = folder
        self._log = log
        self._failure: str | None = None

    @classmethod
    def open(cls, folder: Path) -> tuple["FileStorage", StoredState]:
        """Open what `format_storage` made, and repair what a crash left; returns what is there."""
        if not (folder / MEMBER_NAME).exists():
            raise NotFormatted(
                f"{folder} is not the disk of a member",
                remedy="if the disk was lost, remove its member from the quorum and add a new one",
            )
        key, voters = read_member(folder)
        quorum = read_quorum_state(folder)
        logs = folder / LOG_FOLDER
        snapshot = _newest_snapshot(logs)
        start = _NOTHING if snapshot is None else snapshot.id
        log = LogFile.newest(logs)
        try:
            entries = log.recover()
            if log.base_offset != start.end_offset:
                log, entries = _begin_behind(logs, start, log, _tail_behind(start, log, entries))
            _drop_all_but(logs, start)
        except BaseException:
            log.close()
            raise
        return cls(folder, key, log), StoredState(voters, quorum, snapshot, tuple(entries))

    @property
    def end_offset(self) -> int:
        """Where the log ends, all of it on the disk."""
        return self._log.end_offset

    def perform(self, action: StorageAction) -> None:
        """Do it, and return when it would survive a power loss. Raises `StorageFailed`."""
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
                require(base_offset == self.end_offset, f"a gap before {base_offset}")
                self._log.append(entries)
            case TruncateTo(offset):
                self._log.truncate_to(offset)
            case SaveSnapshot(snapshot):
                self._keep(snapshot, tail=self._log.bytes_from(snapshot.id.end_offset))
            case LoadSnapshot(snapshot):
                self._keep(snapshot, tail=b"")

    def _keep(self, snapshot: Snapshot, *, tail: bytes) -> None:
        """Keep a snapshot, and of the log no more than `tail`, which follows it."""
        logs = self._folder / LOG_FOLDER
        replace_file(_snapshot_path(logs, snapshot.id), snapshot.data)
        self._log, _ = _begin_behind(logs, snapshot.id, self._log, tail)
        _drop_all_but(logs, snapshot.id)

    def close(self) -> None:
        self._log.close()


def _newest_snapshot(logs: Path) -> Snapshot | None:
    ids = [_snapshot_id(path) for path in logs.glob(f"*{_SNAPSHOT_SUFFIX}")]
    if not ids:
        return None
    path = _snapshot_path(logs, max(ids))
    data = path.read_bytes()
    try:
        decode_snapshot(data)
    except WireError as error:
        # It was whole when it got its name, and the log that it stands for is gone.
        raise DamagedFile(f"{path} is damaged: {error}") from error
    return Snapshot(max(ids), data)


def _tail_behind(start: SnapshotId, log: LogFile, entries: list[Entry]) -> bytes:
    """What follows a snapshot in a log that begins before it.

    Nothing, if the log does not go through the end of the snapshot: then its entries are of
    another history, and the snapshot was loaded instead of them.
    """
    if log.base_offset > start.end_offset:
        raise DamagedFile(f"{log.path} begins behind the last snapshot, {start.end_offset}")
    if not log.has_boundary(start.end_offset):
        return b""
    offset, epoch = log.base_offset, 0
    for entry in entries:
        if offset == start.end_offset:
            break
        offset, epoch = offset + entry.count, entry.epoch
    return log.bytes_from(start.end_offset) if epoch == start.epoch else b""


def _begin_behind(
    logs: Path, start: SnapshotId, old: LogFile, tail: bytes
) -> tuple[LogFile, list[Entry]]:
    """Put `tail` into a log of its own; returns it, open, with its entries."""
    create_log(logs, start.end_offset, tail)
    fresh = LogFile(logs, start.end_offset)
    entries = fresh.recover()
    old.close()
    return fresh, entries


def _drop_all_but(logs: Path, kept: SnapshotId) -> None:
    """Remove logs and snapshots that others have replaced, and files that were never finished."""
    needed = {log_path(logs, kept.end_offset), _snapshot_path(logs, kept)}
    for path in logs.iterdir():
        if path not in needed:
            path.unlink()


def _snapshot_path(logs: Path, snapshot_id: SnapshotId) -> Path:
    return logs / f"{snapshot_id.end_offset:020d}-{snapshot_id.epoch:010d}{_SNAPSHOT_SUFFIX}"


def _snapshot_id(path: Path) -> SnapshotId:
    end_offset, epoch = path.stem.split("-")
    return SnapshotId(int(end_offset), int(epoch))
