"""Fetch sessions (KIP-227): what a client asks for is remembered, and only changes are said. Pure.

Rules of this file:
- A request of epoch 0 asks for a session; its answer carries all partitions, and the session's
  id if there was room. The next requests carry epochs 1, 2, 3 … and only what has changed, and
  their answers only partitions with news. A request of epoch -1 wants no session.
- Whoever asks within a session that is not there, or out of turn, is told so and begins anew.
- Sessions are limited in number, as by `max.incremental.fetch.session.cache.slots`, and in what
  they remember altogether. One makes room if it was not used for two minutes, or is as old and
  smaller than the new one.
- Partitions that had data go to the end of the line, so that all get their turn.
"""

import random
from collections import OrderedDict
from dataclasses import dataclass, field

from shoal.lite.base.codes import Code, Refused
from shoal.wire.fetch import (
    NO_REPLICA,
    NO_SESSION_ID,
    FetchPartition,
    FetchRequest,
    ForgottenPartition,
    PartitionAnswer,
)
from shoal.wire.framing import PieceT

FULL_EPOCH = 0
FINAL_EPOCH = -1
_EVICTION_MS = 120_000
# How many partitions all sessions may remember.
_MOST_PARTITIONS = 200_000
LAST_EPOCH = LAST_ID = (1 << 31) - 1

# The number of a topic's id or its name, and the partition.
Key = tuple[int | str, int]


@dataclass(slots=True)
class _Remembered:
    """A partition of a session, and what the client was told last."""

    asked: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class _Session:
    session_id: int
    uses_ids: bool
    created_ms: int
    used_ms: int
    epoch: int = 1
    partitions: "OrderedDict[Key, _Remembered]" = field(default_factory=OrderedDict)


class Turn:
    """One request: what it means to ask for, and what of the answers it is told."""

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

    def told(self, answers: list[PartitionAnswer[PieceT]]) -> list[PartitionAnswer[PieceT]]:
        """The answers that the client needs to hear; they are remembered as told."""
        session = self._session
        if session is None:
            return answers
        return [answer for answer in answers if self._is_news(session, answer) or self._is_full]

    def _is_news(self, session: _Session, answer: PartitionAnswer[PieceT]) -> bool:
        key = key_of(answer, uses_ids=session.uses_ids)
        known = session.partitions.get(key)
        if known is None:
            return True
        has_records = len(answer.records) > 0
        is_news = (
            has_records
            or answer.error_code != 0
            or answer.high_watermark != known.high_watermark
            or answer.log_start_offset != known.log_start_offset
            or answer.preferred_read_replica != NO_REPLICA
            or answer.diverging_epoch is not None
        )
        # After an error the next answer is news, whatever it is.
        known.high_watermark = -1 if answer.error_code else answer.high_watermark
        known.log_start_offset = answer.log_start_offset
        if has_records:
            session.partitions.move_to_end(key)
        return is_news


class FetchSessions:
    """All sessions of a broker."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        # The one that was used longest ago stands first.
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def turn(self, now_ms: int, fetch: FetchRequest, *, uses_ids: bool) -> Turn:
        """What a request asks for; `Refused` if it does not fit its session."""
        if fetch.session_epoch in {FULL_EPOCH, FINAL_EPOCH}:
            self._end(fetch.session_id)
            session = None
            if fetch.session_epoch == FULL_EPOCH and fetch.partitions:
                session = self._begin(now_ms, fetch, uses_ids=uses_ids)
            return Turn(fetch.partitions, session, is_full=True)
        session = self._sessions.get(fetch.session_id)
        if session is None:
            raise Refused(Code.FETCH_SESSION_ID_NOT_FOUND, f"no session {fetch.session_id}")
        if session.epoch != fetch.session_epoch:
            message = f"session {fetch.session_id} is at {session.epoch}, not {fetch.session_epoch}"
            raise Refused(Code.INVALID_FETCH_SESSION_EPOCH, message)
        if session.uses_ids != uses_ids:
            message = "a session names topics by their ids, or by their names"
            raise Refused(Code.FETCH_SESSION_TOPIC_ID_ERROR, message)
        if self._partition_count + len(fetch.partitions) > _MOST_PARTITIONS:
            self._end(session.session_id)
            raise Refused(Code.FETCH_SESSION_ID_NOT_FOUND, "there is no room for this session")
        self._update(session, fetch)
        if not session.partitions:
            self._end(session.session_id)
            return Turn([], None, is_full=False)
        session.used_ms = now_ms
        session.epoch = 1 if session.epoch == LAST_EPOCH else session.epoch + 1
        self._sessions.move_to_end(session.session_id)
        asked = [known.asked for known in session.partitions.values()]
        return Turn(asked, session, is_full=False)

    def _begin(self, now_ms: int, fetch: FetchRequest, *, uses_ids: bool) -> _Session | None:
        size = len(fetch.partitions)
        while len(self._sessions) >= self._slots or self._partition_count + size > _MOST_PARTITIONS:
            if not self._make_room(now_ms, size):
                return None
        session = _Session(self._new_id(), uses_ids, now_ms, now_ms)
        self._sessions[session.session_id] = session
        self._update(session, fetch)
        return session

    def _make_room(self, now_ms: int, size: int) -> bool:
        """End one session that may end; says whether there was one."""
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
        for asked in fetch.partitions:
            key = key_of(asked, uses_ids=session.uses_ids)
            known = partitions.get(key)
            if known is None:
                partitions[key] = _Remembered(asked)
            else:
                known.asked = asked
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
    """What tells partitions of a session apart."""
    if not uses_ids:
        return item.topic, item.partition
    return 0 if item.topic_id is None else item.topic_id.int, item.partition
