"""When a consumer polled, and since when it could know that there was something to get. Pure.

Rules:
- What exists is known by the ends of logs that answers tell; a later answer never makes an
  offset known earlier.
- Polls of a partition in succession, at one offset with nothing known, are one row with their
  count: a consumer that waits writes next to nothing.
- Memory is limited. Of a log that grows far ahead of its reader the last steps are put together,
  at the later time: what is noted stays a lower bound.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from shoal.model.topics import TopicPartition

MOST_STEPS: Final = 4096
NOTHING_KNOWN: Final = -1


class Poll(NamedTuple):
    """As in the table `polls`; `times` is its `count`."""

    log: TopicPartition
    offset: int
    polled_us: int
    known_us: int = NOTHING_KNOWN
    times: int = 1


class Polls:
    """Notes the polls of one consumer."""

    def __init__(self) -> None:
        # Of each log: ends that were told, and when; rising.
        self._ends: dict[TopicPartition, deque[tuple[int, int]]] = {}
        self._waiting: dict[TopicPartition, Poll] = {}
        self._noted: list[Poll] = []

    def told(self, log: TopicPartition, end: int, at_us: int) -> None:
        """An answer said that the log ends there."""
        steps = self._ends.setdefault(log, deque())
        if steps and end <= steps[-1][0]:
            return
        if len(steps) == MOST_STEPS:
            steps.pop()
        steps.append((end, at_us))

    def polled(self, positions: Mapping[TopicPartition, int], at_us: int) -> None:
        """These offsets are asked for now."""
        for log, offset in positions.items():
            known_us = self._known_us(log, offset)
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

    def _known_us(self, log: TopicPartition, offset: int) -> int:
        steps = self._ends.get(log, deque())
        while steps and steps[0][0] <= offset:
            steps.popleft()
        return steps[0][1] if steps else NOTHING_KNOWN

    def take(self) -> list[Poll]:
        """Everything that was noted since the last time."""
        taken = [*self._noted, *self._waiting.values()]
        self._noted, self._waiting = [], {}
        return taken
