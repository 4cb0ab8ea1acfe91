"""Which leader epoch began at which offset.

The batches of one leader epoch form one range of the log. Replicas compare these ranges to find the
offset where their logs diverge. Kept in memory, and written to `leader-epoch-checkpoint` in Apache
Kafka's format when it changes.
"""

from bisect import bisect_right
from collections.abc import Iterable

NO_EPOCH = -1


class EpochHistory:
    """Ascending pairs (epoch, first offset of that epoch). Pure."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Add an epoch that begins at `start_offset`; returns whether it is new.

        It replaces epochs that have no records.
        """
        if epoch <= self.latest:
            return False
        while self._entries and self._entries[-1][1] >= start_offset:
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        return True

    def epoch_of(self, offset: int) -> int:
        """The epoch that wrote (or will write) `offset`."""
        following = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[following - 1][0] if following else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """Remove epochs that begin at or above `end_offset`; returns whether there were any."""
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        changed = len(kept) < len(self._entries)
        self._entries = kept
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Remove epochs that end before `start_offset`; returns whether there were any.

        The epoch that contains it stays, with its actual start, and so does the one before it:
        otherwise a log that ends at `start_offset` looks like one that diverged below it.
        """
        following = bisect_right(self._entries, start_offset, key=lambda entry: entry[1])
        removed = max(0, following - 2)
        del self._entries[:removed]
        return removed > 0
