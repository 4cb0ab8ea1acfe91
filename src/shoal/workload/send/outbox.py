"""Plans which messages go into which batch, and when. Pure; no clock, no I/O.

Rules:
- A topic's messages are numbered from 0. Number mod lanes is the lane, number div lanes the
  sequence in the lane's stream; lane mod partitions is the source partition. A partition
  takes its messages in the order of their numbers.
- A partition with too many unanswered batches waits; the others continue (open loop).
- No message is taken before it is due, nor before its sequence is reserved, nor before the
  transaction that it belongs to is open.
- Sequences are reserved in whole rows (one sequence of every lane), a little ahead.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.workload.send.schedule import Schedule

Longs = np.ndarray[Any, np.dtype[np.int64]]

# How far ahead sequences are reserved. More means fewer writes to the commit log, but if the
# producer dies, all its reserved sequences count as unknown.
RESERVE_AHEAD_US = 2_000_000


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The messages of one batch to one partition, in the order of their numbers."""

    partition: int
    numbers: Longs
    lanes: Longs
    sequences: Longs

    def __len__(self) -> int:
        return len(self.numbers)


class PartitionOutbox:
    """The messages of one source partition: how many were taken, and are unanswered."""

    def __init__(self, partition: int, *, partitions: int, lanes: int, first_row: int) -> None:
        self.partition = partition
        self.lanes = np.arange(partition, lanes, partitions, dtype=np.int64)
        self.unanswered = 0
        self._lane_count = lanes
        self._lane_list = (
            self.lanes.tolist()
        )  # a list, because it is indexed several times for each batch
        self._taken = first_row * len(self.lanes)

    @property
    def next_number(self) -> int:
        row, place = divmod(self._taken, len(self._lane_list))
        return row * self._lane_count + int(self._lane_list[place])

    def waiting_below(self, number: int) -> int:
        """How many messages with smaller numbers are not taken yet."""
        rows, rest = divmod(number, self._lane_count)
        below = rows * len(self._lane_list) + bisect_left(self._lane_list, rest)
        return max(below - self._taken, 0)

    def take(self, count: int) -> PlannedBatch:
        """The next messages of this partition."""
        places = np.arange(self._taken, self._taken + count, dtype=np.int64)
        self._taken += count
        sequences, within = np.divmod(places, len(self.lanes))
        lanes = self.lanes[within]
        return PlannedBatch(self.partition, sequences * self._lane_count + lanes, lanes, sequences)

    def counts(self) -> Longs:
        """How many sequences of each of its lanes are used."""
        rows, rest = divmod(self._taken, len(self.lanes))
        return rows + (np.arange(len(self.lanes), dtype=np.int64) < rest)


class TopicOutbox:
    """The messages of one producer to one topic."""

    def __init__(
        self,
        *,
        lanes: int,
        partitions: int,
        schedule: Schedule,
        end_number: int,
        first_number: int = 0,
    ) -> None:
        first_row = -(-first_number // lanes)
        self.lanes = lanes
        self.schedule = schedule
        self.end_number = end_number
        self.first_number = first_row * lanes
        self.reserved_rows = first_row
        self.open_until: int | None = None  # end of the open transaction; None: no transactions
        # With fewer lanes than partitions, only the first partitions are used.
        self.partitions = [
            PartitionOutbox(p, partitions=partitions, lanes=lanes, first_row=first_row)
            for p in range(min(partitions, lanes))
        ]

    @property
    def is_done(self) -> bool:
        return self.is_taken_below(self.end_number)

    def is_taken_below(self, number: int | None) -> bool:
        """Whether all messages below that number (None: all messages) are taken."""
        end = self.end_number if number is None else min(number, self.end_number)
        return all(not box.waiting_below(end) for box in self.partitions)

    def due(self, now_us: int) -> int:
        """How many messages should have been sent by now."""
        return min(self.schedule.due(now_us), self.end_number)

    def rows_to_reserve(self, now_us: int) -> int | None:
        """Up to which row to reserve now, or None while enough is reserved."""
        soon = self.due(now_us + RESERVE_AHEAD_US // 2)
        if soon <= self.reserved_rows * self.lanes:
            return None
        return -(-self.due(now_us + RESERVE_AHEAD_US) // self.lanes)

    def take(self, now_us: int, *, most: int, max_unanswered: int) -> list[PlannedBatch]:
        """The batches to send now: at most one for each partition, of at most `most` messages."""
        limit = self._limit(now_us)
        return [
            box.take(min(count, most))
            for box in self.partitions
            if box.unanswered < max_unanswered and (count := box.waiting_below(limit))
        ]

    def can_take(self, now_us: int, *, max_unanswered: int) -> bool:
        """Whether `take` would return anything."""
        limit = self._limit(now_us)
        return any(
            box.unanswered < max_unanswered and box.waiting_below(limit) for box in self.partitions
        )

    def _limit(self, now_us: int) -> int:
        """The number below which messages are due, reserved and in the open transaction."""
        limit = min(self.due(now_us), self.reserved_rows * self.lanes)
        return limit if self.open_until is None else min(limit, self.open_until)

    def next_due_us(self) -> int:
        """When the first message that is not taken was or will be due, in µs."""
        return self.schedule.due_time_us(min(box.next_number for box in self.partitions))

    def behind(self, now_us: int) -> int:
        """How many messages should have been sent by now and are not."""
        due = self.due(now_us)
        return sum(box.waiting_below(due) for box in self.partitions)

    def lane_counts(self) -> Longs:
        """How many sequences of each lane are used, for the manifest."""
        counts = np.zeros(self.lanes, np.int64)
        for box in self.partitions:
            counts[box.lanes] = box.counts()
        return counts
