"""Changes of a replica's role, and how logs find where they diverge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.base.codes import Code
from shoal.lite.replication.history import divergence, end_of_epoch, truncation_point
from shoal.lite.replication.messages import AckResult, ReplicationSettings
from shoal.lite.replication.replica import PartitionReplica
from shoal.lite.storage.state.epochs import EpochHistory
from support.replication.parts import LIVE, assignment, fetch_at, log_of
from support.replication.world import Entry, MemoryLog


def replica_of(log: MemoryLog, high_watermark: int = 0) -> PartitionReplica:
    settings = ReplicationSettings(min_insync_replicas=2)
    return PartitionReplica(
        1, log, settings=settings, live_epochs=LIVE, high_watermark=high_watermark
    )


def test_the_high_watermark_goes_along() -> None:
    replica = replica_of(log_of(1, 1, 1), high_watermark=2)
    assert replica.role.high_watermark == 2
    replica.assign(0, assignment(leader=1, partition_epoch=1))
    assert replica.leader
    assert replica.leader.high_watermark == 2
    replica.leader.await_acks(0, "x", 3, deadline_ms=9)
    expected = [AckResult("x", Code.NOT_LEADER_OR_FOLLOWER)]
    assert replica.assign(0, assignment(leader=2, leader_epoch=6, partition_epoch=2)) == expected
    assert replica.follower
    assert (replica.follower.leader, replica.follower.high_watermark) == (2, 2)


def test_metadata_goes_only_forwards() -> None:
    replica = replica_of(log_of())
    replica.assign(0, assignment(leader=1, leader_epoch=3, partition_epoch=7))
    leader = replica.leader
    replica.assign(0, assignment(leader=2, leader_epoch=2, partition_epoch=6))
    replica.assign(0, assignment(leader=2, leader_epoch=3, partition_epoch=7))
    assert replica.leader is leader
    replica.assign(0, assignment(leader=1, leader_epoch=4, partition_epoch=8))
    assert replica.leader is leader
    assert leader
    assert leader.leader_epoch == 4


def test_settings_reach_every_role() -> None:
    replica = replica_of(log_of())
    replica.configure(0, ReplicationSettings(min_insync_replicas=3, replica_fetch_backoff_ms=7))
    replica.assign(0, assignment(leader=2, partition_epoch=1))
    assert replica.follower
    fetch = replica.follower.next_fetch(0)
    assert fetch
    replica.follower.on_fetch_failed(0, fetch)
    assert replica.follower.next_deadline_ms() == 7
    replica.assign(0, assignment(leader=1, isr=(1, 2), leader_epoch=6, partition_epoch=2))
    assert replica.leader
    assert replica.leader.is_under_min_isr
    replica.configure(0, ReplicationSettings(min_insync_replicas=2))
    assert not replica.leader.is_under_min_isr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # min.insync.replicas is raised, and a replica with fewer records is only eligible.
        (((1, 2), 1), ((1,), 2)),
        # min.insync.replicas is lowered, and a replica with all records left the ISR.
        (((1, 2), 3), ((1,), 2)),
    ],
)
def test_an_in_sync_set_and_its_least_size_change_at_once(
    before: tuple[tuple[int, ...], int], after: tuple[tuple[int, ...], int]
) -> None:
    log = log_of(1)
    replica = replica_of(log)
    isr, least = before
    settings = ReplicationSettings(min_insync_replicas=least)
    replica.assign(0, assignment(isr=isr, partition_epoch=1), settings)
    assert replica.leader
    fetch = fetch_at(1, last_fetched_epoch=5)
    replica.leader.on_follower_fetch(0, 2, fetch, broker_epoch=LIVE[2])
    committed = replica.leader.high_watermark
    log.append_fetched([Entry(5, "x")])
    isr, least = after
    settings = ReplicationSettings(min_insync_replicas=least)
    replica.assign(0, assignment(isr=isr, partition_epoch=2), settings)
    assert replica.leader.high_watermark == committed


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, None), (0, (0, 0)), (1, (1, 10)), (2, (2, 30)), (4, (2, 30)), (5, (5, 40)), (6, None)],
)
def test_the_end_of_an_epoch(epoch: int, expected: tuple[int, int] | None) -> None:
    assert end_of_epoch(EpochHistory([(1, 0), (2, 10), (5, 30)]), epoch, 40) == expected


# The replicas lead alternately; each writes records, and some of them reach the other.
terms = st.lists(
    st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8
)


@given(terms)
def test_truncation_ends_where_the_logs_are_equal(history: list[tuple[bool, int, int]]) -> None:
    """Two replicas that led alternately agree after a few answers and keep all common records."""
    one, other = MemoryLog(), MemoryLog()
    for epoch, (one_leads, shared, alone) in enumerate(history):
        leader, follower = (one, other) if one_leads else (other, one)
        leader.begin_epoch(epoch)
        leader.append_fetched(Entry(epoch, f"{epoch}.{n}") for n in range(shared))
        if shared:
            follow(leader, follower)
        leader.append_fetched(Entry(epoch, f"{epoch}.{n}") for n in range(shared, shared + alone))
    one.begin_epoch(len(history))
    common = 0
    while common < min(one.end_offset, other.end_offset) and one.at(common) == other.at(common):
        common += 1
    follow(one, other, fetches=False)
    assert other.entries == one.entries[:common]
    follow(one, other)
    assert other.entries == one.entries


def follow(leader: MemoryLog, follower: MemoryLog, *, fetches: bool = True) -> None:
    """Truncate as the leader requires, then copy its records."""
    answers = 0
    while found := divergence(leader, follower.end_offset, follower.epochs.latest):
        follower.truncate_to(truncation_point(follower, found))
        answers += 1
        assert answers <= 20
    if fetches:
        follower.append_fetched(leader.entries[follower.end_offset :])
