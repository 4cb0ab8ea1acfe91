"""A follower of a partition, one answer at a time."""

import pytest

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.replication.messages import (
    NO_LEADER,
    AdvanceStart,
    AppendFetched,
    EpochEndOffset,
    FetchAnswer,
    FollowerAction,
    ReplicationSettings,
    TruncateFully,
    TruncateTo,
)
from support.replication.parts import assignment, fetch_at, follower_of, log_of

BACKOFF_MS = ReplicationSettings().replica_fetch_backoff_ms


def test_a_fetch_contains_the_position_of_the_follower() -> None:
    log = log_of(1, 1, 4)
    log.delete_before(1)
    fetch = follower_of(log).next_fetch(0)
    assert fetch == fetch_at(3, last_fetched_epoch=4, log_start_offset=1)


@pytest.mark.parametrize(
    ("answer", "actions", "high_watermark"),
    [
        (FetchAnswer(0, 0), [], 0),
        (FetchAnswer(2, 0), [], 2),
        (FetchAnswer(9, 0), [], 3),
        (FetchAnswer(9, 0, first_offset=3), [AppendFetched()], 3),
        # Batches may leave gaps.
        (FetchAnswer(9, 0, first_offset=5), [AppendFetched()], 3),
        (FetchAnswer(9, 2, first_offset=3), [AdvanceStart(2), AppendFetched()], 3),
        (FetchAnswer(9, 2), [AdvanceStart(2)], 3),
        # Not the requested offset, so the log may differ from the leader's.
        (FetchAnswer(9, 0, first_offset=2), [], 0),
        (FetchAnswer(9, 0, diverging=EpochEndOffset(1, 2)), [TruncateTo(2)], 0),
        (FetchAnswer(9, 2, diverging=EpochEndOffset(1, 2)), [TruncateFully(2)], 0),
        (FetchAnswer(9, 7, Code.OFFSET_OUT_OF_RANGE), [TruncateFully(7)], 0),
        (FetchAnswer(9, 0, Code.NOT_LEADER_OR_FOLLOWER), [], 0),
    ],
)
def test_answers(answer: FetchAnswer, actions: list[FollowerAction], high_watermark: int) -> None:
    follower = follower_of(log_of(1, 1, 4))
    fetch = follower.next_fetch(0)
    assert fetch
    assert follower.on_fetch_answer(0, fetch, answer) == actions
    assert follower.high_watermark == high_watermark


def test_a_log_that_starts_within_a_batch() -> None:
    log = log_of()
    log.truncate_fully(7)
    follower = follower_of(log)
    fetch = follower.next_fetch(0)
    assert fetch
    answer = FetchAnswer(9, 7, first_offset=5)
    expected = [TruncateFully(5), AppendFetched(), AdvanceStart(7)]
    assert follower.on_fetch_answer(0, fetch, answer) == expected


def test_a_log_that_starts_within_a_batch_takes_the_place_of_what_is_deleted_there() -> None:
    follower = follower_of(log_of(1, 1, 4))
    fetch = follower.next_fetch(0)
    assert fetch
    answer = FetchAnswer(9, 3, first_offset=2)
    expected = [TruncateFully(2), AppendFetched(), AdvanceStart(3)]
    assert follower.on_fetch_answer(0, fetch, answer) == expected


def test_after_an_unclean_election_deleted_offsets_are_written_again() -> None:
    log = log_of(1, 1, 4)
    log.delete_before(2)
    follower = follower_of(log, high_watermark=3)
    fetch = follower.next_fetch(0)
    assert fetch
    answer = FetchAnswer(1, 0, diverging=EpochEndOffset(1, 1))
    assert follower.on_fetch_answer(0, fetch, answer) == [TruncateFully(1)]


@pytest.mark.parametrize(
    ("leader_start", "actions"),
    [
        (0, [TruncateFully(0)]),
        (1, [TruncateFully(1)]),
        (2, [AdvanceStart(2)]),
        (3, [AdvanceStart(3)]),
    ],
)
def test_who_lacks_the_begin_of_its_log_gets_it_from_a_leader_that_has_it(
    leader_start: int, actions: list[FollowerAction]
) -> None:
    log = log_of(1, 1, 4)
    log.delete_before(2)
    log.lacks_start = True
    follower = follower_of(log, high_watermark=3)
    fetch = follower.next_fetch(0)
    assert fetch
    assert follower.on_fetch_answer(0, fetch, FetchAnswer(3, leader_start)) == actions


