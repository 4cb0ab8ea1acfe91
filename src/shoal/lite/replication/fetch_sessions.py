"""Incremental fetch sessions (KIP-227): requests and answers carry only changes. Pure.

Rules of this file:
- A request of epoch 0 asks for a session; its answer carries all partitions, and the session's
  id if there was room. The next requests carry epochs 1, 2, 3 … and only changed partitions, and
  their answers only partitions with changes. A request of epoch -1 uses no session.
- A request for an unknown session or with an unexpected epoch is answered with an error; the
  client then starts a new session.
- The number of sessions is limited by `max.incremental.fetch.session.cache.slots`, and so is the
  number of partitions that all sessions hold. A session is evicted if it was not used for two
  minutes, or if it is as old and smaller than the new one.
- Partitions that returned data move to the end of the order, so that all partitions are served.
"""

import random
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.wire.fetch import (
    NO_OFFSET,
    NO_REPLICA,
    NO_SESSION_ID,
    FetchPartition,
    FetchRequest,
    ForgottenPartition,
    PartitionAnswer,
)
from shoal.wire.framing import PieceT

# Answers the id of a client that sent none.
_ZERO_ID = UUID(int=0)

FULL_EPOCH = 0
FINAL_EPOCH = -1
_EVICTION_MS = 120_000
# The most partitions that all sessions may hold together.
_MOST_PARTITIONS = 200_000
LAST_EPOCH = LAST_ID = (1 << 31) - 1

# The topic's id as a number, or its name; and the partition.
Key = tuple[int | str, int]


@dataclass(slots=True)
class _CachedPartition:
    """A partition of a session, and the offsets that were last sent to the client."""

    requested: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class _Session:
    session_id: int
    uses_ids: bool
    created_ms: int
    used_ms: int
    epoch: int = 1
    partitions: "OrderedDict[Key, _CachedPartition]" = field(default_factory=OrderedDict)


class FetchContext:
    """One request: its partitions, and the selection of answers to return."""

    __slots__ = ("_is_full", "_session", "partitions")

    def __init__(
        self, partitions: list[FetchPartition], session: _Session | None, *, is_full: bool
    ) -> None:
        self.partitions = partitions
        self._session = session
        self._is_full = is_full

    @property
    def session_id(self) -> int:
        return NO_SESSION_ID if self._session is None else self._session.session_id

    def select_changed(
        self, answers: list[PartitionAnswer[PieceT]]
    ) -> list[PartitionAnswer[PieceT]]:
        """Return the answers that the client needs, and remember them as sent."""
        session = self._session
        if session is None:
            return answers
        return [answer for answer in answers if self._is_changed(session, answer) or self._is_full]

    def _is_changed(self, session: _Session, answer: PartitionAnswer[PieceT]) -> bool:
        key = key_of(answer, uses_ids=session.uses_ids)
        known = session.partitions.get(key)
        if known is None:
            return True
        has_records = len(answer.records) > 0
        is_changed = (
            has_records
            or answer.error_code != 0
            or answer.high_watermark != known.high_watermark
            or answer.log_start_offset != known.log_start_offset
            or answer.preferred_read_replica != NO_REPLICA
            or answer.diverging_epoch is not None
        )
        # After an error, the next answer is always sent.
        known.high_watermark = -1 if answer.error_code else answer.high_watermark
        known.log_start_offset = answer.log_start_offset
        if has_records:
            session.partitions.move_to_end(key)
        return is_changed


