"""Deadlines of many keys, ordered by time.

A heartbeat extends a deadline, so the time of an entry is only an estimate: when it passes, the
owner is asked for the real deadline. So a heartbeat costs nothing here.
"""

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class Timers(Generic[KeyT]):
    """One entry per key; `deadline_of` returns a key's real deadline, or None."""

    def __init__(self, deadline_of: Callable[[KeyT], int | None]) -> None:
        self._deadline_of = deadline_of
        self._heap: list[tuple[int, int, KeyT]] = []
        self._guesses: dict[KeyT, int] = {}
        self._numbers = count()

    def watch(self, key: KeyT, deadline_ms: int) -> None:
        """Check a key at this time at the latest."""
        known = self._guesses.get(key)
        if known is None or deadline_ms < known:
            self._guesses[key] = deadline_ms
            heappush(self._heap, (deadline_ms, next(self._numbers), key))
            # Entries that were moved to an earlier time leave their old ones in the heap.
            if len(self._heap) > 2 * len(self._guesses) + 64:
                self._heap = [
                    (guess_ms, next(self._numbers), one) for one, guess_ms in self._guesses.items()
                ]
                heapify(self._heap)

    def next_ms(self) -> int | None:
        """Return when to call `due` at the latest; never later than the next deadline."""
        while self._heap and self._guesses.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[KeyT]:
        """Yield the keys whose deadlines have passed; each must be watched again."""
        while (guess_ms := self.next_ms()) is not None and guess_ms <= now_ms:
            key = heappop(self._heap)[2]
            del self._guesses[key]
            deadline_ms = self._deadline_of(key)
            if deadline_ms is None:
                continue
            if deadline_ms <= now_ms:
                yield key
            else:
                self.watch(key, deadline_ms)
