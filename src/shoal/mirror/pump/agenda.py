"""Which partitions have something to do now, and which later; pure.

Rules:
- Every change of the state of a partition touches it. `take` returns the touched partitions and
  those whose time has come, each once; the others cost nothing.
- A partition has at most one time; setting another replaces it.
- Times that were replaced stay in the heap until they pass, and are ignored.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from shoal.model.topics import TopicPartition


class Agenda:
    """The partitions that the runner must look at."""

    def __init__(self) -> None:
        self._touched: dict[TopicPartition, None] = {}
        self._times: dict[TopicPartition, float] = {}
        self._heap: list[tuple[float, TopicPartition]] = []

    def touch(self, tp: TopicPartition) -> None:
        """Look at a partition at the next `take`."""
        self._touched[tp] = None

    def touch_all(self, partitions: Iterable[TopicPartition]) -> None:
        self._touched.update(dict.fromkeys(partitions))

    def set_time(self, tp: TopicPartition, at: float | None) -> None:
        """Look at a partition at this time; None for no time."""
        if at is None:
            self._times.pop(tp, None)
        elif self._times.get(tp) != at:
            self._times[tp] = at
            heappush(self._heap, (at, tp))

    def forget(self, tp: TopicPartition) -> None:
        self._touched.pop(tp, None)
        self._times.pop(tp, None)

    def take(self, now: float) -> list[TopicPartition]:
        """Return the partitions to look at now."""
        while self._heap and self._heap[0][0] <= now:
            at, tp = heappop(self._heap)
            if self._times.get(tp) == at:
                del self._times[tp]
                self._touched[tp] = None
        taken = list(self._touched)
        self._touched.clear()
        return taken

    @property
    def next_at(self) -> float | None:
        """When the next partition is due, apart from the touched ones."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None
