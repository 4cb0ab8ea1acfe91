"""Fetch sessions without a broker: limits, session epochs, and the answers that are sent."""

import pytest

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.replication.fetch_sessions import FetchContext, FetchSessions
from shoal.wire.fetch import FetchPartition, FetchRequest, ForgottenPartition, PartitionAnswer

MINUTE_MS = 60_000


def make_request(index: int, offset: int = 0) -> FetchPartition:
    return FetchPartition("t", None, index, offset, 1000)


def request(*partitions: FetchPartition, session_id: int = 0, epoch: int = 0) -> FetchRequest:
    return FetchRequest(-1, 0, 1, 1000, 0, session_id, epoch, list(partitions), [])


def answer(index: int, high_watermark: int = 0, records: bytes = b"") -> PartitionAnswer[bytes]:
    return PartitionAnswer("t", None, index, high_watermark=high_watermark, records=records)


def new_context(sessions: FetchSessions, request: FetchRequest, now_ms: int = 0) -> FetchContext:
    return sessions.new_context(now_ms, request, uses_ids=False)


def test_partitions_with_data_go_to_the_end_of_the_line() -> None:
    sessions = FetchSessions(10)
    first = new_context(sessions, request(make_request(0), make_request(1), make_request(2)))
    assert len(first.select_changed([answer(0, 5, b"x"), answer(1), answer(2)])) == 3
    second = new_context(sessions, request(session_id=first.session_id, epoch=1))
    assert [item.partition for item in second.partitions] == [1, 2, 0]
    changed = second.select_changed([answer(1), answer(2, 7), answer(0, 5)])
    assert [item.partition for item in changed] == [2]


def test_a_request_without_partitions_makes_no_session() -> None:
    sessions = FetchSessions(10)
    assert new_context(sessions, request()).session_id == 0
    assert new_context(sessions, request(make_request(0), epoch=-1)).session_id == 0
    assert len(sessions) == 0


def test_sessions_make_room_only_when_they_are_old() -> None:
    sessions = FetchSessions(2)
    small = new_context(sessions, request(make_request(0)))
    large = new_context(sessions, request(*map(make_request, range(5))))
    assert new_context(sessions, request(make_request(0)), now_ms=MINUTE_MS).session_id == 0
    # After two minutes, an unused session is evicted.
    new_context(sessions, request(session_id=large.session_id, epoch=1), now_ms=2 * MINUTE_MS)
    third = new_context(sessions, request(make_request(1)), now_ms=2 * MINUTE_MS + 1)
    assert third.session_id != 0
    with pytest.raises(ApiError) as raised:
        new_context(sessions, request(session_id=small.session_id, epoch=1))
    assert raised.value.code is Code.FETCH_SESSION_ID_NOT_FOUND
    # None is idle: an old session is evicted only for a larger one.
    for epoch, minutes in enumerate(range(3, 6), start=1):
        used = request(session_id=third.session_id, epoch=epoch)
        new_context(sessions, used, now_ms=minutes * MINUTE_MS)
        used = request(session_id=large.session_id, epoch=epoch + 1)
        new_context(sessions, used, now_ms=minutes * MINUTE_MS)
    assert new_context(sessions, request(make_request(0)), now_ms=5 * MINUTE_MS).session_id == 0
    larger = new_context(sessions, request(*map(make_request, range(3))), now_ms=5 * MINUTE_MS)
    assert larger.session_id != 0
    assert len(sessions) == 2


def test_what_all_sessions_remember_is_limited() -> None:
    sessions = FetchSessions(10)
    many = [make_request(index) for index in range(150_000)]
    first = new_context(sessions, request(*many))
    assert first.session_id != 0
    assert new_context(sessions, request(*many)).session_id == 0
    grown = request(*map(make_request, range(60_000)), session_id=first.session_id, epoch=1)
    with pytest.raises(ApiError):
        new_context(sessions, grown)
    assert len(sessions) == 0
    assert new_context(sessions, request(*many)).session_id != 0


def test_epochs_begin_again_after_the_last() -> None:
    sessions = FetchSessions(10)
    session_id = new_context(sessions, request(make_request(0))).session_id
    sessions._sessions[session_id].epoch = (1 << 31) - 1
    new_context(sessions, request(session_id=session_id, epoch=(1 << 31) - 1))
    forgets = request(session_id=session_id, epoch=1)._replace(
        forgotten=[ForgottenPartition("t", None, 0)]
    )
    assert new_context(sessions, forgets).partitions == []
    assert len(sessions) == 0
