"""A follower's fetch: what it asks for says what it has.

Rules of this file:
- A follower has a session (KIP-227): it says once what it wants, then only what has changed, and
  is answered only where there is something to say. So a fetch costs what moves, not what is there.
- The leader hears of a partition when the follower names it, and of all the others a few times a
  second: that it is still there, and where, decides who is in sync. What the leader says about it
  (`FetchVerdict`) stands until then.
- A fetch is held until there are records for any of its partitions; what goes wrong with one is
  answered at once, and the partition leaves the session.
- News of the high watermark leave at once, with the next records if there are any. Producers are
  told after the followers: whoever is left alone with too few in sync can only serve what it
  knows to be committed.
- Large batches are held for a moment too, so that a follower gets several at once: a producer
  that gathers so much has waited for longer than that.
- A follower that sends another request has something to say: the fetch that is held is answered.
- If the leadership has changed while a fetch was held, nothing is given.
"""

import asyncio
import random

from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.hooks.held_answers import HeldAnswer
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.fetch.fetch_answers import Fetched, as_records, encoded, failed
from shoal.lite.broker.registry import Answer, Request
from shoal.lite.partitions.partition import Partition, monotonic_ms
from shoal.lite.replication.fetch_sessions import (
    FINAL_EPOCH,
    FULL_EPOCH,
    LAST_EPOCH,
    LAST_ID,
    Key,
    key_of,
)
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import ReplicaFetch
from shoal.lite.storage.slices import NOTHING
from shoal.wire.fetch import NO_SESSION_ID, EpochEnd, FetchPartition, FetchRequest, PartitionAnswer

_FIRST_VERSION_WITH_TOPIC_IDS = 13
# How long large batches are held, and from which size on.
_GATHERING_S = 0.001
_GATHERED_BYTES = 16 * 1024
# How often the leader hears of partitions that the follower has no reason to name.
_REVIEW_MS = 200


def answer_replica(
    core: BrokerCore, request: Request, fetch: FetchRequest, wait_ms: int
) -> "Answer | asyncio.Future[Answer]":
    try:
        session = _session(core, fetch)
    except Refused as refused:
        return encoded(request, [], refused.code)
    return session.answer(request, fetch, wait_ms)


def _session(core: BrokerCore, fetch: FetchRequest) -> "ReplicaSession":
    """The session that a request belongs to, or a new one; one for each broker is kept."""
    known = core.replica_sessions.get(fetch.replica_id)
    if fetch.session_epoch in {FULL_EPOCH, FINAL_EPOCH}:
        if known is not None:
            known.end()
        if fetch.session_epoch == FINAL_EPOCH or fetch.replica_id not in core.state.brokers:
            return ReplicaSession(core, fetch.replica_id, NO_SESSION_ID)
        session_id = random.randint(1, LAST_ID)  # noqa: S311 - not a secret
        session = ReplicaSession(core, fetch.replica_id, session_id)
        core.replica_sessions[fetch.replica_id] = session
        return session
    if known is None or known.session_id != fetch.session_id:
        raise Refused(Code.FETCH_SESSION_ID_NOT_FOUND, f"no session {fetch.session_id}")
    known.check_turn(fetch.session_epoch)
    return known


class _Item:
    """A partition of a session; waits for more of it."""

    __slots__ = ("answer", "asked", "key", "leader", "leader_epoch", "partition", "session")

    def __init__(self, session: "ReplicaSession", key: Key, asked: FetchPartition) -> None:
        self.session = session
        self.key = key
        self.asked = asked
        self.partition: Partition | None = None
        self.leader: LeaderPartition | None = None
        self.leader_epoch = -1
        # There once nothing is to be read for it.
        self.answer: Fetched | None = None

    @property
    def has_records(self) -> bool:
        """Or anything else that does not wait."""
        partition = self.partition
        if self.answer is not None or partition is None:
            return True
        return self.asked.offset < partition.log.end_offset

    def has_news(self, replica_id: int) -> bool:
        return self.leader is not None and self.leader.has_news_for(replica_id)

    def on_more(self, size_bytes: int) -> None:
        self.session.on_more(self, size_bytes)

    def on_gone(self) -> None:
        self.session.on_gone(self)

    def leave(self) -> None:
        if self.partition is not None:
            self.partition.followers.discard(self)


