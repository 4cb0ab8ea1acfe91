"""The leader's end of a fetch session: what it answers to one follower, and when. No I/O.

Rules of this file:
- A follower has a fetch session (KIP-227): it sends all its partitions once, then only changed
  ones, and answers contain only partitions with changes. So the cost of a fetch depends on the
  number of changes, not on the number of partitions.
- The leader of a partition learns the follower's position when a request contains the partition,
  and for all other partitions of the session a few times a second: the ISR depends on the
  follower being alive and on its position. The leader's `FetchVerdict` applies until then.
- A fetch is held until any of its partitions has records; an error of a partition is answered at
  once, and the partition leaves the session.
- A new high watermark is sent at once, with the next records if there are any. Producers are
  acknowledged after that: a replica that is left alone below min.insync.replicas can only serve
  records that it knows to be committed.
- Large batches are held for a moment too, so that a follower gets several at once: a producer
  that fills such batches has waited for longer than that.
- A held fetch is answered when the follower sends another request on the connection.
- If the leadership changed while a fetch was held, the answer is an error without records.
"""

from collections.abc import Sized
from random import Random
from typing import Any, Protocol

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.scheduler import Scheduler, Timer
from shoal.lite.partitions.partition import PartitionShell
from shoal.lite.replication.fetch_sessions import (
    FINAL_EPOCH,
    FULL_EPOCH,
    LAST_EPOCH,
    LAST_ID,
    Key,
    error_answer,
    key_of,
)
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import ReplicaFetch
from shoal.wire.fetch import NO_SESSION_ID, EpochEnd, FetchPartition, FetchRequest, PartitionAnswer
from shoal.wire.record_messages import NO_RECORDS

# How long large batches are held, and the size from which a batch is large.
_GATHERING_MS = 1
_GATHERED_BYTES = 16 * 1024
# How often the leader is updated about session partitions that requests do not contain.
_REVIEW_MS = 200

Answers = list[PartitionAnswer[Any]]


class HeldFetch(Protocol):
    """A fetch that is not answered yet."""

    def cancelled(self) -> bool:
        """Return whether the follower no longer waits: it closed its connection."""

    def deliver(self, session_id: int, code: Code, answers: Answers) -> None:
        """Send the answer, before anything that is sent later."""


class ReplicaFetchHost(Protocol):
    """The part of a broker that the sessions use."""

    @property
    def scheduler(self) -> Scheduler: ...
    def is_registered(self, broker_id: int) -> bool: ...
    def find_partition(self, requested: FetchPartition, *, uses_ids: bool) -> PartitionShell[Any]:
        """Return the replica of this broker; `ApiError` if there is none."""


class ReplicaSessions:
    """The sessions of all followers of a broker; each has at most one."""

    def __init__(
        self,
        host: ReplicaFetchHost,
        random: Random,
        session_type: "type[ReplicaSession] | None" = None,
    ) -> None:
        """`random` draws the ids of sessions; a simulation has sessions of other types."""
        self.host = host
        self._random = random
        self._session_type = session_type or ReplicaSession
        self.by_follower: dict[int, ReplicaSession] = {}

    def find(self, fetch: FetchRequest) -> "ReplicaSession":
        """Return the session of a request, or a new one; `ApiError` if it has another epoch."""
        known = self.by_follower.get(fetch.replica_id)
        if fetch.session_epoch in {FULL_EPOCH, FINAL_EPOCH}:
            if known is not None:
                known.end()
            if fetch.session_epoch == FINAL_EPOCH or not self.host.is_registered(fetch.replica_id):
                return self._session_type(self, fetch.replica_id, NO_SESSION_ID)
            session_id = self._random.randint(1, LAST_ID)
            session = self._session_type(self, fetch.replica_id, session_id)
            self.by_follower[fetch.replica_id] = session
            return session
        if known is None or known.session_id != fetch.session_id:
            raise ApiError(
                Code.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {fetch.session_id} is unknown"
            )
        known.check_epoch(fetch.session_epoch)
        return known


class _SessionPartition:
    """A partition of a session; a waiter of the partition."""

    __slots__ = ("answer", "key", "leader", "leader_epoch", "partition", "requested", "session")

    def __init__(self, session: "ReplicaSession", key: Key, requested: FetchPartition) -> None:
        self.session = session
        self.key = key
        self.requested = requested
        self.partition: PartitionShell[Any] | None = None
        self.leader: LeaderPartition | None = None
        self.leader_epoch = -1
        # Set if the answer needs no records: an error or a diverging epoch.
        self.answer: PartitionAnswer[Any] | None = None

    @property
    def has_records(self) -> bool:
        """Whether records, or an answer without records, can be sent now."""
        partition = self.partition
        if self.answer is not None or partition is None:
            return True
        return bool(self.requested.offset < partition.log.end_offset)

    def has_news(self, replica_id: int) -> bool:
        return self.leader is not None and self.leader.has_updates_for(replica_id)

    def on_data_available(self, size_bytes: int) -> None:
        self.session.on_data_available(self, size_bytes)

    def on_unavailable(self) -> None:
        self.session.on_unavailable(self)

    def detach(self) -> None:
        if self.partition is not None:
            self.partition.followers.pop(self, None)


