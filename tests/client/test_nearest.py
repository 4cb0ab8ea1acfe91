"""Where partitions are read: leaders, the rack's own replica, a broker that was named."""

import pytest

from shoal.client.cluster.metadata import (
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from shoal.client.cluster.replica_choice import ReplicaSelector
from shoal.client.codes import Code
from shoal.model.topics import TopicPartition
from shoal.wire.fetch import FetchedPartition

TP = TopicPartition("t", 0)


def cluster(*alive: int, leader: int = 1, isr: tuple[int, ...] = (1, 2, 3)) -> ClusterMetadata:
    racks = {1: "a", 2: "b", 3: "c"}
    partition = PartitionMetadata(
        leader, 1, (1, 2, 3), isr, tuple(node for node in (1, 2, 3) if node not in alive)
    )
    return ClusterMetadata(
        brokers={node: BrokerAddress(node, "h", node, racks[node]) for node in alive},
        topics={"t": TopicMetadata("t", partitions={0: partition})},
    )


def test_leaders_are_read_unless_somebody_is_nearer() -> None:
    assert ReplicaSelector().node(cluster(1, 2, 3), TP, 0.0) == 1
    assert ReplicaSelector(rack="b").node(cluster(1, 2, 3), TP, 0.0) == 2
    assert ReplicaSelector(rack="b").node(cluster(1, 2, 3, isr=(1, 3)), TP, 0.0) == 1
    assert ReplicaSelector(rack="elsewhere").node(cluster(1, 2, 3), TP, 0.0) == 1
    assert ReplicaSelector(broker_id=3).node(cluster(1, 2, 3), TP, 0.0) == 3
    assert ReplicaSelector(broker_id=9).node(cluster(1, 2, 3), TP, 0.0) == 1


def test_what_a_leader_says_counts_more_than_the_rack() -> None:
    replica_selector = ReplicaSelector(rack="b")
    replica_selector.prefer(TP, 3, now=0.0)
    assert replica_selector.node(cluster(1, 2, 3), TP, 0.0) == 3


def test_one_that_is_gone_or_failed_is_replaced_by_the_leader() -> None:
    replica_selector = ReplicaSelector(broker_id=2)
    assert replica_selector.node(cluster(1, 3), TP, 0.0) == 1
    replica_selector.avoid(TP, now=10.0)
    assert replica_selector.node(cluster(1, 2, 3), TP, 11.0) == 1
    assert replica_selector.node(cluster(1, 2, 3), TP, 60.0) == 2


def test_what_a_leader_says_is_asked_again_when_the_metadata_is_old() -> None:
    replica_selector = ReplicaSelector(max_age_s=60.0)
    replica_selector.prefer(TP, 3, now=10.0)
    assert replica_selector.node(cluster(1, 2, 3), TP, 69.0) == 3
    assert replica_selector.node(cluster(1, 2, 3), TP, 70.0) == 1
    # With metadata.max.age.ms=0 it still counts for more than the next fetch.
    replica_selector = ReplicaSelector(max_age_s=0.0)
    replica_selector.prefer(TP, 3, now=10.0)
    assert replica_selector.node(cluster(1, 2, 3), TP, 10.5) == 3


def answer(code: int = Code.NONE, preferred: int = -1) -> dict[TopicPartition, FetchedPartition]:
    part = FetchedPartition("t", None, 0, error_code=code, preferred_read_replica=preferred)
    return {TP: part}


def test_a_replica_that_a_leader_names_is_followed() -> None:
    replica_selector = ReplicaSelector()
    assert replica_selector.apply_response(cluster(1, 2, 3), 1, answer(preferred=2), 0.0) == {TP}
    assert replica_selector.node(cluster(1, 2, 3), TP, 0.0) == 2
    assert replica_selector.apply_response(cluster(1, 2, 3), 2, answer(), 0.0) == set()
    assert replica_selector.rack_for([TP], "b", 0.0) == "b"


@pytest.mark.parametrize(
    "code",
    [
        Code.OFFSET_OUT_OF_RANGE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.UNKNOWN_SERVER_ERROR,
        Code.NETWORK_EXCEPTION,
    ],
)
def test_a_replica_that_fails_is_replaced_by_a_leader_that_must_serve(code: int) -> None:
    replica_selector = ReplicaSelector()
    replica_selector.prefer(TP, 2, now=0.0)
    assert replica_selector.apply_response(cluster(1, 2, 3), 2, answer(code), 1.0) == {TP}
    assert replica_selector.node(cluster(1, 2, 3), TP, 1.0) == 1
    # Asked with a rack, the leader would name the same replica again, without a pause.
    assert replica_selector.rack_for([TP], "b", 1.0) == ""
    assert replica_selector.rack_for([TopicPartition("t", 1)], "b", 1.0) == "b"
    assert replica_selector.rack_for([TP], "b", 60.0) == "b"
    # An error of the leader is the caller's.
    assert replica_selector.apply_response(cluster(1, 2, 3), 1, answer(code), 1.0) == set()


def test_a_replica_that_is_not_online_is_not_asked_for_a_while() -> None:
    for replica, alive in ((2, (1, 3)), (9, (1, 2, 3))):
        replica_selector = ReplicaSelector()
        replica_selector.apply_response(cluster(*alive), 1, answer(preferred=replica), 0.0)
        assert replica_selector.node(cluster(*alive), TP, 0.0) == 1
        assert replica_selector.rack_for([TP], "b", 0.0) == ""


def test_nobody_is_asked_where_nobody_leads() -> None:
    assert ReplicaSelector().node(cluster(1, 2, 3, leader=-1), TP, 0.0) is None
    assert ReplicaSelector().node(ClusterMetadata(), TP, 0.0) is None
