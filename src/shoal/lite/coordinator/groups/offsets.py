"""The offsets that groups have committed, and those that transactions may commit yet. Pure.

Rules of this file:
- It changes by records only, in their order: a value is a commit, none is its removal. What a
  transactional batch says is pending until the marker of its producer says commit or abort.
- Of two commits for a partition the one later in the log counts, also if a transaction that
  commits it ends later still.
- An offset belongs to one topic, by its id. After the topic is deleted the offset is *stale*: it
  counts as absent from that moment on, also for a topic that is created under the same name, and
  is waiting for its removal. So is what a transaction commits for such a topic.
- An offset without a topic id (a format of before, or one that has an expiry time) belongs to the
  topic that has its name, until the coordinator hears that this topic is deleted (`disown`).
  What it does not hear, because no coordinator was there, goes unnoticed for such offsets only.
- An offset expires some time after the group has become empty, or after its commit in groups
  that have no members by nature, or whose members do not want its topic any more.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from shoal.lite.coordinator.groups.group import CONSUMER, Group, State
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

Place = tuple[str, int]
# The id of the topic that has a name now; None if there is none.
TopicIdOf = Callable[[str], UUID | None]
# No topic has it: the owner of offsets whose topic is deleted and was never known by its id.
_NO_TOPIC = UUID(int=0)


class Kept(NamedTuple):
    """A commit, and where it lies in the log."""

    committed: CommittedOffset
    record_offset: int


@dataclass(slots=True)
class Replayed:
    """What a batch changed: offsets, and groups that were written down (None: removed)."""

    groups: dict[str, StoredGroup | None] = field(default_factory=dict)
    offsets: set[OffsetKey] = field(default_factory=set)

    @property
    def offsets_of(self) -> set[str]:
        return {key.group for key in self.offsets}


class OffsetBook:
    """All offsets of the groups of a partition."""

    def __init__(self, topic_id_of: TopicIdOf) -> None:
        self._topic_id_of = topic_id_of
        self._offsets: dict[str, dict[Place, Kept]] = {}
        # By producer, then group.
        self._pending: dict[int, dict[str, dict[Place, Kept]]] = {}

    # What is so

    def has(self, group: str) -> bool:
        """Whether a group has offsets, or may have when a transaction ends."""
        return group in self._offsets or any(group in open_ for open_ in self._pending.values())

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        kept = self._offsets.get(group, {}).get((topic, partition))
        return None if kept is None or self._is_stale(topic, kept) else kept.committed

    def of_group(self, group: str) -> dict[Place, CommittedOffset]:
        return {
            place: kept.committed
            for place, kept in self._offsets.get(group, {}).items()
            if not self._is_stale(place[0], kept)
        }

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Whether a transaction that is open may commit an offset for a partition."""
        place = (topic, partition)
        pending = (open_.get(group, {}).get(place) for open_ in self._pending.values())
        return any(kept is not None and not self._is_stale(topic, kept) for kept in pending)

    def pending_of(self, group: str) -> set[Place]:
        return {
            place
            for open_ in self._pending.values()
            for place, kept in open_.get(group, {}).items()
            if not self._is_stale(place[0], kept)
        }

    # What is in the log, also of topics that are deleted

    def keys_of(self, group: str) -> list[OffsetKey]:
        return [OffsetKey(group, *place) for place in self._offsets.get(group, {})]

    def record_offset(self, key: OffsetKey) -> int | None:
        """Where the commit for a partition lies in the log."""
        kept = self._offsets.get(key.group, {}).get((key.topic, key.partition))
        return None if kept is None else kept.record_offset

    def is_stale(self, key: OffsetKey) -> bool:
        """Whether the offset for a partition is of a topic that is deleted."""
        kept = self._offsets.get(key.group, {}).get((key.topic, key.partition))
        return kept is not None and self._is_stale(key.topic, kept)

    def stale(self) -> Iterator[OffsetKey]:
        """Every offset of a topic that is deleted."""
        for group, offsets in self._offsets.items():
            for place, kept in offsets.items():
                if self._is_stale(place[0], kept):
                    yield OffsetKey(group, *place)

    def _is_stale(self, topic: str, kept: Kept) -> bool:
        topic_id = self._topic_id_of(topic)
        return topic_id is None or kept.committed.topic_id not in {None, topic_id}

    def disown(self, topics: Collection[str]) -> None:
        """Topics of these names are deleted: what has no topic id belonged to them."""
        books = [self._offsets, *self._pending.values()]
        for offsets in (offsets for book in books for offsets in book.values()):
            for place, kept in offsets.items():
                if place[0] in topics and kept.committed.topic_id is None:
                    committed = kept.committed._replace(topic_id=_NO_TOPIC)
                    offsets[place] = kept._replace(committed=committed)

    def groups(self) -> set[str]:
        """Every group that has offsets, or may have when a transaction ends."""
        return set(self._offsets).union(*self._pending.values())

    # Records

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> Replayed:
        replayed = Replayed()
        if header.is_control:
            for record in records:
                is_commit = decode_control(record).type == ControlType.COMMIT
                self._end_transaction(header.producer_id, replayed, is_commit=is_commit)
            return replayed
        for record in records:
            key = None if record.key is None else decode_key(record.key)
            if isinstance(key, OffsetKey):
                self._replay_offset(header, key, record)
                replayed.offsets.add(key)
            elif isinstance(key, GroupKey):
                value = None if record.value is None else decode_group(record.value)
                replayed.groups[key.group] = value
        return replayed

    def _replay_offset(self, header: BatchHeader, key: OffsetKey, record: Record) -> None:
        place = (key.topic, key.partition)
        if record.value is None:
            offsets = self._offsets.get(key.group)
            if offsets is not None:
                offsets.pop(place, None)
                if not offsets:
                    del self._offsets[key.group]
            return
        kept = Kept(decode_offset(record.value), record.offset)
        if header.is_transactional:
            self._pending.setdefault(header.producer_id, {}).setdefault(key.group, {})[place] = kept
        else:
            self._offsets.setdefault(key.group, {})[place] = kept

    def _end_transaction(self, producer_id: int, replayed: Replayed, *, is_commit: bool) -> None:
        for group, pending in self._pending.pop(producer_id, {}).items():
            replayed.offsets.update(OffsetKey(group, *place) for place in pending)
            if not is_commit:
                continue
            offsets = self._offsets.setdefault(group, {})
            for place, kept in pending.items():
                known = offsets.get(place)
                if known is None or known.record_offset < kept.record_offset:
                    offsets[place] = kept

    # Expiry

    def expired(self, group: Group, now_ms: int, retention_ms: int) -> list[OffsetKey]:
        """The offsets of a group that nobody will miss."""
        subscribed = group.subscriptions() if group.state is State.STABLE else None
        found = []
        pending = self.pending_of(group.group_id)
        for place, (committed, _) in self._offsets.get(group.group_id, {}).items():
            from_ms = _kept_from_ms(group, subscribed, place[0], committed)
            if from_ms is None or place in pending:
                continue
            expire_ms = committed.expire_ms
            if now_ms >= (from_ms + retention_ms if expire_ms is None else expire_ms):
                found.append(OffsetKey(group.group_id, *place))
        return found


def _kept_from_ms(
    group: Group, subscribed: set[str] | None, topic: str, committed: CommittedOffset
) -> int | None:
    """From when the retention of an offset counts; None while it is in use."""
    if group.protocol_type is None:
        return committed.commit_ms
    if group.state is State.EMPTY:
        # An offset that was reset after the last member left is as good as new.
        return max(group.since_wall_ms, committed.commit_ms)
    if group.protocol_type == CONSUMER and subscribed is not None and topic not in subscribed:
        return committed.commit_ms
    return None
