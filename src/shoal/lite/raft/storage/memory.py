"""Storage in memory only: for observers, which never vote and can fetch everything again."""

from shoal.lite.raft.actions import (
    AppendEntries,
    LoadSnapshot,
    PersistVote,
    SaveSnapshot,
    StorageAction,
    TruncateEntries,
)


class MemoryStorage:
    """Keeps only the end offset of the log."""

    def __init__(self) -> None:
        self.end_offset = 0

    def perform(self, action: StorageAction) -> None:
        match action:
            case AppendEntries(base_offset, entries):
                self.end_offset = base_offset + sum(entry.count for entry in entries)
            case TruncateEntries(offset):
                self.end_offset = offset
            case LoadSnapshot(snapshot):
                self.end_offset = snapshot.id.end_offset
            case PersistVote() | SaveSnapshot():
                pass
