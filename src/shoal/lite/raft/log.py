"""The log of a member, in memory: entries behind a snapshot, and what follows from them.

Rules of this file:
- Epochs never fall along the log. So an epoch and an offset name one history: two logs that
  have an entry of the same epoch at the same offset are equal up to there. Followers and
  leaders find by it where their logs part, without comparing entries.
- The set of voters is the last one in the log, committed or not: it counts once it is written,
  and cutting the log brings the one before it back.
- Pure. Whoever changes the log in memory also asks for the same change on the disk.
"""

from bisect import bisect_left, bisect_right

from shoal.lite.raft.errors import require
from shoal.lite.raft.model import (
    Entry,
    EntryKind,
    EpochEnd,
    Snapshot,
    SnapshotId,
    StoredState,
    Voters,
)
from shoal.lite.raft.storage.codec import decode_snapshot, decode_voters

_NOTHING = SnapshotId(0, 0)


class RaftLog:
    """Entries from `start_offset` up to `end_offset`."""

    def __init__(self, stored: StoredState) -> None:
        self.snapshot = stored.snapshot
        self.start = _NOTHING
        voters = stored.voters
        if stored.snapshot is not None:
            self.start = stored.snapshot.id
            voters = decode_snapshot(stored.snapshot.data).voters
        self.end_offset = self.start.end_offset
        # Where each set of voters was written; the first one always holds.
        self._voter_sets = [(-1, voters)]
        self._entries: list[Entry] = []
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
        """Where the present set of voters was written; -1 if it was there from the start."""
        return self._voter_sets[-1][0]

    # Changing

    def append(self, entry: Entry) -> int:
        """Write behind the end; returns the entry's offset."""
        base_offset = self.end_offset
        require(entry.count > 0, f"an entry without records at offset {base_offset}")
        require(
            entry.epoch >= self.last_epoch,
            f"an entry of epoch {entry.epoch} behind one of {self.last_epoch}",
        )
        if entry.kind is EntryKind.VOTERS:
            self._voter_sets.append((base_offset, decode_voters(entry.records[0])))
        self._entries.append(entry)
        self._bases.append(base_offset)
        self.end_offset = base_offset + entry.count
        return base_offset

    def truncate_to(self, offset: int) -> None:
        """Forget everything from `offset` on, which is where an entry begins, or the end."""
        place = self._place(offset)
        del self._entries[place:]
        del self._bases[place:]
        self.end_offset = offset
        while self._voter_sets[-1][0] >= offset:
            self._voter_sets.pop()

    def compact(self, snapshot: Snapshot) -> None:
        """Forget everything below the end of a snapshot of our own."""
        offset = snapshot.id.end_offset
        place = self._place(offset)
        voters = self.voters_at(offset)
        del self._entries[:place]
        del self._bases[:place]
        later = [(base, found) for base, found in self._voter_sets if base >= offset]
        self._voter_sets = [(-1, voters), *later]
        self.snapshot = snapshot
        self.start = snapshot.id

    def replace(self, snapshot: Snapshot, voters: Voters) -> None:
        """Forget everything and go on from a snapshot of the leader's."""
        self._entries.clear()
        self._bases.clear()
        self._voter_sets = [(-1, voters)]
        self.snapshot = snapshot
        self.start = snapshot.id
        self.end_offset = snapshot.id.end_offset

    # Reading

    def _place(self, offset: int) -> int:
        """The index of the entry that begins at `offset`; behind the last for the end."""
        require(
            self.has_boundary(offset),
            f"no entry begins at {offset} in a log from {self.start_offset} to {self.end_offset}",
        )
        return bisect_left(self._bases, offset)

    def has_boundary(self, offset: int) -> bool:
        """Whether an entry begins at `offset`, or the log ends there."""
        place = bisect_left(self._bases, offset)
        return offset == self.end_offset or self._bases[place : place + 1] == [offset]

    def between(self, start: int, end: int) -> tuple[Entry, ...]:
        """All entries from `start` up to `end`."""
        return tuple(self._entries[self._place(start) : self._place(end)])

    def read(self, offset: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from `offset` on: one, and as many more as fit."""
        first = self._place(offset)
        size = 0
        for place in range(first, len(self._entries)):
            size += self._entries[place].size_bytes
            if size > max_bytes and place > first:
                return tuple(self._entries[first:place])
        return tuple(self._entries[first:])

    def voters_at(self, offset: int) -> Voters:
        """Who voted when the log ended at `offset`."""
        place = bisect_left(self._voter_sets, offset, key=lambda found: found[0])
        return self._voter_sets[place - 1][1]

    def epoch_before(self, offset: int) -> int:
        """The epoch of the entry that ends at `offset`."""
        place = self._place(offset)
        return self._entries[place - 1].epoch if place else self.start.epoch

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The last epoch that is not above `epoch`, and where its entries end."""
        place = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        end_offset = self._bases[place] if place < len(self._bases) else self.end_offset
        return EpochEnd(self._entries[place - 1].epoch if place else self.start.epoch, end_offset)

    def parting(self, offset: int, last_epoch: int) -> EpochEnd | SnapshotId | None:
        """Where a log that ends at `offset` with `last_epoch` parts from this one.

        None if it does not: it is a beginning of this one. A snapshot, if this log no longer
        holds what would tell.
        """
        if offset < self.start_offset or last_epoch < self.start.epoch:
            return self.start
        ours = self.end_of_epoch(last_epoch)
        if ours.epoch != last_epoch or ours.end_offset < offset:
            return ours
        return None
