"""Records when a consumer polled, and since when it knew that records were available. Pure.

Rules:
- The ends of logs in fetch responses show which offsets exist; a later response never makes an
  offset known earlier.
- Successive polls of a partition at one offset, with nothing known to be available, are one row
  with their count, so that a waiting consumer writes next to nothing.
- Memory is limited. If a log grows far ahead of its reader, its last steps are merged at the later
  time: the recorded time stays a lower bound.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from shoal.model.topics import TopicPartition

MAX_STEPS: Final = 4096
NOTHING_KNOWN: Final = -1


class Poll(NamedTuple):
    """A row of the table `polls`; `times` is the column `count`."""

    log: TopicPartition
    offset: int
    polled_us: int
    known_us: int = NOTHING_KNOWN
    times: int = 1


class PollRecorder:
    """Records the polls of one consumer."""

    def __init__(self) -> None:
        # For each log: its reported ends and the times of the reports, ascending.
        self._ends: dict[TopicPartition, deque[tuple[int, int]]] = {}
        self._waiting: dict[TopicPartition, Poll] = {}
        self._noted: list[Poll] = []

    def on_log_end(self, log: TopicPartition, end: int, at_us: int) -> None:
        """A fetch response reported the end of a log."""
        steps = self._ends.setdefault(log, deque())
        if steps and end <= steps[-1][0]:
            return
        if len(steps) == MAX_STEPS:
            steps.pop()
        steps.append((end, at_us))

    def on_poll(self, positions: Mapping[TopicPartition, int], at_us: int) -> None:
        """A fetch at these offsets is sent now."""
        for log, offset in positions.items():
            known_us = self._find_known_us(log, offset)
            waiting = self._waiting.get(log)
            if known_us == NOTHING_KNOWN and waiting is not None and waiting.offset == offset:
                self._waiting[log] = waiting._replace(times=waiting.times + 1)
                continue
            if waiting is not None:
                self._noted.append(self._waiting.pop(log))
            poll = Poll(log, offset, at_us, known_us)
            if known_us == NOTHING_KNOWN:
                self._waiting[log] = poll
            else:
                self._noted.append(poll)

    def _find_known_us(self, log: TopicPartition, offset: int) -> int:
        steps = self._ends.get(log, deque())
        while steps and steps[0][0] <= offset:
            steps.popleft()
        return steps[0][1] if steps else NOTHING_KNOWN

    def take(self) -> list[Poll]:
        """Return and forget the polls since the last call."""
        taken = [*self._noted, *self._waiting.values()]
        self._noted, self._waiting = [], {}
        return taken
