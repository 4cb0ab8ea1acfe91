"""The committed offsets of groups, and the pending offsets of open transactions. Pure.

Rules of this file:
- It changes by records only, in their order: a record with a value is a commit, a tombstone
  removes it. A commit in a transactional batch is pending until the producer's marker commits or
  aborts it.
- Of two commits for a partition, the one later in the log wins, even if the other belongs to a
  transaction that ends later.
- An offset belongs to one topic, by topic id. After the topic is deleted the offset is *stale*: it
  is treated as absent, even for a new topic with the same name, until it is removed. The same
  applies to the pending offsets of such a topic.
- An offset without a topic id (an older format, or the one with an expiry time) belongs to the
  topic with its name, until the coordinator learns that this topic is deleted (`disown`). A
  deletion while no coordinator was active is missed, for such offsets only.
- An offset expires some time after the group became empty; or after its commit, in groups that
  never have members, or whose members no longer subscribe to its topic.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from shoal.lite.coordinator.groups.group import CONSUMER, ClassicGroup, ClassicGroupState
from shoal.lite.coordinator.groups.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
)
from shoal.lite.storage.header import BatchHeader
from shoal.wire.records.records import ControlType, Record, decode_control

PartitionKey = tuple[str, int]
# Returns the id of the topic with a name; None if no such topic exists.
TopicIdOf = Callable[[str], UUID | None]
# No topic has this id: it marks offsets without a topic id whose topic is deleted.
_NO_TOPIC = UUID(int=0)


class StoredOffset(NamedTuple):
    """A commit, and its offset in the log."""

    committed: CommittedOffset
    record_offset: int


@dataclass(slots=True)
class ReplayResult:
    """What a batch changed: offsets, and records of groups (None: removed)."""

    groups: dict[str, StoredGroup | None] = field(default_factory=dict)
    offsets: set[OffsetKey] = field(default_factory=set)

    @property
    def offsets_of(self) -> set[str]:
        return {key.group for key in self.offsets}


class OffsetStore:
    """All committed and pending offsets of the groups of a partition."""

    def __init__(self, topic_id_of: TopicIdOf) -> None:
        self._topic_id_of = topic_id_of
        self._offsets: dict[str, dict[PartitionKey, StoredOffset]] = {}
        # By producer id, then group.
        self._pending: dict[int, dict[str, dict[PartitionKey, StoredOffset]]] = {}

    # Committed offsets

    def has(self, group: str) -> bool:
        """Return whether a group has committed or pending offsets."""
        return group in self._offsets or any(group in open_ for open_ in self._pending.values())

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        stored = self._offsets.get(group, {}).get((topic, partition))
        return None if stored is None or self._is_stale(topic, stored) else stored.committed

    def of_group(self, group: str) -> dict[PartitionKey, CommittedOffset]:
        return {
            place: stored.committed
            for place, stored in self._offsets.get(group, {}).items()
            if not self._is_stale(place[0], stored)
        }

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction has a pending offset for a partition."""
        place = (topic, partition)
        pending = (open_.get(group, {}).get(place) for open_ in self._pending.values())
        return any(stored is not None and not self._is_stale(topic, stored) for stored in pending)

    def pending_of(self, group: str) -> set[PartitionKey]:
        return {
            place
            for open_ in self._pending.values()
            for place, stored in open_.get(group, {}).items()
            if not self._is_stale(place[0], stored)
        }

    # Records in the log, including those of deleted topics

    def keys_of(self, group: str) -> list[OffsetKey]:
        return [OffsetKey(group, *place) for place in self._offsets.get(group, {})]

    def record_offset(self, key: OffsetKey) -> int | None:
        """Return the log offset of the commit for a partition."""
        stored = self._offsets.get(key.group, {}).get((key.topic, key.partition))
        return None if stored is None else stored.record_offset

    def is_stale(self, key: OffsetKey) -> bool:
        """Return whether the offset for a partition is of a deleted topic."""
        stored = self._offsets.get(key.group, {}).get((key.topic, key.partition))
        return stored is not None and self._is_stale(key.topic, stored)

    def stale(self) -> Iterator[OffsetKey]:
        """Yield every offset of a deleted topic."""
        for group, offsets in self._offsets.items():
            for place, stored in offsets.items():
                if self._is_stale(place[0], stored):
                    yield OffsetKey(group, *place)

    def _is_stale(self, topic: str, stored: StoredOffset) -> bool:
        topic_id = self._topic_id_of(topic)
        return topic_id is None or stored.committed.topic_id not in {None, topic_id}

    def disown(self, topics: Collection[str]) -> None:
        """Mark offsets without a topic id as stale: the topics with these names are deleted."""
        books = [self._offsets, *self._pending.values()]
        for offsets in (offsets for book in books for offsets in book.values()):
            for place, stored in offsets.items():
                if place[0] in topics and stored.committed.topic_id is None:
                    committed = stored.committed._replace(topic_id=_NO_TOPIC)
                    offsets[place] = stored._replace(committed=committed)

    def groups(self) -> set[str]:
        """Return every group that has committed or pending offsets."""
        return set(self._offsets).union(*self._pending.values())

    # Records

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> ReplayResult:
        result = ReplayResult()
        if header.is_control:
            for record in records:
                is_commit = decode_control(record).type == ControlType.COMMIT
                self._end_transaction(header.producer_id, result, is_commit=is_commit)
            return result
        for record in records:
            key = None if record.key is None else decode_key(record.key)
            if isinstance(key, OffsetKey):
                self._replay_offset(header, key, record)
                result.offsets.add(key)
            elif isinstance(key, GroupKey):
                value = None if record.value is None else decode_group(record.value)
                result.groups[key.group] = value
        return result

    def _replay_offset(self, header: BatchHeader, key: OffsetKey, record: Record) -> None:
        place = (key.topic, key.partition)
        if record.value is None:
            offsets = self._offsets.get(key.group)
            if offsets is not None:
                offsets.pop(place, None)
                if not offsets:
                    del self._offsets[key.group]
            return
        stored = StoredOffset(decode_offset(record.value), record.offset)
        if header.is_transactional:
            self._pending.setdefault(header.producer_id, {}).setdefault(key.group, {})[place] = (
                stored
            )
        else:
            self._offsets.setdefault(key.group, {})[place] = stored

    def _end_transaction(self, producer_id: int, result: ReplayResult, *, is_commit: bool) -> None:
        for group, pending in self._pending.pop(producer_id, {}).items():
            result.offsets.update(OffsetKey(group, *place) for place in pending)
            if not is_commit:
                continue
            offsets = self._offsets.setdefault(group, {})
            for place, stored in pending.items():
                known = offsets.get(place)
                if known is None or known.record_offset < stored.record_offset:
                    offsets[place] = stored

    # Expiry

    def find_expired(self, group: ClassicGroup, now_ms: int, retention_ms: int) -> list[OffsetKey]:
        """Return the offsets of a group whose retention has passed."""
        subscribed = group.subscriptions() if group.state is ClassicGroupState.STABLE else None
        found = []
        pending = self.pending_of(group.group_id)
        for place, (committed, _) in self._offsets.get(group.group_id, {}).items():
            from_ms = _retention_start_ms(group, subscribed, place[0], committed)
            if from_ms is None or place in pending:
                continue
            expire_ms = committed.expire_ms
            if now_ms >= (from_ms + retention_ms if expire_ms is None else expire_ms):
                found.append(OffsetKey(group.group_id, *place))
        return found


def _retention_start_ms(
    group: ClassicGroup, subscribed: set[str] | None, topic: str, committed: CommittedOffset
) -> int | None:
    """Return when the retention of an offset starts; None while it is in use."""
    if group.protocol_type is None:
        return committed.commit_ms
    if group.state is ClassicGroupState.EMPTY:
        # An offset that was reset after the last member left expires later.
        return max(group.since_wall_ms, committed.commit_ms)
    if group.protocol_type == CONSUMER and subscribed is not None and topic not in subscribed:
        return committed.commit_ms
    return None