def test_answers_that_are_out_of_date_change_nothing() -> None:
    follower = follower_of(log_of(1, 1), high_watermark=1)
    answer = FetchAnswer(2, 0, first_offset=2)
    now = follower.next_fetch(0)
    assert now
    for fetch in (
        now._replace(offset=1),
        now._replace(leader_epoch=4),
        now._replace(last_fetched_epoch=0),
    ):
        assert follower.on_fetch_answer(0, fetch, answer) == []
        assert follower.high_watermark == 1
    assert follower.on_fetch_answer(0, now, answer) == [AppendFetched()]


@pytest.mark.parametrize("code", [Code.UNKNOWN_LEADER_EPOCH, Code.KAFKA_STORAGE_ERROR])
def test_after_a_failure_it_pauses(code: Code) -> None:
    follower = follower_of(log_of())
    fetch = follower.next_fetch(0)
    assert fetch
    follower.on_fetch_answer(10, fetch, FetchAnswer(-1, -1, code))
    assert follower.next_fetch(10 + BACKOFF_MS - 1) is None
    assert follower.next_deadline_ms() == 10 + BACKOFF_MS
    assert follower.next_fetch(10 + BACKOFF_MS) == fetch
    follower.on_fetch_answer(200, fetch, FetchAnswer(0, 0))
    assert follower.next_deadline_ms() is None
    # A lost connection concerns only its own leader.
    follower.on_fetch_failed(200, fetch._replace(leader_epoch=4))
    assert follower.next_fetch(200) == fetch
    follower.on_fetch_failed(200, fetch)
    assert follower.next_fetch(200) is None


def test_a_fenced_follower_waits_for_another_leader() -> None:
    follower = follower_of(log_of(1))
    fetch = follower.next_fetch(0)
    assert fetch
    follower.on_fetch_answer(0, fetch, FetchAnswer(-1, -1, Code.FENCED_LEADER_EPOCH))
    assert follower.next_fetch(1_000_000) is None
    assert follower.next_deadline_ms() is None
    assert follower.on_fetch_answer(0, fetch, FetchAnswer(1, 0, first_offset=1)) == []
    follower.on_assignment(assignment(partition_epoch=1))
    assert follower.next_fetch(1_000_000) is None
    follower.on_assignment(assignment(leader=2, leader_epoch=6, partition_epoch=2))
    assert follower.next_fetch(0) == fetch._replace(leader_epoch=6)
    assert follower.leader == 2


def test_a_change_of_leader_ends_a_pause() -> None:
    follower = follower_of(log_of())
    fetch = follower.next_fetch(0)
    assert fetch
    follower.on_fetch_failed(0, fetch)
    follower.on_assignment(assignment(leader=NO_LEADER, leader_epoch=6, partition_epoch=1))
    assert follower.next_fetch(10_000) is None
    follower.on_assignment(assignment(leader=3, leader_epoch=7, partition_epoch=2))
    assert follower.next_fetch(0) == fetch._replace(leader_epoch=7)
    # Outdated metadata.
    follower.on_assignment(assignment(leader=2, leader_epoch=9, partition_epoch=2))
    assert follower.leader == 3


def test_the_high_watermark_of_one_leader_does_not_bind_the_next() -> None:
    log = log_of(1)
    follower = follower_of(log)
    fetch = follower.next_fetch(0)
    assert fetch
    follower.on_fetch_answer(0, fetch, FetchAnswer(9, 0))
    follower.on_assignment(assignment(leader=2, leader_epoch=6, partition_epoch=1))
    log.append_fetched(log_of(6, 6).entries)
    assert follower.high_watermark == 1


def test_reads_from_a_follower() -> None:
    log = log_of(1, 1, 4)
    log.delete_before(1)
    follower = follower_of(log, high_watermark=2)
    assert follower.high_watermark == 2
    assert follower.divergence(2, 1) is None
    assert follower.divergence(3, 1) == (1, 2)
    follower.check_epoch(5)


@pytest.mark.parametrize(
    ("offset", "last_fetched_epoch"),
    [(0, -1), (4, -1), (2, 7)],
    ids=["below the start", "behind the end", "an epoch that is not known"],
)
def test_reads_that_are_out_of_range(offset: int, last_fetched_epoch: int) -> None:
    log = log_of(1, 1, 4)
    log.delete_before(1)
    with pytest.raises(ApiError) as raised:
        follower_of(log).divergence(offset, last_fetched_epoch)
    assert raised.value.code == Code.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("epoch", "code"), [(4, Code.FENCED_LEADER_EPOCH), (6, Code.UNKNOWN_LEADER_EPOCH)]
)
def test_reads_with_another_leader_epoch(epoch: int, code: Code) -> None:
    with pytest.raises(ApiError) as raised:
        follower_of(log_of(1)).check_epoch(epoch)
    assert raised.value.code == code
