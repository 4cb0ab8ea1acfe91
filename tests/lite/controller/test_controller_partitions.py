"""In-sync sets, eligible replicas, elections and reassignments, rule by rule."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.requests import (
    AlterConfigs,
    AlterPartitions,
    ConfigEdit,
    DeleteTopic,
    Election,
    ElectLeaders,
    InSyncChange,
    LogEnd,
    MoveLeader,
    Reassign,
    ReportLogEnds,
)
from shoal.lite.metadata.data.state import ALL_BROKERS, BROKER, TOPIC
from shoal.lite.metadata.rules.profiles import PROFILES, profile_properties
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from support.controller.cluster import FIRST, ControllerCluster
from support.controller.data import DataCluster

FOREIGN_ID = UUID(int=99)


def cluster_with_topic(
    brokers: int = 3, min_insync: int = 2, *, factor: int = 3, partitions: int = 1
) -> ControllerCluster:
    cluster = ControllerCluster(brokers, properties={"min.insync.replicas": str(min_insync)})
    cluster.create(factor=factor, partitions=partitions)
    return cluster


def configure(cluster: ControllerCluster, name: str, value: str, topic: str = "t") -> None:
    kind, owner = (TOPIC, topic) if topic else (BROKER, ALL_BROKERS)
    cluster.ask(AlterConfigs(kind, owner, [ConfigEdit(name, requests.SET, value)]))


# Proposals of leaders: KIP-497, KIP-841, KIP-903


@pytest.mark.parametrize(
    ("behind", "code"),
    [
        ((0, 0), Code.NONE),
        ((0, 1), Code.INVALID_UPDATE_VERSION),
        ((1, 0), Code.FENCED_LEADER_EPOCH),
        ((1, 1), Code.FENCED_LEADER_EPOCH),
        ((0, -1), Code.NOT_CONTROLLER),
        ((-1, 0), Code.NOT_CONTROLLER),
    ],
)
def test_a_proposal_counts_on_what_it_is_based_on(behind: tuple[int, int], code: Code) -> None:
    cluster = cluster_with_topic()
    cluster.ask(MoveLeader(FIRST, 2))
    before = cluster.partition()
    assert cluster.propose((2, 3), behind=behind).code is code
    after = cluster.partition()
    assert (after != before) == (code is Code.NONE)
    assert after.leader_epoch == before.leader_epoch


def test_who_proposes_leads_and_stays() -> None:
    cluster = cluster_with_topic(4)
    assert cluster.propose((1, 2), broker_id=2).code is Code.INVALID_REQUEST
    assert cluster.propose((2, 3)).code is Code.INVALID_REQUEST
    assert cluster.propose((1, 4)).code is Code.INVALID_REQUEST
    assert cluster.propose((1, 2, 2)).code is Code.INVALID_REQUEST
    assert cluster.partition().in_sync == (1, 2, 3)


def test_fenced_and_stale_replicas_are_not_taken_in() -> None:
    cluster = cluster_with_topic()
    cluster.kill(3)
    assert cluster.propose((1, 2, 3)).code is Code.INELIGIBLE_REPLICA
    cluster.register(3)
    assert cluster.propose((1, 2, 3)).code is Code.INELIGIBLE_REPLICA
    cluster.beat(3)
    former = cluster.processes[3].epoch - 1
    assert cluster.propose((1, 2, 3), epochs={3: former}).code is Code.INELIGIBLE_REPLICA
    assert cluster.propose((1, 2, 3), epochs={3: -1}).code is Code.INELIGIBLE_REPLICA
    assert cluster.propose((1, 2, 3)).code is Code.NONE
    # Whom the leader has not heard of yet, but who is in sync, may stay.
    assert cluster.propose((1, 2, 3), epochs={2: -1, 3: -1}).code is Code.NONE


def test_what_is_granted_has_a_new_partition_epoch() -> None:
    cluster = cluster_with_topic()
    before = cluster.partition()
    answer = cluster.propose((1, 2, 3))
    assert answer.code is Code.NONE
    assert answer.partition == cluster.partition()
    assert cluster.partition().partition_epoch == before.partition_epoch + 1
    assert cluster.partition().in_sync == before.in_sync


def test_each_proposal_of_a_request_is_granted_by_itself() -> None:
    cluster = cluster_with_topic(partitions=2)
    cluster.ask(MoveLeader(TopicPartition("t", 1), 1))
    good, bad = cluster.partition("t", 0), cluster.partition("t", 1)
    members = tuple((b, cluster.processes[b].epoch) for b in (1, 2))
    changes = [
        InSyncChange(*bad.key, bad.leader_epoch, bad.partition_epoch - 1, members),
        InSyncChange(*good.key, good.leader_epoch, good.partition_epoch, members),
        InSyncChange(good.topic_id, 9, 0, 0, members),
        InSyncChange(FOREIGN_ID, 0, 0, 0, members),
    ]
    epoch = cluster.processes[1].epoch
    answers = cluster.ask(AlterPartitions(1, epoch, changes))
    assert [answer.code for answer in answers] == [
        Code.INVALID_UPDATE_VERSION,
        Code.NONE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_ID,
    ]
    with pytest.raises(ApiError) as refused:
        cluster.ask(AlterPartitions(1, epoch - 1, changes))
    assert refused.value.code is Code.STALE_BROKER_EPOCH


# Eligible leader replicas: KIP-966


def test_who_leaves_below_min_insync_is_eligible() -> None:
    cluster = cluster_with_topic(min_insync=2)
    cluster.propose((1, 2))
    assert cluster.partition().eligible == ()
    cluster.propose((1,))
    assert cluster.partition().eligible == (2,)
    cluster.expand(3)
    assert cluster.partition().eligible == ()


def test_all_who_leave_at_once_are_eligible() -> None:
    cluster = cluster_with_topic(min_insync=3)
    cluster.propose((1,))
    assert cluster.partition().eligible == (2, 3)


def test_nobody_in_sync_is_preferred_to_the_eligible() -> None:
    cluster = cluster_with_topic(min_insync=3)
    cluster.propose((1, 3))
    assert cluster.partition().eligible == (2,)
    cluster.kill(1)
    assert cluster.partition().leader == 3
    assert cluster.partition().eligible == (1, 2)


def test_a_topic_needs_no_more_than_it_has() -> None:
    cluster = cluster_with_topic(2, min_insync=3, factor=2)
    assert cluster.state.min_insync(cluster.partition()) == 2
    cluster.kill(2)
    assert cluster.partition().eligible == (2,)


def test_a_leader_that_has_not_heard_of_min_insync_changes_no_in_sync_set() -> None:
    # With min.insync.replicas 1, the leader would commit alone what 2, eligible, does not have.
    cluster = DataCluster(2, min_insync=1)
    cluster.create(factor=2)
    for broker_id in (1, 2):
        cluster.learn(broker_id)
    configure(cluster, "min.insync.replicas", "2")
    [partition] = cluster.led_by(1)
    cluster.propose_without(1, partition, 2, is_answered=True)
    [partition] = cluster.led_by(1)
    cluster.append(1, partition)
    assert cluster.partition().in_sync == (1, 2)
    cluster.kill(1)
    cluster.check_candidates()
    assert cluster.partition().leader == 2


def test_a_default_for_all_renews_what_it_applies_to() -> None:
    cluster = cluster_with_topic(min_insync=1)
    cluster.create("own", min_insync_replicas="1")
    cluster.propose((1,))
    before = {p.key: p.partition_epoch for p in cluster.state.partitions()}
    configure(cluster, "min.insync.replicas", "2", topic="")
    after = {p.key: p.partition_epoch for p in cluster.state.partitions()}
    assert [after[key] - before[key] for key in before] == [1, 0]
    assert cluster.state.min_insync(cluster.partition("own")) == 1


def test_one_broker_has_no_min_insync_of_its_own() -> None:
    cluster = cluster_with_topic()
    change = ConfigEdit("min.insync.replicas", requests.SET, "1")
    with pytest.raises(ApiError) as refused:
        cluster.ask(AlterConfigs(BROKER, "1", [change]))
    assert refused.value.code is Code.INVALID_CONFIG


@pytest.mark.parametrize(
    ("profile", "brokers", "min_insync"),
    [
        ("strict", 1, 1),
        ("strict", 3, 3),
        ("strict", 5, 3),
        ("default", 1, 1),
        ("default", 2, 2),
        ("default", 3, 2),
        ("available", 3, 1),
    ],
)
def test_profiles(profile: str, brokers: int, min_insync: int) -> None:
    properties = profile_properties(profile, brokers)
    cluster = ControllerCluster(brokers, properties=properties)
    cluster.create(factor=int(properties["default.replication.factor"]))
    assert cluster.state.min_insync(cluster.partition()) == min_insync


def test_there_are_no_other_profiles() -> None:
    with pytest.raises(UsageError, match="brave"):
        profile_properties("brave", 3)
    assert PROFILES == ("strict", "default", "available")


# Elections


@given(
    in_sync=st.lists(st.sets(st.integers(1, 4), min_size=1).map(sorted), min_size=1, max_size=12)
)
@pytest.mark.slow
def test_leaderships_are_spread_as_far_as_in_sync_sets_allow(in_sync: list[list[int]]) -> None:
    cluster = ControllerCluster(4)
    cluster.create(partitions=len(in_sync), factor=4)
    for index, members in enumerate(in_sync):
        key = TopicPartition("t", index)
        cluster.ask(MoveLeader(key, members[0]))
        cluster.propose(tuple(members), key)
    cluster.wait(1_500)
    led = Counter(p.leader for p in cluster.state.partitions())
    for partition in cluster.state.partitions():
        fewest = min(led[member] for member in partition.in_sync)
        assert led[partition.leader] - fewest < 2
    # And then it is quiet.
    count = cluster.state.applied_count
    cluster.wait(5_000)
    assert cluster.state.applied_count == count


def test_leaderships_stay_where_nobody_wants_them_spread() -> None:
    cluster = ControllerCluster(2, balance_delay_ms=None)
    cluster.create(partitions=4, factor=2)
    cluster.kill(2)
    cluster.start(2)
    for index in range(4):
        cluster.expand(2, partition=TopicPartition("t", index))
    cluster.wait(10_000)
    assert cluster.state.leader_counts[1] == 4


def report(cluster: ControllerCluster, broker_id: int, last_epoch: int, end: int) -> None:
    record = cluster.partition()
    log_end = LogEnd(*record.key, record.leader_epoch, last_epoch, end)
    cluster.ask(ReportLogEnds(broker_id, cluster.processes[broker_id].epoch, [log_end]))


def unclean_cluster() -> ControllerCluster:
    """1 had everything, and is down; 2 and 3 are up."""
    cluster = cluster_with_topic(min_insync=1)
    cluster.propose((1,))
    cluster.kill(1)
    return cluster


def test_unclean_elections_are_for_those_who_want_them() -> None:
    cluster = unclean_cluster()
    report(cluster, 2, 0, 5)
    cluster.wait(10_000)
    assert cluster.partition().leader == -1
    configure(cluster, "unclean.leader.election.enable", "true")
    assert cluster.partition().recovering
    configure(cluster, "unclean.leader.election.enable", "false")
    assert not cluster.partition().recovering
    [answer] = cluster.ask(ElectLeaders(Election.UNCLEAN))
    assert answer.code is Code.NONE
    assert cluster.partition().recovering


@pytest.mark.parametrize(
    ("second", "third", "leader"),
    [((3, 10), (2, 99), 2), ((3, 10), (3, 11), 3), ((3, 10), (3, 10), 2)],
)
def test_the_longest_log_leads(
    second: tuple[int, int], third: tuple[int, int], leader: int
) -> None:
    cluster = unclean_cluster()
    configure(cluster, "unclean.leader.election.enable", "true")
    report(cluster, 2, *second)
    report(cluster, 3, *third)
    assert cluster.partition().leader == -1
    cluster.wait(2_100)
    assert cluster.partition().leader == leader
    assert cluster.partition().in_sync == (leader,)


def test_reports_of_former_processes_and_epochs_do_not_count() -> None:
    cluster = unclean_cluster()
    configure(cluster, "unclean.leader.election.enable", "true")
    record = cluster.partition()
    stale = LogEnd(*record.key, record.leader_epoch - 1, 9, 999)
    cluster.ask(ReportLogEnds(2, cluster.processes[2].epoch, [stale]))
    report(cluster, 3, 9, 999)
    cluster.kill(3)
    cluster.start(3)
    cluster.wait(3_000)
    assert cluster.partition().leader == -1
    report(cluster, 3, 0, 1)
    assert cluster.partition().leader == 3


def test_an_unclean_election_does_not_outlive_its_topic() -> None:
    cluster = unclean_cluster()
    cluster.ask(ElectLeaders(Election.UNCLEAN))
    cluster.ask(DeleteTopic(cluster.partition().topic_id))
    cluster.wait(10_000)
    assert not cluster.state.topics


def test_nobody_can_be_elected_uncleanly_when_nobody_is_up() -> None:
    cluster = unclean_cluster()
    cluster.kill(2, 3)
    [answer] = cluster.ask(ElectLeaders(Election.UNCLEAN, [FIRST]))
    assert answer.code is Code.ELIGIBLE_LEADERS_NOT_AVAILABLE
    [answer] = cluster.ask(ElectLeaders(Election.UNCLEAN, [TopicPartition("t", 7)]))
    assert answer.code is Code.UNKNOWN_TOPIC_OR_PARTITION


# Replicas are reassigned, as KIP-455 says


def test_a_reassignment_waits_until_what_is_left_can_be_relied_on() -> None:
    cluster = cluster_with_topic(4, min_insync=2)
    cluster.propose((1, 2))
    # Without 2 only 1 would have what was committed.
    cluster.ask(Reassign({FIRST: (1, 3)}))
    assert cluster.partition().removing == (2,)
    cluster.expand(3)
    assert cluster.partition().replicas == (1, 3)
    assert cluster.partition().in_sync == (1, 3)


def test_new_replicas_do_not_raise_min_insync_before_they_are_in_place() -> None:
    cluster = ControllerCluster(3, properties=profile_properties("strict", 3))
    cluster.create(factor=1)
    cluster.ask(Reassign({FIRST: (1, 2, 3)}))
    assert cluster.state.min_insync(cluster.partition()) == 1
    cluster.expand(2)
    assert cluster.state.min_insync(cluster.partition()) == 1
    cluster.expand(3)
    assert cluster.state.min_insync(cluster.partition()) == 3


def test_a_reassignment_can_be_redirected() -> None:
    cluster = cluster_with_topic(5, min_insync=2)
    cluster.ask(Reassign({FIRST: (4, 5, 1)}))
    cluster.expand(4)
    cluster.ask(Reassign({FIRST: (1, 2, 4)}))
    assert cluster.partition().replicas == (1, 2, 4)
    assert cluster.partition().in_sync == (1, 2, 4)


def test_calling_off_keeps_what_was_committed() -> None:
    cluster = cluster_with_topic(5, min_insync=2)
    cluster.ask(Reassign({FIRST: (1, 4)}))
    assert cluster.partition().adding == (4,)
    cluster.propose((1,))
    # Nothing was committed with 4, so it can go.
    [answer] = cluster.ask(Reassign({FIRST: None}))
    assert answer.code is Code.NONE
    cluster.expand(2)
    cluster.ask(Reassign({FIRST: (1, 4, 5)}))
    cluster.propose((1, 4))
    [answer] = cluster.ask(Reassign({FIRST: None}))
    assert answer.code is Code.INVALID_REPLICA_ASSIGNMENT
    cluster.kill(1)
    cluster.kill(4)
    [answer] = cluster.ask(Reassign({FIRST: None}))
    assert answer.code is Code.LEADER_NOT_AVAILABLE
