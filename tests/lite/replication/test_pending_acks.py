"""Acknowledgements wait until the in-sync followers were sent the high watermark."""

from collections.abc import Callable

import pytest

from shoal.lite.base.codes import Code
from shoal.lite.replication.leader import MAX_ACK_DELAY_MS, LeaderPartition
from shoal.lite.replication.messages import AckResult
from support.replication.parts import LIVE, assignment, fetch_at, leader_of, log_of

COMMITTED_MS = 100
UNTIL_MS = COMMITTED_MS + MAX_ACK_DELAY_MS
ACKNOWLEDGED = [AckResult("x", Code.NONE)]
Event = Callable[[LeaderPartition, dict[int, int]], None]


def leader_with_pending_ack(live: dict[int, int]) -> LeaderPartition:
    """Broker 1 leads, and 2 and 3 have fetched its one record, at the time `COMMITTED_MS`."""
    leader = leader_of(log_of(5), live_epochs=live)
    leader.await_acks(0, "x", 1, deadline_ms=10_000)
    for broker_id in (2, 3):
        leader.on_answer_sent(broker_id, 0)
        leader.on_follower_fetch(COMMITTED_MS, broker_id, fetch_at(1), broker_epoch=LIVE[broker_id])
    assert leader.high_watermark == 1
    return leader


def send(broker_id: int, high_watermark: int = 1) -> Event:
    return lambda leader, _: leader.on_answer_sent(broker_id, high_watermark)


def pass_time_to(now_ms: int) -> Event:
    return lambda leader, _: leader.tick(now_ms)


def shrink_isr_to(*isr: int) -> Event:
    state = assignment(isr=isr, partition_epoch=1)
    return lambda leader, _: leader.on_assignment(COMMITTED_MS, state)


def begin_next_epoch(leader: LeaderPartition, _: dict[int, int]) -> None:
    leader.on_assignment(COMMITTED_MS, assignment(leader_epoch=6, partition_epoch=1))


def end_broker(broker_id: int) -> Event:
    def end(_: LeaderPartition, live: dict[int, int]) -> None:
        del live[broker_id]

    return end


def resign(leader: LeaderPartition, _: dict[int, int]) -> None:
    leader.resign()


@pytest.mark.parametrize(
    ("events", "is_acknowledged"),
    [
        pytest.param([], False, id="no follower was sent the high watermark"),
        pytest.param([send(2)], False, id="one of two followers was sent it"),
        pytest.param([send(2), send(3)], True, id="all followers were sent it"),
        pytest.param([send(2), send(3, 0)], False, id="a follower was sent a lower one"),
        pytest.param([send(9)], False, id="a broker without a replica was sent it"),
        pytest.param([send(2), shrink_isr_to(1, 2)], True, id="the other leaves the ISR"),
        pytest.param([shrink_isr_to(1)], True, id="all leave the ISR"),
        pytest.param([send(2), end_broker(3)], True, id="the other ends"),
        pytest.param([end_broker(3)], False, id="one ends, the other was not sent it"),
        pytest.param([resign], True, id="the leader resigns: what is committed stays committed"),
        pytest.param([begin_next_epoch], False, id="the leader is elected again"),
        pytest.param([begin_next_epoch, send(2), send(3)], True, id="elected again, then sent"),
        pytest.param([pass_time_to(UNTIL_MS - 1)], False, id="just before the longest delay"),
        pytest.param([pass_time_to(UNTIL_MS)], True, id="after the longest delay"),
        pytest.param(
            [begin_next_epoch, pass_time_to(UNTIL_MS)], True, id="elected again, after the delay"
        ),
    ],
)
def test_a_producer_is_acknowledged(events: list[Event], *, is_acknowledged: bool) -> None:
    live = dict(LIVE)
    leader = leader_with_pending_ack(live)
    assert leader.take_completed() == []
    for event in events:
        event(leader, live)
    assert leader.has_pending_work
    assert leader.take_completed() == (ACKNOWLEDGED if is_acknowledged else [])
    # Once.
    leader.tick(UNTIL_MS)
    assert leader.take_completed() == ([] if is_acknowledged else ACKNOWLEDGED)
    leader.take_proposal()
    assert leader.take_completed() == []


def test_the_longest_delay_is_a_deadline() -> None:
    leader = leader_with_pending_ack(dict(LIVE))
    assert leader.next_deadline_ms() == UNTIL_MS
    leader.on_answer_sent(2, 1)
    leader.on_answer_sent(3, 1)
    assert leader.take_completed() == ACKNOWLEDGED
    assert leader.next_deadline_ms() is None


def test_each_producer_has_a_delay_of_its_own() -> None:
    leader = leader_with_pending_ack(dict(LIVE))
    leader.await_acks(COMMITTED_MS + 50, "duplicate", 1, deadline_ms=10_000)
    leader.tick(UNTIL_MS)
    assert leader.take_completed() == ACKNOWLEDGED
    assert leader.next_deadline_ms() == UNTIL_MS + 50
    leader.tick(UNTIL_MS + 50)
    assert leader.take_completed() == [AckResult("duplicate", Code.NONE)]


def test_a_duplicate_of_records_that_the_followers_know_is_acknowledged_at_once() -> None:
    leader = leader_with_pending_ack(dict(LIVE))
    leader.on_answer_sent(2, 1)
    leader.on_answer_sent(3, 1)
    assert leader.take_completed() == ACKNOWLEDGED
    leader.await_acks(COMMITTED_MS, "duplicate", 1, deadline_ms=10_000)
    assert leader.take_completed() == [AckResult("duplicate", Code.NONE)]


def test_an_acknowledgement_in_time_does_not_wait_for_the_time_out_of_the_request() -> None:
    """The records are committed: the producer's own time-out no longer fails them."""
    leader = leader_with_pending_ack(dict(LIVE))
    leader.tick(UNTIL_MS - 1)
    assert leader.take_completed() == []
    leader.tick(20_000)
    assert leader.take_completed() == ACKNOWLEDGED


def test_a_follower_that_restarted_is_sent_the_high_watermark_again() -> None:
    """Its process may have ended before it wrote the one that it was sent."""
    live = dict(LIVE)
    leader = leader_with_pending_ack(live)
    for broker_id in (2, 3):
        leader.on_answer_sent(broker_id, 1)
    assert leader.take_completed() == ACKNOWLEDGED
    live[2] = LIVE[2] + 100
    leader.on_follower_fetch(COMMITTED_MS, 2, fetch_at(1), broker_epoch=live[2])
    assert leader.has_updates_for(2)
    assert not leader.has_updates_for(3)
    leader.await_acks(COMMITTED_MS, "duplicate", 1, deadline_ms=10_000)
    assert leader.take_completed() == []
    leader.on_answer_sent(2, 1)
    assert leader.take_completed() == [AckResult("duplicate", Code.NONE)]
