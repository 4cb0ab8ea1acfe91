"""A disk in memory for members of a quorum, which can be read again after a crash.

What `perform` returned for is there afterwards; what it was not asked for is not. A crash
between two actions of a list is a crash between two calls.
"""

from shoal.lite.raft.actions import (
    AppendEntries,
    LoadSnapshot,
    PersistVote,
    SaveSnapshot,
    StorageAction,
    TruncateTo,
)
from shoal.lite.raft.model import Entry, QuorumState, Snapshot, StoredState, Voters


class MemoryDisk:
    """What a member would find if it started now."""

    def __init__(self, voters: Voters) -> None:
        self.voters = voters
        self.quorum = QuorumState()
        self.snapshot: Snapshot | None = None
        # By the offset where it begins, in order.
        self.entries: dict[int, Entry] = {}
        self.end_offset = 0

    @property
    def start_offset(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.id.end_offset

    def stored(self) -> StoredState:
        return StoredState(self.voters, self.quorum, self.snapshot, tuple(self.entries.values()))

    def perform(self, action: StorageAction) -> None:
        match action:
            case PersistVote(state):
                self.quorum = state
            case AppendEntries(base_offset, entries):
                assert base_offset == self.end_offset
                self._append(entries)
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

    def _append(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            self.entries[self.end_offset] = entry
            self.end_offset += entry.count