class ReplicaSession:
    """The fetch session of one follower."""

    def __init__(self, sessions: ReplicaSessions, replica_id: int, session_id: int) -> None:
        """A session without an id ends with its first answer."""
        self.session_id = session_id
        self._sessions = sessions
        self._host = sessions.host
        self._scheduler = sessions.host.scheduler
        self._replica_id = replica_id
        self._epoch = FULL_EPOCH
        self._items: dict[Key, _SessionPartition] = {}
        # Partitions that may need an answer; the one that waits longest is first.
        self._to_answer: dict[Key, _SessionPartition] = {}
        self._reviewed_ms = -_REVIEW_MS
        # The fetch that is held, if any.
        self._held: HeldFetch | None = None
        # Its deadline. The timer fires then or earlier and is reused by later fetches: nearly all
        # fetches are answered long before their deadline.
        self._held_until_ms = 0
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._is_finishing = False
        self._uses_ids = True
        self._max_bytes = 0
        # Partitions whose high watermark is in the answer; their producers can be acknowledged.
        self._answered_partitions: list[PartitionShell[Any]] = []

    def check_epoch(self, epoch: int) -> None:
        """Raise `ApiError` if a request has an unexpected session epoch."""
        due = 1 if self._epoch == LAST_EPOCH else self._epoch + 1
        if epoch != due or self._held is not None:
            message = f"fetch session {self.session_id} expects epoch {due}, not {epoch}"
            raise ApiError(Code.INVALID_FETCH_SESSION_EPOCH, message)
        self._epoch = due

    def on_fetch(self, fetch: FetchRequest, *, wait_ms: int, uses_ids: bool) -> Answers | None:
        """Apply the follower's positions; return the answers, or None to `hold` the fetch.

        After the answers are sent, `release_acks` must be called.
        """
        self._uses_ids = uses_ids
        self._max_bytes = fetch.max_bytes
        now_ms = self._scheduler.now_ms()
        self._apply_request(fetch, now_ms)
        if wait_ms > 0 and not any(map(self._is_urgent, self._to_answer.values())):
            self._held_until_ms = now_ms + wait_ms
            return None
        return self._take_answers()

    def _is_urgent(self, item: _SessionPartition) -> bool:
        return item.has_records or item.has_news(self._replica_id)

    def end(self) -> None:
        """End the session; the follower will not use it again."""
        held, self._held = self._held, None
        if held is not None and not held.cancelled():
            held.deliver(NO_SESSION_ID, Code.FETCH_SESSION_ID_NOT_FOUND, [])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for item in self._items.values():
            item.detach()
        self._items.clear()
        self._to_answer.clear()
        if self._sessions.by_follower.get(self._replica_id) is self:
            del self._sessions.by_follower[self._replica_id]

    # Requests

    def _apply_request(self, fetch: FetchRequest, now_ms: int) -> None:
        uses_ids = self._uses_ids
        for gone in fetch.forgotten:
            self._drop(key_of(gone, uses_ids=uses_ids))
        for requested in fetch.partitions:
            key = key_of(requested, uses_ids=uses_ids)
            item = self._items.get(key)
            if item is None:
                item = self._items[key] = _SessionPartition(self, key, requested)
            item.requested = requested
            self._update_item(item, now_ms, fetch.replica_epoch)
        if now_ms - self._reviewed_ms >= _REVIEW_MS:
            self._reviewed_ms = now_ms
            named = {key_of(requested, uses_ids=uses_ids) for requested in fetch.partitions}
            for key, item in list(self._items.items()):
                if key not in named:
                    self._update_item(item, now_ms, fetch.replica_epoch)

    def _update_item(self, item: _SessionPartition, now_ms: int, replica_epoch: int) -> None:
        """Pass the follower's position to the leader, and note whether an answer is needed."""
        requested = item.requested
        try:
            partition = item.partition
            if partition is None or partition.is_removed:
                partition = self._host.find_partition(requested, uses_ids=self._uses_ids)
            leader = partition.leader
        except ApiError as error:
            item.detach()
            item.answer = error_answer(requested, error.code)
            self._to_answer[item.key] = item
            return
        if partition is not item.partition:
            item.detach()
            item.partition = partition
            partition.followers[item] = None
        item.leader, item.leader_epoch = leader, leader.leader_epoch
        item.answer = self._check_position(item, leader, now_ms, replica_epoch)
        partition.settle()
        if self._is_urgent(item):
            self._to_answer[item.key] = item
        else:
            self._to_answer.pop(item.key, None)

    def _check_position(
        self, item: _SessionPartition, leader: LeaderPartition, now_ms: int, replica_epoch: int
    ) -> PartitionAnswer[Any] | None:
        requested = item.requested
        position = ReplicaFetch(
            requested.offset,
            requested.leader_epoch,
            requested.last_fetched_epoch,
            requested.log_start_offset,
        )
        verdict = leader.on_follower_fetch(
            now_ms, self._replica_id, position, broker_epoch=replica_epoch
        )
        if verdict.code != Code.NONE:
            return error_answer(requested, verdict.code, verdict.log_start_offset)
        if verdict.diverging is None:
            return None
        return PartitionAnswer(
            requested.topic,
            requested.topic_id,
            requested.partition,
            high_watermark=verdict.high_watermark,
            last_stable_offset=verdict.high_watermark,
            log_start_offset=verdict.log_start_offset,
            diverging_epoch=EpochEnd(*verdict.diverging),
        )

    def _drop(self, key: Key) -> None:
        item = self._items.pop(key, None)
        if item is not None:
            item.detach()
            self._to_answer.pop(key, None)

    # Holding

    def hold(self, held: HeldFetch) -> None:
        """Answer the last fetch when a partition has changes, or when its wait is over."""
        self._held = held
        self._is_finishing = False
        self._schedule_timer()

    def _schedule_timer(self) -> None:
        if self._timer is not None:
            if self._timer_ms <= self._held_until_ms:
                return
            self._timer.cancel()
        self._timer_ms = self._held_until_ms
        self._timer = self._scheduler.call_at_ms(self._timer_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._held is None:
            return
        if self._scheduler.now_ms() < self._held_until_ms:
            self._schedule_timer()
        else:
            self._finish(self._held)

    def on_data_available(self, item: _SessionPartition, size_bytes: int) -> None:
        """Handle new records of a partition, or a new high watermark or log start offset."""
        self._to_answer[item.key] = item
        if self._held is None or self._is_finishing:
            return
        if size_bytes >= _GATHERED_BYTES:
            self._is_finishing = True
            self._scheduler.call_later_ms(_GATHERING_MS, self._finish, self._held)
        elif self._is_urgent(item):
            self.release(self._held)

    def on_unavailable(self, item: _SessionPartition) -> None:
        """Handle a partition that this broker no longer leads, or that is removed or offline."""
        self._to_answer[item.key] = item
        if self._held is not None:
            self.release(self._held)

    def release(self, held: HeldFetch) -> None:
        """Answer a fetch after this event, if it is still held."""
        if self._held is held and not self._is_finishing:
            self._is_finishing = True
            self._scheduler.call_soon(self._finish, held)

    def _finish(self, held: HeldFetch) -> None:
        if self._held is not held:
            return
        self._held = None
        if held.cancelled():
            self.end()
            return
        session_id, answers = self.session_id, self._take_answers()
        held.deliver(session_id, Code.NONE, answers)
        self.release_acks()

    def release_acks(self) -> None:
        """Allow acknowledgements: the answer is sent before anything that follows."""
        answered, self._answered_partitions = self._answered_partitions, []
        for partition in answered:
            partition.on_high_watermark_sent()

    # Answering

    def _take_answers(self) -> Answers:
        self._remaining_bytes = self._max_bytes
        is_full = self._epoch == FULL_EPOCH
        items = list((self._items if is_full else self._to_answer).values())
        answers = [self._take_answer(item) for item in items]
        if self.session_id == NO_SESSION_ID:
            self.end()
        return answers

    def _take_answer(self, item: _SessionPartition) -> PartitionAnswer[Any]:
        """Return the answer for a partition; an error is sent once and ends its session entry."""
        answer = item.answer or self._read_records(item)
        if answer.error_code:
            self._drop(item.key)
        elif self._remaining_bytes > 0 or not item.has_records:
            self._to_answer.pop(item.key, None)
        return answer

    def _read_records(self, item: _SessionPartition) -> PartitionAnswer[Any]:
        requested, partition, leader = item.requested, item.partition, item.leader
        assert partition is not None  # noqa: S101 - for the type checker
        assert leader is not None  # noqa: S101
        is_current = partition.replica.role is leader and leader.leader_epoch == item.leader_epoch
        if not is_current or partition.is_removed:
            return error_answer(requested, Code.NOT_LEADER_OR_FOLLOWER)
        log = partition.log
        if requested.offset < log.start_offset:
            # The records were deleted while the fetch was held.
            return error_answer(requested, Code.OFFSET_OUT_OF_RANGE, log.start_offset)
        records: Sized = NO_RECORDS
        if self._remaining_bytes > 0:
            max_bytes = min(requested.max_bytes, self._remaining_bytes)
            try:
                records = partition.read_for_replica(self._replica_id, requested.offset, max_bytes)
            except ApiError as error:
                return error_answer(requested, error.code)
            self._remaining_bytes -= len(records)
        leader.on_answer_sent(self._replica_id, leader.high_watermark)
        self._answered_partitions.append(partition)
        return PartitionAnswer(
            requested.topic,
            requested.topic_id,
            requested.partition,
            high_watermark=leader.high_watermark,
            last_stable_offset=leader.high_watermark,
            log_start_offset=log.start_offset,
            records=records,
        )
