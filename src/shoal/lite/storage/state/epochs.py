"""Which leader epoch wrote from which offset on.

A leader's term is numbered; the batches of one term form one stretch of the log. Replicas
compare these stretches to find where their logs part ways. Kept in memory, written to
`leader-epoch-checkpoint` in Apache Kafka's format when it changes.
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
        """Note that `epoch` writes from `start_offset` on; says whether that was news.

        An epoch that wrote nothing gives way to the one that does.
        """
        if epoch <= self.latest:
            return False
        while self._entries and self._entries[-1][1] >= start_offset:
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        return True

    def epoch_of(self, offset: int) -> int:
        """The epoch that wrote (or will write) `offset`."""
        place = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[place - 1][0] if place else NO_EPOCH

    def cut_end(self, end_offset: int) -> bool:
        """Forget epochs that begin at `end_offset` or behind it; says whether any did."""
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        changed = len(kept) < len(self._entries)
        self._entries = kept
        return changed

    def cut_start(self, start_offset: int) -> bool:
        """Forget what lies before `start_offset`; says whether that was anything.

        The epoch that holds it stays, with its true begin, and the one before it: a log that
        ends at `start_offset` can still be told from one that parted from this one below it.
        """
        place = bisect_right(self._entries, start_offset, key=lambda entry: entry[1])
        gone = max(0, place - 2)
        del self._entries[:gone]
        return gone > 0
