"""The leader of a partition, one event at a time."""

from dataclasses import replace

import pytest

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import AckResult, AlterIsr, IsrAnswer, ReplicationSettings
from support.replication.parts import LIVE, assignment, fetch_at, leader_of, log_of
from support.replication.world import Entry


def append(leader: LeaderPartition, count: int = 1, now_ms: int = 0) -> None:
    log = leader.log
    log.append_fetched(Entry(leader.leader_epoch, "x") for _ in range(count))  # type: ignore[attr-defined]
    leader.on_append(now_ms)


def fetch_as_follower(
    leader: LeaderPartition, replica_id: int, offset: int, now_ms: int = 0
) -> Code:
    verdict = leader.on_follower_fetch(
        now_ms, replica_id, fetch_at(offset), broker_epoch=LIVE[replica_id]
    )
    return verdict.code


def take_only_proposal(leader: LeaderPartition) -> AlterIsr:
    proposal = leader.take_proposal()
    assert proposal is not None
    assert leader.take_proposal() is None
    return proposal


def grant(proposal: AlterIsr) -> IsrAnswer:
    isr = tuple(sorted(proposal.members))
    return IsrAnswer(Code.NONE, proposal.leader_epoch, proposal.partition_epoch + 1, isr)


# Fetches of followers


@pytest.mark.parametrize(
    ("leader_epoch", "broker_id", "broker_epoch", "code"),
    [
        (5, 2, 12, Code.NONE),
        (4, 2, 12, Code.FENCED_LEADER_EPOCH),
        (6, 2, 12, Code.UNKNOWN_LEADER_EPOCH),
        (-1, 2, 12, Code.INVALID_REQUEST),
        (5, 9, 19, Code.UNKNOWN_LEADER_EPOCH),
        (5, 2, 11, Code.NOT_LEADER_OR_FOLLOWER),
        (5, 2, -1, Code.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_only_fetches_of_this_term_and_incarnation_count(
    leader_epoch: int, broker_id: int, broker_epoch: int, code: Code
) -> None:
    leader = leader_of(log_of(5, 5), isr=(1, 2))
    fetch = fetch_at(2, leader_epoch=leader_epoch)
    verdict = leader.on_follower_fetch(0, broker_id, fetch, broker_epoch=broker_epoch)
    assert verdict.code == code
    assert leader.high_watermark == (2 if code == Code.NONE else 0)


def test_a_request_that_was_overtaken_by_the_next_incarnation_does_not_count() -> None:
    leader = leader_of(log_of(5, 5), isr=(1, 2))
    assert leader.on_follower_fetch(0, 2, fetch_at(1), broker_epoch=20).code == Code.NONE
    # The metadata here still has the old incarnation, and it claims more than there is.
    assert fetch_as_follower(leader, 2, 2) == Code.NOT_LEADER_OR_FOLLOWER
    assert leader.high_watermark == 1


def test_out_of_range_carries_the_log_start_offset() -> None:
    log = log_of(5, 5, 5)
    log.delete_before(2)
    leader = leader_of(log)
    verdict = leader.on_follower_fetch(0, 2, fetch_at(1), broker_epoch=12)
    assert (verdict.code, verdict.log_start_offset) == (Code.OFFSET_OUT_OF_RANGE, 2)
    assert fetch_as_follower(leader, 2, 4) == Code.OFFSET_OUT_OF_RANGE


def test_a_diverging_follower_is_not_counted() -> None:
    log = log_of(1, 1, 3)
    leader = leader_of(log, isr=(1, 2))
    fetch = fetch_at(3, last_fetched_epoch=2)
    verdict = leader.on_follower_fetch(0, 2, fetch, broker_epoch=12)
    assert verdict.diverging == (1, 2)
    assert leader.high_watermark == 0


@pytest.mark.parametrize(
    ("start_offset", "last_fetched_epoch", "diverging"),
    [
        (4, 3, None),
        (4, 2, (1, 3)),
        (4, 1, (1, 3)),
        (4, 0, (0, 2)),
        (3, 1, None),
        (3, 2, (1, 3)),
        (3, 0, (0, 2)),
    ],
)
def test_divergence_below_the_log_start_is_answered(
    start_offset: int, last_fetched_epoch: int, diverging: tuple[int, int] | None
) -> None:
    """Only the producer state would show the difference of deleted records."""
    log = log_of(0, 0, 1, 3, 3, 5)
    log.delete_before(start_offset)
    leader = leader_of(log, isr=(1, 2))
    fetch = fetch_at(start_offset, last_fetched_epoch=last_fetched_epoch)
    verdict = leader.on_follower_fetch(0, 2, fetch, broker_epoch=12)
    assert (verdict.code, verdict.diverging) == (Code.NONE, diverging)


@pytest.mark.parametrize(
    ("last_fetched_epoch", "code"),
    [(-1, Code.NONE), (1, Code.OFFSET_OUT_OF_RANGE), (3, Code.NONE)],
)
def test_a_follower_that_cannot_be_compared_restarts_its_log(
    last_fetched_epoch: int, code: Code
) -> None:
    """This leader's own log was restarted at its start: it never had earlier records."""
    log = log_of(0, 0)
    log.truncate_fully(4)
    log.append_fetched([Entry(3, "x")])
    leader = leader_of(log, isr=(1, 2))
    fetch = fetch_at(4, last_fetched_epoch=last_fetched_epoch)
    verdict = leader.on_follower_fetch(0, 2, fetch, broker_epoch=12)
    assert (verdict.code, verdict.diverging, verdict.log_start_offset) == (code, None, 4)


def test_followers_get_a_high_watermark_once() -> None:
    leader = leader_of(log_of(5, 5), isr=(1, 2))
    assert leader.has_updates_for(2)
    leader.on_answer_sent(2, leader.high_watermark)
    assert not leader.has_updates_for(2)
    fetch_as_follower(leader, 2, 2)
    assert leader.has_updates_for(2)
    leader.on_answer_sent(2, leader.high_watermark)
    assert not leader.has_updates_for(2)
    # A fetch of a broker that is not a replica is answered, too.
    assert leader.has_updates_for(9)


def test_the_low_watermark_is_that_of_live_replicas() -> None:
    live = dict(LIVE)
    log = log_of(5, 5, 5)
    leader = leader_of(log, live_epochs=live)
    log.delete_before(2)
    assert leader.low_watermark == -1
    for replica_id, start in ((2, 2), (3, 1)):
        fetch = fetch_at(3, log_start_offset=start)
        leader.on_follower_fetch(0, replica_id, fetch, broker_epoch=LIVE[replica_id])
    assert leader.low_watermark == 1
    del live[3]
    assert leader.low_watermark == 2


# The high watermark


def test_a_new_leader_knows_nothing_of_its_followers() -> None:
    leader = leader_of(log_of(1, 1, 1), high_watermark=2)
    assert leader.high_watermark == 2
    assert leader.epoch_start_offset == 3
    with pytest.raises(ApiError) as raised:
        leader.latest_offset()
    assert raised.value.code == Code.OFFSET_NOT_AVAILABLE
    fetch_as_follower(leader, 2, 3)
    assert not leader.has_reached_epoch_start
    fetch_as_follower(leader, 3, 3)
    assert leader.latest_offset() == 3


def test_the_high_watermark_stays_within_the_log() -> None:
    log = log_of(1, 1, 1)
    log.delete_before(2)
    assert leader_of(log, high_watermark=0).high_watermark == 2
    assert leader_of(log, high_watermark=9).high_watermark == 3


def test_the_high_watermark_never_goes_back() -> None:
    leader = leader_of(log_of(5, 5), isr=(1, 2))
    fetch_as_follower(leader, 2, 2)
    fetch_as_follower(leader, 2, 0)
    assert leader.high_watermark == 2


def test_the_high_watermark_waits_for_followers_about_to_join() -> None:
    log = log_of(5)
    leader = leader_of(log, isr=(1,), high_watermark=1)
    fetch_as_follower(leader, 2, 0)
    fetch_as_follower(leader, 2, 1, now_ms=10)
    assert leader.take_proposal() is not None
    raised = IsrAnswer(Code.INELIGIBLE_REPLICA)
    leader.on_isr_answer(10, AlterIsr(1, 5, 0, ((1, 11), (2, 12))), raised)
    append(leader, now_ms=20)
    assert leader.maximal_isr == {1}
    assert leader.high_watermark == 1
    # The wait for it ends by time alone.
    assert leader.next_deadline_ms() == 1011
    leader.tick(1011)
    assert leader.high_watermark == 2
    assert leader.next_deadline_ms() is None


def test_nothing_waits_for_a_replica_whose_log_failed() -> None:
    """It left the in-sync set a moment ago, so by time alone it is still caught up."""
    log = log_of(5)
    leader = leader_of(log, high_watermark=1)
    for replica_id in (2, 3):
        fetch_as_follower(leader, replica_id, 1)
    append(leader, 2, now_ms=10)
    fetch_as_follower(leader, 3, 3, now_ms=10)
    leader.on_assignment(20, assignment(isr=(1, 3), partition_epoch=1, failed=(2,)))
    assert leader.high_watermark == 3
    log.delete_before(2)
    leader.on_follower_fetch(20, 3, fetch_at(3, log_start_offset=2), broker_epoch=LIVE[3])
    assert leader.low_watermark == 2
    # Its broker has restarted: the replica counts again.
    leader.on_assignment(30, assignment(isr=(1, 3), partition_epoch=2))
    assert leader.low_watermark == 0
    fetch_as_follower(leader, 2, 3, now_ms=30)
    assert take_only_proposal(leader).members == {1, 2, 3}


def test_a_topic_cannot_ask_for_more_replicas_than_it_has() -> None:
    leader = leader_of(log_of(), min_insync_replicas=9)
    leader.check_acks(-1)
    assert not leader.is_under_min_isr


def test_settings_change_while_it_leads() -> None:
    leader = leader_of(log_of(5), isr=(1, 2), min_insync_replicas=3)
    fetch_as_follower(leader, 2, 1)
    assert leader.high_watermark == 0
    leader.configure(0, ReplicationSettings(min_insync_replicas=2))
    assert leader.high_watermark == 1
    leader.configure(0, ReplicationSettings(min_insync_replicas=3))
    with pytest.raises(ApiError) as raised:
        leader.check_acks(-1)
    assert raised.value.code == Code.NOT_ENOUGH_REPLICAS
    leader.check_acks(1)
    leader.check_acks(0)


# Waiting producers


def test_producers_are_answered_in_the_order_of_their_offsets() -> None:
    leader = leader_of(log_of(5, 5, 5), isr=(1, 2))
    leader.await_acks(0, "late", 3, deadline_ms=100)
    leader.await_acks(0, "duplicate", 1, deadline_ms=100)
    leader.await_acks(0, "early", 2, deadline_ms=50)
    assert leader.take_completed() == []
    fetch_as_follower(leader, 2, 2)
    leader.on_answer_sent(2, leader.high_watermark)
    assert leader.take_completed() == [
        AckResult("duplicate", Code.NONE),
        AckResult("early", Code.NONE),
    ]
    assert leader.next_deadline_ms() == 100
    leader.tick(99)
    assert leader.take_completed() == []
    leader.tick(100)
    assert leader.take_completed() == [AckResult("late", Code.REQUEST_TIMED_OUT)]
    fetch_as_follower(leader, 2, 3)
    assert leader.take_completed() == []


def test_what_is_committed_already_is_answered_at_once() -> None:
    leader = leader_of(log_of(5), isr=(1,))
    leader.await_acks(0, "x", 1, deadline_ms=100)
    assert leader.take_completed() == [AckResult("x", Code.NONE)]


def test_producers_fail_when_too_few_are_in_sync() -> None:
    leader = leader_of(log_of(5), isr=(1, 2), min_insync_replicas=2)
    leader.await_acks(0, "x", 1, deadline_ms=100)
    leader.on_assignment(0, assignment(isr=(1,), partition_epoch=1))
    assert leader.take_completed() == [AckResult("x", Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]


def test_producers_wait_on_through_another_term_of_the_same_leader() -> None:
    leader = leader_of(log_of(5), isr=(1, 2))
    leader.await_acks(0, "x", 1, deadline_ms=100)
    leader.on_assignment(0, assignment(isr=(1, 2), leader_epoch=6, partition_epoch=1))
    assert leader.log.epochs.latest == 6
    assert fetch_as_follower(leader, 2, 1) == Code.FENCED_LEADER_EPOCH
    assert leader.take_completed() == []
    fetch = fetch_at(1, leader_epoch=6, last_fetched_epoch=5)
    leader.on_follower_fetch(0, 2, fetch, broker_epoch=12)
    leader.on_answer_sent(2, leader.high_watermark)
    assert leader.take_completed() == [AckResult("x", Code.NONE)]


def test_producers_go_elsewhere_when_it_resigns() -> None:
    leader = leader_of(log_of(5, 5), isr=(1, 2))
    for token, offset in (("b", 2), ("a", 1)):
        leader.await_acks(0, token, offset, deadline_ms=100)
    leader.resign()
    assert leader.take_completed() == [
        AckResult("a", Code.NOT_LEADER_OR_FOLLOWER),
        AckResult("b", Code.NOT_LEADER_OR_FOLLOWER),
    ]


# The in-sync set


def test_proposals_name_the_incarnations_that_fetched() -> None:
    leader = leader_of(log_of(5), isr=(1, 3), high_watermark=1)
    fetch_as_follower(leader, 2, 1)
    assert take_only_proposal(leader).isr == ((1, 11), (2, 12), (3, -1))


@pytest.mark.parametrize("live", [{1: 11}, {1: 11, 2: 13}])
def test_a_fenced_or_outdated_incarnation_is_not_proposed(live: dict[int, int]) -> None:
    leader = leader_of(log_of(5), isr=(1,), live_epochs=live)
    leader.on_follower_fetch(0, 2, fetch_at(1), broker_epoch=14)
    assert leader.take_proposal() is None
    live[2] = 14
    leader.on_follower_fetch(0, 2, fetch_at(1), broker_epoch=14)
    assert take_only_proposal(leader).members == {1, 2}


def test_a_shrink_and_its_deadlines() -> None:
    leader = leader_of(log_of(5))
    assert leader.next_deadline_ms() == 1001
    fetch_as_follower(leader, 2, 1, now_ms=500)
    # 3 has never been seen; events pass, and the deadline stays until there is a tick.
    append(leader, now_ms=1200)
    assert leader.next_deadline_ms() == 1001
    leader.tick(1300)
    shrink = take_only_proposal(leader)
    assert shrink.members == {1, 2}
    assert leader.next_deadline_ms() == 3300
    leader.on_isr_answer(1400, shrink, grant(shrink))
    assert leader.isr == {1, 2}
    assert leader.high_watermark == 1
    assert leader.next_deadline_ms() == 1501


def test_a_refused_shrink_is_proposed_again_after_a_pause() -> None:
    leader = leader_of(log_of(5), isr=(1, 2))
    leader.tick(1001)
    leader.on_isr_answer(1001, take_only_proposal(leader), IsrAnswer(Code.INELIGIBLE_REPLICA))
    assert leader.next_deadline_ms() == 1051
    leader.tick(1050)
    assert leader.take_proposal() is None
    leader.tick(1051)
    assert take_only_proposal(leader).number == 2


def test_a_proposal_is_sent_again_until_there_is_an_answer() -> None:
    leader = leader_of(log_of(5), isr=(1, 2))
    leader.tick(1001)
    first = take_only_proposal(leader)
    leader.on_isr_answer(1002, first, IsrAnswer(Code.REQUEST_TIMED_OUT))
    assert leader.next_deadline_ms() == 1052
    leader.tick(1052)
    assert take_only_proposal(leader) == first
    leader.tick(3052)
    assert take_only_proposal(leader) == first
    leader.on_isr_answer(3053, first, grant(first))
    assert leader.isr == {1}
    assert leader.high_watermark == 1


def test_answers_to_other_proposals_do_not_count() -> None:
    leader = leader_of(log_of(5), isr=(1, 2))
    leader.tick(1001)
    first = take_only_proposal(leader)
    leader.on_isr_answer(1002, replace(first, number=9), grant(first))
    assert leader.isr == {1, 2}
    leader.on_assignment(1002, assignment(isr=(1, 2), partition_epoch=3))
    leader.on_isr_answer(1002, first, grant(first))
    assert leader.isr == {1, 2}
    assert leader.partition_epoch == 3


def test_one_refused_copy_says_nothing_about_the_other() -> None:
    leader = leader_of(log_of(5), isr=(1,), high_watermark=1)
    fetch_as_follower(leader, 2, 1)
    expansion = take_only_proposal(leader)
    leader.tick(2000)
    assert take_only_proposal(leader) == expansion
    leader.on_isr_answer(2001, expansion, IsrAnswer(Code.INELIGIBLE_REPLICA))
    # The other copy may be accepted: 2 is in the maximal ISR until a higher partition epoch.
    withdrawal = take_only_proposal(leader)
    assert withdrawal.members == {1}
    assert leader.maximal_isr == {1, 2}
    leader.on_isr_answer(2002, withdrawal, IsrAnswer(Code.NONE, 5, 0, (1,)))
    assert leader.maximal_isr == {1, 2}
    leader.on_isr_answer(2003, withdrawal, grant(withdrawal))
    assert leader.maximal_isr == {1}
    assert leader.partition_epoch == 1


def test_old_metadata_does_not_settle_a_proposal() -> None:
    leader = leader_of(log_of(5), isr=(1,), high_watermark=1)
    fetch_as_follower(leader, 2, 1)
    take_only_proposal(leader)
    leader.on_assignment(0, assignment(isr=(1,), partition_epoch=0))
    assert leader.maximal_isr == {1, 2}
    leader.on_assignment(0, assignment(isr=(1,), partition_epoch=1))
    assert leader.maximal_isr == {1}


def test_replicas_come_and_go() -> None:
    leader = leader_of(log_of(5), isr=(1, 2))
    moved = replace(assignment(isr=(1, 2), partition_epoch=1), replicas=(1, 2, 4))
    leader.on_assignment(0, moved)
    assert fetch_as_follower(leader, 3, 1) == Code.UNKNOWN_LEADER_EPOCH
    assert leader.on_follower_fetch(0, 4, fetch_at(1), broker_epoch=14).code == Code.NONE
    assert leader.take_proposal() is None
    assert fetch_as_follower(leader, 2, 1) == Code.NONE
    assert leader.high_watermark == 1
