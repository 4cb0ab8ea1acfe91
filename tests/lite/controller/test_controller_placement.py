"""Where replicas go: spread over brokers and racks, on whoever is up, moved as little as can be."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import BrokerRecord, PartitionRecord, TopicRecord
from shoal.lite.metadata.data.requests import CreatePartitions, Reassign
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.placement import place_replicas, plan_drain, plan_share
from shoal.model.topics import TopicPartition
from support.controller.cluster import ControllerCluster


def cluster_of(racks: list[str | None], *, fenced: frozenset[int] = frozenset()) -> ClusterState:
    state = ClusterState()
    for broker_id, rack in enumerate(racks, 1):
        is_fenced = broker_id in fenced
        state.apply(BrokerRecord(broker_id, "x", "h", 1, 0, rack, fenced=is_fenced))
    return state


@given(
    racks=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=7),
    count=st.integers(1, 20),
    factor=st.integers(1, 7),
)
def test_replicas_are_spread_over_racks(racks: list[str | None], count: int, factor: int) -> None:
    if factor > len(racks):
        return
    distinct = len({rack or n for n, rack in enumerate(racks)})
    for replicas in place_replicas(cluster_of(racks), count, factor):
        used = [racks[broker_id - 1] or broker_id for broker_id in replicas]
        assert len(set(replicas)) == factor
        assert len(set(used)) == min(distinct, factor)


@given(brokers=st.integers(1, 7), count=st.integers(1, 40), factor=st.integers(1, 3))
def test_replicas_are_spread_over_brokers(brokers: int, count: int, factor: int) -> None:
    if factor > brokers:
        return
    placed = place_replicas(cluster_of([None] * brokers), count, factor)
    hosted = Counter(broker for replicas in placed for broker in replicas)
    led = Counter(replicas[0] for replicas in placed)
    for numbers in (hosted, led):
        values = [numbers[broker] for broker in range(1, brokers + 1)]
        assert max(values) - min(values) <= 1


def test_small_topics_do_not_all_begin_at_the_first_broker() -> None:
    cluster = ControllerCluster(3)
    for index in range(6):
        cluster.create(f"t{index}", factor=1)
    assert cluster.state.leader_counts == {1: 2, 2: 2, 3: 2}


def test_whoever_is_down_is_chosen_last_and_is_not_in_sync() -> None:
    state = cluster_of([None] * 4, fenced=frozenset({1, 2}))
    assert place_replicas(state, 2, 2) == [(3, 4), (4, 3)]
    assert {replicas[0] for replicas in place_replicas(state, 4, 3)} == {3, 4}
    cluster = ControllerCluster(3)
    cluster.kill(1)
    cluster.create(factor=3)
    assert set(cluster.partition().replicas) == {1, 2, 3}
    assert cluster.partition().in_sync == (2, 3)


@pytest.mark.parametrize(("count", "factor", "fenced"), [(1, 4, ()), (1, 0, ()), (1, 1, (1, 2, 3))])
def test_what_cannot_be_placed_is_refused(count: int, factor: int, fenced: tuple[int, ...]) -> None:
    with pytest.raises(ApiError) as refused:
        place_replicas(cluster_of([None] * 3, fenced=frozenset(fenced)), count, factor)
    assert refused.value.code is Code.INVALID_REPLICATION_FACTOR


def test_explicit_assignments() -> None:
    cluster = ControllerCluster(3)
    cluster.create_assigned((3, 1), (1, 2))
    assert [p.leader for p in cluster.state.partitions()] == [3, 1]
    cluster.ask(CreatePartitions("t", 3, [(2, 3)]))
    assert cluster.partition("t", 2).replicas == (2, 3)
    cluster.kill(2, 3)
    for assignments in ([(2, 3)], [(1,)], [(1, 9)], [(1, 2), (1, 2)]):
        with pytest.raises(ApiError) as refused:
            cluster.ask(CreatePartitions("t", 4, assignments))
        assert refused.value.code is Code.INVALID_REPLICA_ASSIGNMENT
    with pytest.raises(ApiError) as refused:
        cluster.create_assigned((1, 2), (1,), name="uneven")
    assert refused.value.code is Code.INVALID_REPLICA_ASSIGNMENT


# Brokers that leave and join

assignments = st.lists(
    st.permutations([1, 2, 3, 4]).flatmap(
        lambda brokers: st.integers(1, 3).map(lambda factor: tuple(brokers[:factor]))
    ),
    min_size=1,
    max_size=20,
)


def state_with(replica_lists: list[tuple[int, ...]], brokers: int) -> ClusterState:
    state = cluster_of([None] * brokers)
    for index, replicas in enumerate(replica_lists):
        topic_id = UUID(int=index)
        state.apply(TopicRecord(topic_id, f"t{index}"))
        state.apply(PartitionRecord(topic_id, 0, replicas, replicas, replicas[0], 0, 0))
    return state


@given(replica_lists=assignments)
def test_a_broker_can_be_drained(replica_lists: list[tuple[int, ...]]) -> None:
    state = state_with(replica_lists, 4)
    targets = plan_drain(state, 2)
    for index, replicas in enumerate(replica_lists):
        target = targets.get(TopicPartition(f"t{index}", 0), replicas)
        assert 2 not in target
        assert len(set(target)) == len(replicas)
        # Only the one who leaves is replaced, where it was.
        assert [b for b, old in zip(target, replicas, strict=True) if old != 2] == [
            b for b in replicas if b != 2
        ]


def test_where_no_broker_is_left_there_are_fewer_replicas_if_one_says_so() -> None:
    state = state_with([(1, 2), (2,)], 2)
    with pytest.raises(ApiError):
        plan_drain(state, 1)
    assert plan_drain(state, 1, keep_factor=False) == {TopicPartition("t0", 0): (2,)}
    # The last replica is never given up.
    with pytest.raises(ApiError):
        plan_drain(state_with([(1,)], 1), 1, keep_factor=False)


@given(replica_lists=assignments)
def test_a_new_broker_gets_its_share(replica_lists: list[tuple[int, ...]]) -> None:
    state = state_with(replica_lists, 5)
    targets = plan_share(state, 5)
    hosted = Counter(state.replica_counts)
    for key, target in targets.items():
        replicas = state.topics[key.topic].partitions[0].replicas
        assert len(set(target) - set(replicas)) == 1
        hosted.subtract(set(replicas) - set(target))
        hosted.update(set(target) - set(replicas))
    fair = sum(state.replica_counts.values()) // 5
    assert hosted[5] <= fair
    if hosted[5] < fair:
        # Nobody who has more than a fair share has anything left that 5 has not.
        for partition in state.partitions():
            key = TopicPartition(state.topic_names[partition.topic_id], 0)
            target = targets.get(key, partition.replicas)
            assert 5 in target or all(hosted[broker] <= fair for broker in target)


def test_a_joiner_takes_over_replicas_and_leaderships() -> None:
    cluster = ControllerCluster(2)
    cluster.create(partitions=6, factor=2)
    cluster.start(3)
    targets = plan_share(cluster.state, 3)
    assert len(targets) == 4
    cluster.ask(Reassign(targets))
    for key in targets:
        cluster.expand(3, partition=key)
    cluster.wait(2_000)
    assert cluster.state.replica_counts == {1: 4, 2: 4, 3: 4}
    assert cluster.state.leader_counts == {1: 2, 2: 2, 3: 2}
