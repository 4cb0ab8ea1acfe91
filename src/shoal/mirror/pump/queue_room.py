"""How much may be fetched and wait for the target: a share for each broker of the target; pure.

    share of         who is in it                                 at most
    a broker         the partitions that it leads at the target   1.5 times its part of the queue
    a limited topic  its partitions                               an eighth of the queue, less if
                                                                  more than four are limited
    transactions     partitions with transactional delivery       half of the queue

Rules:
- Above the limit of the queue nothing is fetched. Limited topics and transactions do not count
  there: they wait on purpose, and have limits of their own.
- A share that is full is not fetched until it is empty enough, and does not count either: a broker
  that is slow, or does not answer, delays its own partitions only. A share is full at its limit, or
  above its part of the queue if the queue has been full for a moment and another is nearly empty.
- A stuck partition counts nowhere, and is not fetched. If all of them hold more than the limit of
  the queue, those that are stuck later drop what was not sent (`must_drop`). Without an answer of
  the broker a partition stays in the broker's share: its other partitions do not answer either.
- So all that waits is at most 4.5 times the limit, and one response of each source broker: the
  queue, one and a half in full shares of brokers, the stuck ones, and half each for transactions
  and limited topics. What may be at the target already is never dropped.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from shoal.mirror.config import MirrorLimits
from shoal.mirror.pump.work import PartitionWork
from shoal.model.topics import TopicPartition

# How long the queue is full before shares are compared; shorter than anybody notices.
FULL_S: Final = 0.1
_TRANSACTIONS: Final = "transactions"
_TOPIC: Final = "topic"
_FEW_TOPICS: Final = 4
_BROKER: Final = "broker"
_Key = tuple[str, int | str]


def transactions_share(limits: MirrorLimits) -> int:
    """How much partitions with transactional delivery may have queued."""
    return limits.queue_bytes // 2


@dataclass(slots=True, eq=False)
class Share:
    """What some partitions have queued together."""

    limit_bytes: int | None  # None for the share of a broker, which depends on their number
    # A full share has room again below this part of its limit. Each change costs a look at all
    # members.
    room_at: float = 1 / 3
    members: set[TopicPartition] = field(default_factory=set)
    queued_bytes: int = 0
    is_full: bool = False


class QueueRoom:
    """Counts what is queued, by share."""

    def __init__(self, limits: MirrorLimits, limited_topics: Collection[str]) -> None:
        self._limits = limits
        self._limited_topics = limited_topics
        self._shares: dict[_Key, Share] = {}
        self._keys: dict[TopicPartition, _Key] = {}
        self._counted: dict[TopicPartition, tuple[int, int]] = {}  # in its share, and as stuck
        self._queued_bytes = 0  # of brokers whose share is not full
        self.stuck_bytes = 0
        self._full_since = math.inf
        self._changed: set[TopicPartition] = set()

    @property
    def is_full(self) -> bool:
        """Whether nothing may be fetched."""
        return self._queued_bytes >= self._limits.queue_bytes

    @property
    def total_bytes(self) -> int:
        """All that is queued, stuck or not."""
        return self.stuck_bytes + sum(share.queued_bytes for share in self._shares.values())

    def has_room(self, work: PartitionWork) -> bool:
        """Whether a partition may be fetched, as far as it and its share are concerned."""
        mirror = work.mirror
        if mirror.waiting_bytes >= self._limits.partition_bytes:
            return False
        key = self._keys.get(mirror.partition)
        return key is None or not self._shares[key].is_full

    def must_drop(self, work: PartitionWork) -> bool:
        """Whether a stuck partition must drop what was not sent."""
        _, stuck = self._counted.get(work.mirror.partition, (0, 0))
        return bool(stuck) and self.stuck_bytes > self._limits.queue_bytes

    def count(self, work: PartitionWork) -> None:
        """Count again what a partition has queued, and for which broker."""
        mirror, tp = work.mirror, work.mirror.partition
        key = self._key_of(work)
        if key != self._keys.get(tp):
            self.remove(tp)
            if key is not None:
                self._keys[tp] = key
                self._join(key).members.add(tp)
        is_waiting_for_broker = work.is_unanswered and mirror.parked is None
        is_stuck = key is None or (work.is_stuck and not is_waiting_for_broker)
        queued = mirror.queued_bytes
        self._set(tp, (0, queued) if is_stuck else (queued, 0))

    def count_less(self, work: PartitionWork) -> None:
        """As `count`, faster, for a partition that has only sent something since."""
        tp, queued = work.mirror.partition, work.mirror.queued_bytes
        before, stuck = self._counted.get(tp, (0, 0))
        key = self._keys.get(tp)
        share = None if key is None else self._shares[key]
        if stuck or share is None or share.is_full or queued > before:
            self.count(work)
            return
        self._counted[tp] = queued, 0
        share.queued_bytes -= before - queued
        if share.limit_bytes is None:
            self._queued_bytes -= before - queued

    def remove(self, tp: TopicPartition) -> None:
        """Count a partition no longer."""
        self._set(tp, (0, 0))
        del self._counted[tp]
        key = self._keys.pop(tp, None)
        if key is not None:
            share = self._shares[key]
            share.members.discard(tp)
            if not share.members:
                del self._shares[key]
        self._changed.discard(tp)

    def compare_shares(self, now: float) -> None:
        """Find the shares that keep the queue full."""
        if not self.is_full:
            self._full_since = math.inf
            return
        self._full_since = min(self._full_since, now)
        if now < self._full_since + FULL_S:
            return
        brokers = self._broker_shares()
        part_bytes = self._limits.queue_bytes / max(1, len(brokers))
        # If all are busy alike nobody waits for another, and a change would only cost time.
        is_held_back = any(share.queued_bytes < part_bytes / 2 for share in brokers)
        for share in brokers if is_held_back else ():
            if share.queued_bytes >= part_bytes:
                self._set_full(share, is_full=True)

    @property
    def compare_at(self) -> float:
        """When shares must be compared, if the queue stays full; infinity for never."""
        return self._full_since + FULL_S

    def take_changed(self) -> set[TopicPartition]:
        """The partitions whose share was filled or has room again since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _key_of(self, work: PartitionWork) -> _Key | None:
        topic = work.mirror.partition.topic
        if work.is_transactional:
            return _TRANSACTIONS, ""
        if topic in self._limited_topics:
            return _TOPIC, topic
        return None if work.target_node is None else (_BROKER, work.target_node)

    def _join(self, key: _Key) -> Share:
        if key not in self._shares:
            if key[0] == _TRANSACTIONS:
                # All members are looked at after each transaction anyway.
                share = Share(transactions_share(self._limits), room_at=1.0)
            else:
                is_broker = key[0] == _BROKER
                topics = max(_FEW_TOPICS, len(self._limited_topics))
                share = Share(None if is_broker else self._limits.queue_bytes // (2 * topics))
            self._shares[key] = share
        return self._shares[key]

    def _broker_shares(self) -> list[Share]:
        return [share for share in self._shares.values() if share.limit_bytes is None]

    def _limit_of(self, share: Share) -> float:
        if share.limit_bytes is not None:
            return share.limit_bytes
        count = sum(one.limit_bytes is None for one in self._shares.values())
        return math.inf if count == 1 else 1.5 * self._limits.queue_bytes / count

    def _set(self, tp: TopicPartition, new: tuple[int, int]) -> None:
        old = self._counted.get(tp, (0, 0))
        self._counted[tp] = new
        if new == old:
            return
        self.stuck_bytes += new[1] - old[1]
        key = self._keys.get(tp)
        if key is None:
            return
        share = self._shares[key]
        share.queued_bytes += new[0] - old[0]
        if share.limit_bytes is None and not share.is_full:
            self._queued_bytes += new[0] - old[0]
        limit_bytes = self._limit_of(share)
        if not share.is_full and share.queued_bytes >= limit_bytes:
            self._set_full(share, is_full=True)
        most_bytes = min(limit_bytes, self._limits.queue_bytes)
        if share.is_full and share.queued_bytes < most_bytes * share.room_at:
            self._set_full(share, is_full=False)

    def _set_full(self, share: Share, *, is_full: bool) -> None:
        if share.is_full is is_full:
            return
        share.is_full = is_full
        if share.limit_bytes is None:
            self._queued_bytes += -share.queued_bytes if is_full else share.queued_bytes
        self._changed |= share.members
