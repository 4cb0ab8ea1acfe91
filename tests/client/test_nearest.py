"""Where partitions are read: leaders, the rack's own replica, a broker that was named."""

from shoal.client.metadata import (
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from shoal.client.nearest import ReadPlaces
from shoal.model.topics import TopicPartition

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
    assert ReadPlaces().node(cluster(1, 2, 3), TP, 0.0) == 1
    assert ReadPlaces(rack="b").node(cluster(1, 2, 3), TP, 0.0) == 2
    assert ReadPlaces(rack="b").node(cluster(1, 2, 3, isr=(1, 3)), TP, 0.0) == 1
    assert ReadPlaces(rack="elsewhere").node(cluster(1, 2, 3), TP, 0.0) == 1
    assert ReadPlaces(broker_id=3).node(cluster(1, 2, 3), TP, 0.0) == 3
    assert ReadPlaces(broker_id=9).node(cluster(1, 2, 3), TP, 0.0) == 1


def test_what_a_leader_says_counts_more_than_the_rack() -> None:
    places = ReadPlaces(rack="b")
    places.told(TP, 3)
    assert places.node(cluster(1, 2, 3), TP, 0.0) == 3


def test_one_that_is_gone_or_failed_is_replaced_by_the_leader() -> None:
    places = ReadPlaces(broker_id=2)
    assert places.node(cluster(1, 3), TP, 0.0) == 1
    places.failed(TP, now=10.0)
    assert places.node(cluster(1, 2, 3), TP, 11.0) == 1
    assert places.node(cluster(1, 2, 3), TP, 60.0) == 2


def test_nobody_is_asked_where_nobody_leads() -> None:
    assert ReadPlaces().node(cluster(1, 2, 3, leader=-1), TP, 0.0) is None
    assert ReadPlaces().node(ClusterMetadata(), TP, 0.0) is None
