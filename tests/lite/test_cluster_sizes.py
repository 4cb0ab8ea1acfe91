"""Clusters of several brokers: they come up, replicate, spread leaderships, and grow."""

import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.model.errors import SystemFailure
from support.lite.clusters import (
    Load,
    await_in_sync,
    await_values,
    count_partitions,
    create_topic,
    eventually,
    in_sync,
    partition_of,
    replicas_are_equal,
    send,
)


@pytest.mark.parametrize("brokers", [1, 2, 3, 4, 5, 9])
@pytest.mark.quick("1", "3")
def test_clusters_of_many_sizes_come_up(brokers: int, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with LiteCluster(brokers=brokers) as cluster:
        seconds = time.monotonic() - began
        with capsys.disabled():
            sys.stdout.write(f"\n  {brokers} broker(s) after {seconds:.3f} s\n")
        assert [node.state for node in cluster.status()] == ["running"] * brokers
        # Made by its first use, with as many replicas as the profile says.
        assert send(cluster, "t", b"a", b"b", acks="all") == [None, None]
        replicas = partition_of(cluster, "t").replicas
        assert len(replicas) == min(3, brokers)
        await_in_sync(cluster, "t", set(replicas))
        await_values(cluster, "t", [b"a", b"b"])
        eventually(lambda: replicas_are_equal(cluster, "t"))


def test_partitions_are_spread_and_replicated() -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, "t", 6, 3)
        leaders = [partition_of(cluster, "t", index).leader for index in range(6)]
        assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
        create_topic(cluster, "two", 1, 2)
        assert send(cluster, "two", *[b"%d" % i for i in range(1000)]) == [None] * 1000
        await_values(cluster, "two", [b"%d" % i for i in range(1000)])
        eventually(lambda: replicas_are_equal(cluster, "two"))


def test_leaders_can_be_moved_and_in_sync_sets_shrunk() -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, "t", 1, 3)
        assert send(cluster, "t", b"a") == [None]
        leader = partition_of(cluster, "t").leader
        target = 3 if leader != 3 else 1
        cluster.move_leader("t", 0, target)
        eventually(lambda: partition_of(cluster, "t").leader == target)
        assert send(cluster, "t", b"b") == [None]
        cluster.pause(leader)
        cluster.shrink_in_sync("t", 0, leader)
        with pytest.raises(SystemFailure, match="not in sync"):
            cluster.move_leader("t", 0, leader)
        with pytest.raises(SystemFailure, match="leader of t-0 cannot be removed"):
            cluster.shrink_in_sync("t", 0, target)
        create_topic(cluster, "alone", 1, 1)
        stranger = partition_of(cluster, "alone").leader % 3 + 1
        with pytest.raises(SystemFailure, match=f"no replica on broker {stranger}"):
            cluster.shrink_in_sync("alone", 0, stranger)
        cluster.resume(leader)
        eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
        assert send(cluster, "t", b"c") == [None]
        await_values(cluster, "t", [b"a", b"b", b"c"])


def test_a_broker_is_added_and_gets_its_share() -> None:
    with LiteCluster(brokers=2) as cluster:
        create_topic(cluster, "before", 3, 2)
        with Load(cluster, "before", 3) as load:
            added = cluster.add()
            assert (added.id, added.state) == (3, "running")
            eventually(lambda: 3 in leaders(cluster, "before", 3))
            load.goes_on()
        load.check(cluster)
        hosted = Counter(b for i in range(3) for b in partition_of(cluster, "before", i).replicas)
        assert hosted == {1: 2, 2: 2, 3: 2}
        create_topic(cluster, "after", 3, 3)
        assert send(cluster, "after", b"a") == [None]
        assert 3 in leaders(cluster, "after", 3)
        cluster.kill(3)
        cluster.restart(3)
        eventually(lambda: in_sync(cluster, "after") == {1, 2, 3})


def leaders(cluster: LiteCluster, topic: str, partitions: int) -> set[int]:
    return {partition_of(cluster, topic, index).leader for index in range(partitions)}


def test_a_broker_is_removed_when_others_have_its_replicas() -> None:
    with LiteCluster(brokers=4) as cluster:
        create_topic(cluster, "t", 4, 3)
        folder = cluster.log_dirs()[2]
        with Load(cluster, "t", 4) as load:
            cluster.remove(2)
            for index in range(4):
                load.goes_on(index)
        load.check(cluster)
        assert [node.id for node in cluster.status()] == [1, 3, 4]
        assert not folder.exists()
        for index in range(4):
            eventually(
                lambda index=index: set(partition_of(cluster, "t", index).replicas) == {1, 3, 4}  # type: ignore[misc]
            )
            eventually(lambda index=index: in_sync(cluster, "t", index) == {1, 3, 4})  # type: ignore[misc]
        with pytest.raises(SystemFailure, match=r"t-\d has 3 replica.*no other broker") as refused:
            cluster.remove(3)
        assert "add a broker" in (refused.value.remedy or "")
        with pytest.raises(SystemFailure, match="unknown node 2"):
            cluster.restart(2)
        assert cluster.add().id == 5


def test_a_dead_broker_is_removed_and_only_living_ones_take_over() -> None:
    with LiteCluster(brokers=4) as cluster:
        create_topic(cluster, "t", 2, 3)
        assert send(cluster, "t", b"a", b"b") == [None, None]
        replicas = {b for i in range(2) for b in partition_of(cluster, "t", i).replicas}
        dead = partition_of(cluster, "t").leader
        cluster.kill(dead)
        [spare] = {1, 2, 3, 4} - set(partition_of(cluster, "t").replicas)
        cluster.kill(spare)
        with pytest.raises(SystemFailure, match=f"only broker {spare} could take over"):
            cluster.remove(dead)
        cluster.restart(spare)
        cluster.remove(dead)
        assert dead in replicas
        await_in_sync(cluster, "t", {1, 2, 3, 4} - {dead})
        await_values(cluster, "t", [b"a", b"b"])


def test_the_last_broker_stays() -> None:
    with LiteCluster() as cluster, pytest.raises(SystemFailure, match="only one"):
        cluster.remove(1)


def test_a_folder_remembers_how_its_cluster_was_started(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    first = LiteCluster(3, folder, profile="strict", properties={"num.partitions": "4"})
    with first as cluster:
        assert send(cluster, "before", b"a") == [None]
    with LiteCluster(directory=folder) as cluster:
        assert len(cluster.nodes()) == 3
        cluster.kill(3)
        assert send(cluster, "before", b"b", message_timeout_ms=1000) == ["_MSG_TIMED_OUT"]
        cluster.restart(3)
        assert send(cluster, "after", b"a") == [None]
        assert len(partition_of(cluster, "after").replicas) == 3
        # Not who leads them: that depends on what broker 3 has got back by now.
        assert count_partitions(cluster, "after") == 4