class FetchSessions:
    """All sessions of a broker."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        # Least recently used first.
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def new_context(self, now_ms: int, fetch: FetchRequest, *, uses_ids: bool) -> FetchContext:
        """Return the context of a request; `ApiError` if it does not match its session."""
        if fetch.session_epoch in {FULL_EPOCH, FINAL_EPOCH}:
            self._end(fetch.session_id)
            session = None
            if fetch.session_epoch == FULL_EPOCH and fetch.partitions:
                session = self._begin(now_ms, fetch, uses_ids=uses_ids)
            return FetchContext(fetch.partitions, session, is_full=True)
        session = self._sessions.get(fetch.session_id)
        if session is None:
            raise ApiError(
                Code.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {fetch.session_id} is unknown"
            )
        if session.epoch != fetch.session_epoch:
            message = (
                f"fetch session {fetch.session_id} expects epoch {session.epoch}, "
                f"not {fetch.session_epoch}"
            )
            raise ApiError(Code.INVALID_FETCH_SESSION_EPOCH, message)
        if session.uses_ids != uses_ids:
            message = "a fetch session must not mix topic ids and topic names"
            raise ApiError(Code.FETCH_SESSION_TOPIC_ID_ERROR, message)
        if self._partition_count + len(fetch.partitions) > _MOST_PARTITIONS:
            self._end(session.session_id)
            raise ApiError(Code.FETCH_SESSION_ID_NOT_FOUND, "the fetch session cache is full")
        self._update(session, fetch)
        if not session.partitions:
            self._end(session.session_id)
            return FetchContext([], None, is_full=False)
        session.used_ms = now_ms
        session.epoch = 1 if session.epoch == LAST_EPOCH else session.epoch + 1
        self._sessions.move_to_end(session.session_id)
        requested = [known.requested for known in session.partitions.values()]
        return FetchContext(requested, session, is_full=False)

    def _begin(self, now_ms: int, fetch: FetchRequest, *, uses_ids: bool) -> _Session | None:
        size = len(fetch.partitions)
        while len(self._sessions) >= self._slots or self._partition_count + size > _MOST_PARTITIONS:
            if not self._evict_one(now_ms, size):
                return None
        session = _Session(self._new_id(), uses_ids, now_ms, now_ms)
        self._sessions[session.session_id] = session
        self._update(session, fetch)
        return session

    def _evict_one(self, now_ms: int, size: int) -> bool:
        """Evict one session if possible; return whether one was evicted."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and now_ms - oldest.used_ms > _EVICTION_MS:
            self._end(oldest.session_id)
            return True
        evictable = (
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > _EVICTION_MS and len(session.partitions) < size
        )
        smallest = min(evictable, key=lambda session: len(session.partitions), default=None)
        if smallest is None:
            return False
        self._end(smallest.session_id)
        return True

    def _update(self, session: _Session, fetch: FetchRequest) -> None:
        partitions = session.partitions
        before = len(partitions)
        for gone in fetch.forgotten:
            partitions.pop(key_of(gone, uses_ids=session.uses_ids), None)
        for requested in fetch.partitions:
            key = key_of(requested, uses_ids=session.uses_ids)
            known = partitions.get(key)
            if known is None:
                partitions[key] = _CachedPartition(requested)
            else:
                known.requested = requested
        self._partition_count += len(partitions) - before

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)

    def _new_id(self) -> int:
        while True:
            session_id = random.randint(1, LAST_ID)  # noqa: S311 - not a secret
            if session_id not in self._sessions:
                return session_id


def key_of(
    item: FetchPartition | ForgottenPartition | PartitionAnswer[PieceT], *, uses_ids: bool
) -> Key:
    """Return the key of a partition within a session."""
    if not uses_ids:
        return item.topic, item.partition
    return 0 if item.topic_id is None else item.topic_id.int, item.partition


def error_answer(
    item: FetchPartition, code: Code, log_start_offset: int = NO_OFFSET
) -> PartitionAnswer[Any]:
    """Return the answer of a partition that cannot be read."""
    return PartitionAnswer(
        item.topic,
        item.topic_id or _ZERO_ID,
        item.partition,
        error_code=code,
        high_watermark=NO_OFFSET,
        last_stable_offset=NO_OFFSET,
        log_start_offset=log_start_offset,
    )
