"""What is fetched from one broker of the source; pure.

Rules:
- One fetch at a time. A partition that is in an unanswered fetch is not read from another broker,
  and its leader is not checked: what concerns it is deferred until the answer arrives.
- A partition without room is left out of the next fetch. It will soon have room, so that fetch
  waits only 10 ms; each further one waits twice as long, until a partition has room again. So a
  target that is stuck with one partition does not turn the waits of the others into polling.
- A partition that failed is left out until its time, and the fetch waits no longer than that.
"""

from typing import Final

from shoal.client.consume.fetch_session import FetchSession
from shoal.model.topics import TopicPartition
from shoal.wire.fetch import FetchPartition

SHORTEST_WAIT_MS: Final = 10
UNTIL_ROOM: Final = 0.0
_MOST_DOUBLINGS: Final = 16


class SourceReader:
    """The fetches from one broker."""

    def __init__(self) -> None:
        self.session = FetchSession()
        self.is_busy = False
        self._left_out: dict[TopicPartition, float] = {}  # until when, or `UNTIL_ROOM`
        self._deferred: set[TopicPartition] = set()
        self._doublings = 0

    def is_in_flight(self, tp: TopicPartition) -> bool:
        """Whether a partition is in a fetch that is not answered."""
        return self.is_busy and self.session.get_asked_offset(tp) is not None

    def plan(self, tp: TopicPartition, part: FetchPartition | None, until: float | None) -> None:
        """Fetch a partition, or leave it out until a time or `UNTIL_ROOM`, or drop it."""
        if part is not None:
            if self._left_out.pop(tp, None) == UNTIL_ROOM:
                self._doublings = 0
            self.session.put(part)
            return
        self.drop(tp)
        if until is not None:
            self._left_out[tp] = until

    def drop(self, tp: TopicPartition) -> None:
        """Do not fetch a partition."""
        self._left_out.pop(tp, None)
        if tp in self.session.partitions:
            self.session.remove(tp)

    def defer(self, tp: TopicPartition) -> None:
        """Look at a partition again once the fetch in flight is answered."""
        self._deferred.add(tp)

    def begin(self, now: float, longest_ms: int) -> int:
        """Record that a fetch is sent now; returns how long the broker may wait, in ms."""
        self.is_busy = True
        wait_ms = longest_ms
        soonest = min((at for at in self._left_out.values() if at != UNTIL_ROOM), default=None)
        if soonest is not None:
            wait_ms = min(wait_ms, max(SHORTEST_WAIT_MS, round((soonest - now) * 1000)))
        if UNTIL_ROOM in self._left_out.values():
            wait_ms = min(wait_ms, SHORTEST_WAIT_MS << self._doublings)
            self._doublings = min(self._doublings + 1, _MOST_DOUBLINGS)
        return wait_ms

    def end(self) -> set[TopicPartition]:
        """Record that the fetch was answered or failed; returns what was deferred."""
        self.is_busy = False
        deferred, self._deferred = self._deferred, set()
        return deferred