class ReplicaSession:
    """What one follower wants of this broker."""

    def __init__(self, core: BrokerCore, replica_id: int, session_id: int) -> None:
        """Without an id it ends with its first answer."""
        self.session_id = session_id
        self._core = core
        self._replica_id = replica_id
        self._epoch = FULL_EPOCH
        self._items: dict[Key, _Item] = {}
        # Those about which something may have to be said; who waits longest stands first.
        self._marked: dict[Key, _Item] = {}
        self._reviewed_ms = 0
        self._loop = asyncio.get_running_loop()
        # The fetch that is held, if there is one.
        self._held: asyncio.Future[Answer] | None = None
        # Until when, and when that is looked at: not later. Nearly all are answered long before.
        self._held_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_finishing = False
        self._uses_ids = True
        # Where producers may be told now what the follower was told.
        self._told_partitions: list[Partition] = []

    def check_turn(self, epoch: int) -> None:
        """Refuse a request out of turn."""
        due = 1 if self._epoch == LAST_EPOCH else self._epoch + 1
        if epoch != due or self._held is not None:
            message = f"session {self.session_id} is at {due}, not {epoch}"
            raise Refused(Code.INVALID_FETCH_SESSION_EPOCH, message)
        self._epoch = due

    def answer(
        self, request: Request, fetch: FetchRequest, wait_ms: int
    ) -> "Answer | asyncio.Future[Answer]":
        """Hear what the follower has, and tell it what is new, now or when there is something."""
        self._hear(request, fetch)
        self._request, self._fetch = request, fetch
        if wait_ms > 0 and not any(map(self._is_urgent, self._marked.values())):
            return self._hold(wait_ms)
        answer = self._answer()
        self._let_acknowledge()
        return answer

    def _is_urgent(self, item: _Item) -> bool:
        return item.has_records or item.has_news(self._replica_id)

    def end(self) -> None:
        """The follower is not expected to come back to it."""
        if self._held is not None and not self._held.done():
            self._held.set_result(encoded(self._request, [], Code.FETCH_SESSION_ID_NOT_FOUND))
        self._held = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for item in self._items.values():
            item.leave()
        self._items.clear()
        self._marked.clear()
        if self._core.replica_sessions.get(self._replica_id) is self:
            del self._core.replica_sessions[self._replica_id]

    # Hearing

    def _hear(self, request: Request, fetch: FetchRequest) -> None:
        uses_ids = self._uses_ids = request.version >= _FIRST_VERSION_WITH_TOPIC_IDS
        for gone in fetch.forgotten:
            self._drop(key_of(gone, uses_ids=uses_ids))
        now_ms = monotonic_ms()
        for asked in fetch.partitions:
            key = key_of(asked, uses_ids=uses_ids)
            item = self._items.get(key)
            if item is None:
                item = self._items[key] = _Item(self, key, asked)
            item.asked = asked
            self._judge(item, now_ms, fetch.replica_epoch)
        if now_ms - self._reviewed_ms >= _REVIEW_MS:
            self._reviewed_ms = now_ms
            named = {key_of(asked, uses_ids=uses_ids) for asked in fetch.partitions}
            for key, item in list(self._items.items()):
                if key not in named:
                    self._judge(item, now_ms, fetch.replica_epoch)

    def _judge(self, item: _Item, now_ms: int, replica_epoch: int) -> None:
        """Tell the leader what the follower has, and note whether there is something to say."""
        asked = item.asked
        try:
            partition = self._partition(item)
            leader = partition.leader
        except Refused as refused:
            item.leave()
            item.answer = failed(asked, refused.code)
            self._marked[item.key] = item
            return
        if partition is not item.partition:
            item.leave()
            item.partition = partition
            partition.followers.add(item)
        item.leader, item.leader_epoch = leader, leader.leader_epoch
        item.answer = self._objection(item, leader, now_ms, replica_epoch)
        partition.settle()
        if self._is_urgent(item):
            self._marked[item.key] = item
        else:
            self._marked.pop(item.key, None)

    def _partition(self, item: _Item) -> Partition:
        known, asked = item.partition, item.asked
        if known is not None and not known.is_gone:
            return known
        name = self._core.topic_name(asked.topic_id) if self._uses_ids else asked.topic
        return self._core.partition(name, asked.partition)

    def _objection(
        self, item: _Item, leader: LeaderPartition, now_ms: int, replica_epoch: int
    ) -> Fetched | None:
        asked = item.asked
        position = ReplicaFetch(
            asked.offset, asked.leader_epoch, asked.last_fetched_epoch, asked.log_start_offset
        )
        verdict = leader.follower_fetched(
            now_ms, self._replica_id, position, broker_epoch=replica_epoch
        )
        if verdict.code != Code.NONE:
            return failed(asked, verdict.code, verdict.log_start_offset)
        if verdict.diverging is None:
            return None
        return PartitionAnswer(
            asked.topic,
            asked.topic_id,
            asked.partition,
            high_watermark=verdict.high_watermark,
            last_stable_offset=verdict.high_watermark,
            log_start_offset=verdict.log_start_offset,
            diverging_epoch=EpochEnd(*verdict.diverging),
        )

    def _drop(self, key: Key) -> None:
        item = self._items.pop(key, None)
        if item is not None:
            item.leave()
            self._marked.pop(key, None)

    # Holding

    def _hold(self, wait_ms: int) -> "asyncio.Future[Answer]":
        future: HeldAnswer[Answer] = HeldAnswer(lambda: self._release(future))
        self._held = future
        self._is_finishing = False
        self._held_until_s = self._loop.time() + wait_ms / 1000
        self._look_at(self._held_until_s)
        return future

    def _look_at(self, when_s: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._held is None:
            return
        if self._loop.time() < self._held_until_s:
            self._look_at(self._held_until_s)
        else:
            self._finish(self._held)

    def on_more(self, item: _Item, size_bytes: int) -> None:
        """There is more of a partition, or news."""
        self._marked[item.key] = item
        if self._held is None or self._is_finishing:
            return
        if size_bytes >= _GATHERED_BYTES:
            self._is_finishing = True
            self._loop.call_later(_GATHERING_S, self._finish, self._held)
        elif self._is_urgent(item):
            self._finish_soon(self._held)

    def on_gone(self, item: _Item) -> None:
        """The partition is led elsewhere, or no more."""
        self._marked[item.key] = item
        if self._held is not None and not self._is_finishing:
            self._finish_soon(self._held)

    def _release(self, held: "asyncio.Future[Answer]") -> None:
        if self._held is held and not self._is_finishing:
            self._finish_soon(held)

    def _finish_soon(self, held: "asyncio.Future[Answer]") -> None:
        self._is_finishing = True
        self._loop.call_soon(self._finish, held)

    def _finish(self, held: "asyncio.Future[Answer]") -> None:
        if self._held is not held:
            return
        self._held = None
        if held.cancelled():
            # The follower has gone, and its connection with it.
            self.end()
            return
        held.set_result(self._answer())
        self._let_acknowledge()

    def _let_acknowledge(self) -> None:
        """The answer leaves next: before anything that is said from here on."""
        told, self._told_partitions = self._told_partitions, []
        for partition in told:
            partition.on_told()

    # Answering

    def _answer(self) -> Answer:
        self._left_bytes = self._fetch.max_bytes
        is_all_told = self._epoch == FULL_EPOCH
        items = list((self._items if is_all_told else self._marked).values())
        told = [self._told(item) for item in items]
        if self.session_id == NO_SESSION_ID:
            self.end()
        return encoded(self._request, told, session_id=self.session_id)

    def _told(self, item: _Item) -> Fetched:
        """What to say of a partition; an error is said once."""
        answer = item.answer or self._given(item)
        if answer.error_code:
            self._drop(item.key)
        elif self._left_bytes > 0 or not item.has_records:
            self._marked.pop(item.key, None)
        return answer

    def _given(self, item: _Item) -> Fetched:
        asked, partition, leader = item.asked, item.partition, item.leader
        assert partition is not None  # noqa: S101 - for the type checker
        assert leader is not None  # noqa: S101
        is_current = partition.replica.role is leader and leader.leader_epoch == item.leader_epoch
        if not is_current or partition.is_gone:
            return failed(asked, Code.NOT_LEADER_OR_FOLLOWER)
        log = partition.log
        if asked.offset < log.start_offset:
            # Deleted while the fetch was held.
            return failed(asked, Code.OFFSET_OUT_OF_RANGE, log.start_offset)
        try:
            records = NOTHING
            if self._left_bytes > 0:
                max_bytes = min(asked.max_bytes, self._left_bytes)
                records = log.read(
                    asked.offset, max_bytes, upper_offset=log.end_offset, keeps_units=True
                )
                if records.size:
                    partition.on_read(f"replica {self._replica_id}", asked.offset)
                self._left_bytes -= records.size
            content = as_records(log, records)
        except Refused as refused:
            return failed(asked, refused.code)
        leader.told(self._replica_id, leader.high_watermark)
        self._told_partitions.append(partition)
        return PartitionAnswer(
            asked.topic,
            asked.topic_id,
            asked.partition,
            high_watermark=leader.high_watermark,
            last_stable_offset=leader.high_watermark,
            log_start_offset=log.start_offset,
            records=content,
        )
