"""Answers the fetches of followers. A follower's fetch offset is its log end offset.

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

import asyncio
import random

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.hooks.held_answers import HeldAnswer
from shoal.lite.base.scheduler import monotonic_ms
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.fetch.fetch_answers import Fetched, as_records, encode_answer, error_answer
from shoal.lite.broker.registry import Answer, RawRequest
from shoal.lite.partitions.partition import Partition
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
# How long large batches are held, and the size from which a batch is large.
_GATHERING_S = 0.001
_GATHERED_BYTES = 16 * 1024
# How often the leader is updated about session partitions that requests do not contain.
_REVIEW_MS = 200


def answer_replica_fetch(
    core: BrokerCore, request: RawRequest, fetch: FetchRequest, wait_ms: int
) -> "Answer | asyncio.Future[Answer]":
    try:
        session = _find_session(core, fetch)
    except ApiError as error:
        return encode_answer(request, [], error.code)
    return session.answer(request, fetch, wait_ms)


def _find_session(core: BrokerCore, fetch: FetchRequest) -> "ReplicaSession":
    """Return the session of a request, or a new one; each follower has at most one."""
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
        self.partition: Partition | None = None
        self.leader: LeaderPartition | None = None
        self.leader_epoch = -1
        # Set if the answer needs no records: an error or a diverging epoch.
        self.answer: Fetched | None = None

    @property
    def has_records(self) -> bool:
        """Whether records, or an answer without records, can be sent now."""
        partition = self.partition
        if self.answer is not None or partition is None:
            return True
        return self.requested.offset < partition.log.end_offset

    def has_news(self, replica_id: int) -> bool:
        return self.leader is not None and self.leader.has_updates_for(replica_id)

    def on_data_available(self, size_bytes: int) -> None:
        self.session.on_data_available(self, size_bytes)

    def on_unavailable(self) -> None:
        self.session.on_unavailable(self)

    def detach(self) -> None:
        if self.partition is not None:
            self.partition.followers.discard(self)


class ReplicaSession:
    """The fetch session of one follower."""

    def __init__(self, core: BrokerCore, replica_id: int, session_id: int) -> None:
        """A session without an id ends with its first answer."""
        self.session_id = session_id
        self._core = core
        self._replica_id = replica_id
        self._epoch = FULL_EPOCH
        self._items: dict[Key, _SessionPartition] = {}
        # Partitions that may need an answer; the one that waits longest is first.
        self._to_answer: dict[Key, _SessionPartition] = {}
        self._reviewed_ms = 0
        self._loop = asyncio.get_running_loop()
        # The fetch that is held, if any.
        self._held: asyncio.Future[Answer] | None = None
        # Its deadline. The timer fires then or earlier and is reused by later fetches: nearly all
        # fetches are answered long before their deadline.
        self._held_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_finishing = False
        self._uses_ids = True
        # Partitions whose high watermark is in the answer; their producers can be acknowledged.
        self._answered_partitions: list[Partition] = []

    def check_epoch(self, epoch: int) -> None:
        """Raise `ApiError` if a request has an unexpected session epoch."""
        due = 1 if self._epoch == LAST_EPOCH else self._epoch + 1
        if epoch != due or self._held is not None:
            message = f"fetch session {self.session_id} expects epoch {due}, not {epoch}"
            raise ApiError(Code.INVALID_FETCH_SESSION_EPOCH, message)
        self._epoch = due

    def answer(
        self, request: RawRequest, fetch: FetchRequest, wait_ms: int
    ) -> "Answer | asyncio.Future[Answer]":
        """Apply the follower's positions; answer now, or when a partition has changes."""
        self._apply_request(request, fetch)
        self._request, self._fetch = request, fetch
        if wait_ms > 0 and not any(map(self._is_urgent, self._to_answer.values())):
            return self._hold(wait_ms)
        answer = self._answer()
        self._release_acks()
        return answer

    def _is_urgent(self, item: _SessionPartition) -> bool:
        return item.has_records or item.has_news(self._replica_id)

    def end(self) -> None:
        """End the session; the follower will not use it again."""
        if self._held is not None and not self._held.done():
            self._held.set_result(encode_answer(self._request, [], Code.FETCH_SESSION_ID_NOT_FOUND))
        self._held = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for item in self._items.values():
            item.detach()
        self._items.clear()
        self._to_answer.clear()
        if self._core.replica_sessions.get(self._replica_id) is self:
            del self._core.replica_sessions[self._replica_id]

    # Requests

    def _apply_request(self, request: RawRequest, fetch: FetchRequest) -> None:
        uses_ids = self._uses_ids = request.version >= _FIRST_VERSION_WITH_TOPIC_IDS
        for gone in fetch.forgotten:
            self._drop(key_of(gone, uses_ids=uses_ids))
        now_ms = monotonic_ms()
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
            partition = self._partition(item)
            leader = partition.leader
        except ApiError as error:
            item.detach()
            item.answer = error_answer(requested, error.code)
            self._to_answer[item.key] = item
            return
        if partition is not item.partition:
            item.detach()
            item.partition = partition
            partition.followers.add(item)
        item.leader, item.leader_epoch = leader, leader.leader_epoch
        item.answer = self._check_position(item, leader, now_ms, replica_epoch)
        partition.settle()
        if self._is_urgent(item):
            self._to_answer[item.key] = item
        else:
            self._to_answer.pop(item.key, None)

    def _partition(self, item: _SessionPartition) -> Partition:
        known, requested = item.partition, item.requested
        if known is not None and not known.is_removed:
            return known
        name = self._core.topic_name(requested.topic_id) if self._uses_ids else requested.topic
        return self._core.partition(name, requested.partition)

    def _check_position(
        self, item: _SessionPartition, leader: LeaderPartition, now_ms: int, replica_epoch: int
    ) -> Fetched | None:
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

    def _hold(self, wait_ms: int) -> "asyncio.Future[Answer]":
        future: HeldAnswer[Answer] = HeldAnswer(lambda: self._release(future))
        self._held = future
        self._is_finishing = False
        self._held_until_s = self._loop.time() + wait_ms / 1000
        self._schedule_timer(self._held_until_s)
        return future

    def _schedule_timer(self, when_s: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._held is None:
            return
        if self._loop.time() < self._held_until_s:
            self._schedule_timer(self._held_until_s)
        else:
            self._finish(self._held)

    def on_data_available(self, item: _SessionPartition, size_bytes: int) -> None:
        """Handle new records of a partition, or a new high watermark or log start offset."""
        self._to_answer[item.key] = item
        if self._held is None or self._is_finishing:
            return
        if size_bytes >= _GATHERED_BYTES:
            self._is_finishing = True
            self._loop.call_later(_GATHERING_S, self._finish, self._held)
        elif self._is_urgent(item):
            self._finish_soon(self._held)

    def on_unavailable(self, item: _SessionPartition) -> None:
        """Handle a partition that this broker no longer leads, or that is removed or offline."""
        self._to_answer[item.key] = item
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
            # The follower closed its connection.
            self.end()
            return
        held.set_result(self._answer())
        self._release_acks()

    def _release_acks(self) -> None:
        """Allow acknowledgements: the answer is sent before anything that follows."""
        answered, self._answered_partitions = self._answered_partitions, []
        for partition in answered:
            partition.on_high_watermark_sent()

    # Answering

    def _answer(self) -> Answer:
        self._remaining_bytes = self._fetch.max_bytes
        is_full = self._epoch == FULL_EPOCH
        items = list((self._items if is_full else self._to_answer).values())
        answers = [self._take_answer(item) for item in items]
        if self.session_id == NO_SESSION_ID:
            self.end()
        return encode_answer(self._request, answers, session_id=self.session_id)

    def _take_answer(self, item: _SessionPartition) -> Fetched:
        """Return the answer for a partition; an error is sent once and ends its session entry."""
        answer = item.answer or self._read_records(item)
        if answer.error_code:
            self._drop(item.key)
        elif self._remaining_bytes > 0 or not item.has_records:
            self._to_answer.pop(item.key, None)
        return answer

    def _read_records(self, item: _SessionPartition) -> Fetched:
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
        try:
            records = NOTHING
            if self._remaining_bytes > 0:
                max_bytes = min(requested.max_bytes, self._remaining_bytes)
                records = log.read(
                    requested.offset, max_bytes, upper_offset=log.end_offset, keeps_units=True
                )
                if records.size:
                    partition.on_read(f"replica {self._replica_id}", requested.offset)
                self._remaining_bytes -= records.size
            content = as_records(log, records)
        except ApiError as error:
            return error_answer(requested, error.code)
        leader.on_answer_sent(self._replica_id, leader.high_watermark)
        self._answered_partitions.append(partition)
        return PartitionAnswer(
            requested.topic,
            requested.topic_id,
            requested.partition,
            high_watermark=leader.high_watermark,
            last_stable_offset=leader.high_watermark,
            log_start_offset=log.start_offset,
            records=content,
        )
