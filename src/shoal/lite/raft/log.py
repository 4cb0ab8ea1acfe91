"""The log of a member, in memory: the entries after a snapshot, and what they imply.

Rules of this file:
- Epochs never decrease along the log. So an epoch and an offset identify one history: two logs
  that have an entry of the same epoch at the same offset are equal up to there. Followers and
  leaders use this to find where their logs diverge without comparing entries.
- The set of voters is the last one in the log, committed or not: it applies once it is appended,
  and truncating the log restores the one before it.
- Pure. A caller that changes the log in memory also emits the action for the same change on
  the disk.
"""

from bisect import bisect_left, bisect_right

from shoal.lite.raft.errors import require
from shoal.lite.raft.model import (
    EntryKind,
    RaftEntry,
    RaftEpochEnd,
    RaftSnapshot,
    RaftSnapshotId,
    StoredState,
    Voters,
)
from shoal.lite.raft.storage.codec import decode_snapshot, decode_voters

_NO_SNAPSHOT = RaftSnapshotId(0, 0)


class RaftLog:
    """Entries from `start_offset` up to `end_offset`."""

    def __init__(self, stored: StoredState) -> None:
        self.snapshot = stored.snapshot
        self.start = _NO_SNAPSHOT
        voters = stored.voters
        if stored.snapshot is not None:
            self.start = stored.snapshot.id
            voters = decode_snapshot(stored.snapshot.data).voters
        self.end_offset = self.start.end_offset
        # The offset of each set of voters; the first one is from the snapshot or the first start.
        self._voter_sets = [(-1, voters)]
        self._entries: list[RaftEntry] = []
        self._bases: list[int] = []
        for entry in stored.entries:
            self.append(entry)

    @property
    def start_offset(self) -> int:
        return self.start.end_offset

    @property
    def last_epoch(self) -> int:
        return self._entries[-1].epoch if self._entries else self.start.epoch

    @property
    def voters(self) -> Voters:
        return self._voter_sets[-1][1]

    @property
    def voters_offset(self) -> int:
        """The offset of the current voter set; -1 if it is from the snapshot or the first start."""
        return self._voter_sets[-1][0]

    # Changing

    def append(self, entry: RaftEntry) -> int:
        """Append an entry; returns its offset."""
        base_offset = self.end_offset
        require(entry.count > 0, f"the entry at offset {base_offset} has no records")
        require(
            entry.epoch >= self.last_epoch,
            f"an entry of epoch {entry.epoch} follows one of epoch {self.last_epoch}",
        )
        if entry.kind is EntryKind.VOTERS:
            self._voter_sets.append((base_offset, decode_voters(entry.records[0])))
        self._entries.append(entry)
        self._bases.append(base_offset)
        self.end_offset = base_offset + entry.count
        return base_offset

    def truncate_to(self, offset: int) -> None:
        """Drop everything from `offset` on, which is where an entry begins, or the end."""
        index = self._index_of(offset)
        del self._entries[index:]
        del self._bases[index:]
        self.end_offset = offset
        while self._voter_sets[-1][0] >= offset:
            self._voter_sets.pop()

    def compact(self, snapshot: RaftSnapshot) -> None:
        """Drop everything below the end of a snapshot of this member's own state."""
        offset = snapshot.id.end_offset
        index = self._index_of(offset)
        voters = self.voters_at(offset)
        del self._entries[:index]
        del self._bases[:index]
        later = [(base, found) for base, found in self._voter_sets if base >= offset]
        self._voter_sets = [(-1, voters), *later]
        self.snapshot = snapshot
        self.start = snapshot.id

    def replace(self, snapshot: RaftSnapshot, voters: Voters) -> None:
        """Drop everything and continue from a snapshot of the leader."""
        self._entries.clear()
        self._bases.clear()
        self._voter_sets = [(-1, voters)]
        self.snapshot = snapshot
        self.start = snapshot.id
        self.end_offset = snapshot.id.end_offset

    # Reading

    def _index_of(self, offset: int) -> int:
        """The index of the entry that begins at `offset`; one past the last for the end."""
        require(
            self.has_boundary(offset),
            f"no entry begins at {offset} in a log from {self.start_offset} to {self.end_offset}",
        )
        return bisect_left(self._bases, offset)

    def has_boundary(self, offset: int) -> bool:
        """Whether an entry begins at `offset`, or the log ends there."""
        index = bisect_left(self._bases, offset)
        return offset == self.end_offset or self._bases[index : index + 1] == [offset]

    def entries_between(self, start: int, end: int) -> tuple[RaftEntry, ...]:
        """All entries from `start` up to `end`."""
        return tuple(self._entries[self._index_of(start) : self._index_of(end)])

    def read(self, offset: int, max_bytes: int) -> tuple[RaftEntry, ...]:
        """Entries from `offset` on: at least one, and as many more as fit."""
        first = self._index_of(offset)
        size = 0
        for index in range(first, len(self._entries)):
            size += self._entries[index].size_bytes
            if size > max_bytes and index > first:
                return tuple(self._entries[first:index])
        return tuple(self._entries[first:])

    def voters_at(self, offset: int) -> Voters:
        """The set of voters when the log ended at `offset`."""
        index = bisect_left(self._voter_sets, offset, key=lambda found: found[0])
        return self._voter_sets[index - 1][1]

    def epoch_before(self, offset: int) -> int:
        """The epoch of the entry that ends at `offset`."""
        index = self._index_of(offset)
        return self._entries[index - 1].epoch if index else self.start.epoch

    def end_of_epoch(self, epoch: int) -> RaftEpochEnd:
        """The last epoch that is not above `epoch`, and where its entries end."""
        index = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        end_offset = self._bases[index] if index < len(self._bases) else self.end_offset
        return RaftEpochEnd(
            self._entries[index - 1].epoch if index else self.start.epoch, end_offset
        )

    def find_divergence(self, offset: int, last_epoch: int) -> RaftEpochEnd | RaftSnapshotId | None:
        """Where a log that ends at `offset` with `last_epoch` diverges from this one.

        None if it does not: it is a prefix of this one. A snapshot id, if this log no longer
        has the entries that would show it.
        """
        if offset < self.start_offset or last_epoch < self.start.epoch:
            return self.start
        ours = self.end_of_epoch(last_epoch)
        if ours.epoch != last_epoch or ours.end_offset < offset:
            return ours
        return None
