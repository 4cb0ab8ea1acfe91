"""The disks of controllers and brokers.

Rules of this file:
- A controller's disk is always synced: production forces every vote and entry to it.
- A broker's logs are written and not synced. A kill keeps what was written; a power loss may
  take it.
- A fuse ends the process after a number of writes, so that everything can end between two of
  them.
"""

from random import Random
from uuid import UUID

from shoal.lite.raft.actions import (
    AppendEntries,
    LoadSnapshot,
    PersistVote,
    SaveSnapshot,
    StorageAction,
    TruncateTo,
)
from shoal.lite.raft.model import Entry, QuorumState, Snapshot, StoredState, Voters
from shoal.lite.simulation.errors import ProcessKilled
from shoal.lite.simulation.log import SimulatedLog

# A partition: its topic's id, and its number.
Key = tuple[UUID, int]


class Fuse:
    """Ends the process after so many writes; not at all, as long as it is not lit."""

    def __init__(self) -> None:
        self.writes_left: int | None = None

    def burn(self) -> None:
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left <= 0:
                self.writes_left = None
                raise ProcessKilled


class QuorumDisk:
    """What a controller would find if it started now."""

    def __init__(self, voters: Voters, fuse: Fuse) -> None:
        self._voters = voters
        self._fuse = fuse
        self.quorum = QuorumState()
        self.snapshot: Snapshot | None = None
        # By the offset where it begins, in order.
        self.entries: dict[int, Entry] = {}
        self.end_offset = 0

    @property
    def start_offset(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.id.end_offset

    def stored(self) -> StoredState:
        return StoredState(self._voters, self.quorum, self.snapshot, tuple(self.entries.values()))

    def holds(self, base_offset: int, entry: Entry) -> bool:
        """Whether an entry is on the disk, or in the snapshot instead."""
        if base_offset + entry.count <= self.start_offset:
            return True
        return self.entries.get(base_offset) == entry

    def last_epoch_before(self, offset: int) -> int:
        """The epoch of the entry that ends at `offset`."""
        for base, entry in reversed(self.entries.items()):
            if base < offset:
                return entry.epoch
        return 0 if self.snapshot is None else self.snapshot.id.epoch

    def perform(self, action: StorageAction) -> None:
        match action:
            case PersistVote(state):
                self.quorum = state
            case AppendEntries(_, entries):
                for place, entry in enumerate(entries):
                    if place:
                        self._fuse.burn()
                    self._append(entry)
            case TruncateTo(offset):
                self.entries = {base: e for base, e in self.entries.items() if base < offset}
                self.end_offset = offset
            case SaveSnapshot(snapshot):
                end = snapshot.id.end_offset
                self.snapshot = snapshot
                self.entries = {base: e for base, e in self.entries.items() if base >= end}
            case LoadSnapshot(snapshot):
                self.snapshot = snapshot
                self.entries = {}
                self.end_offset = snapshot.id.end_offset
        self._fuse.burn()

    def _append(self, entry: Entry) -> None:
        self.entries[self.end_offset] = entry
        self.end_offset += entry.count


class BrokerDisk:
    """A broker's folder."""

    def __init__(self, directory_id: str, fuse: Fuse) -> None:
        self.directory_id = directory_id
        self._fuse = fuse
        self.logs: dict[Key, SimulatedLog] = {}
        # High watermarks, as they were written down some time ago.
        self.checkpoint: dict[Key, int] = {}
        # The process that ended by itself last, if no other has started since.
        self.clean_incarnation: str | None = None
        # How many processes have had the folder; synced before any of them is heard of.
        self.starts = 0

    def log(self, key: Key) -> SimulatedLog:
        """The log of a partition; a new one is empty."""
        log = self.logs.get(key)
        if log is None:
            log = self.logs[key] = SimulatedLog(self._fuse.burn)
        return log

    def delete(self, key: Key) -> None:
        self.logs.pop(key, None)
        self.checkpoint.pop(key, None)

    def flush(self) -> None:
        for log in self.logs.values():
            log.flush()

    def open(self) -> str | None:
        """A new process has the folder; returns the one before it, if it ended by itself."""
        self.starts += 1
        clean, self.clean_incarnation = self.clean_incarnation, None
        for log in self.logs.values():
            log.open_after_kill()
        return clean

    def lose_power(self, random: Random) -> None:
        for log in self.logs.values():
            log.lose_power(random)
        # What lies below the marks may be other records now: a broker that starts on another
        # boot does not believe them.
        self.checkpoint = {}
