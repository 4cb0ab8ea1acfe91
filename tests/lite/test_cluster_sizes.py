"""Clusters of several brokers: they come up, replicate, spread leaderships, and grow."""

import sys
import time

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.model.errors import SystemFailure
from support.lite_clusters import (
    create_topic,
    eventually,
    in_sync,
    partition_of,
    read,
    replicas_are_equal,
    send,
)


@pytest.mark.parametrize("brokers", [1, 2, 3, 4, 5])
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
        assert in_sync(cluster, "t") == set(replicas)
        assert read(cluster, "t")[0] == [b"a", b"b"]
        eventually(lambda: replicas_are_equal(cluster, "t"))


def test_partitions_are_spread_and_replicated() -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, "t", 6, 3)
        leaders = [partition_of(cluster, "t", index).leader for index in range(6)]
        assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
        create_topic(cluster, "two", 1, 2)
        assert send(cluster, "two", *[b"%d" % i for i in range(1000)]) == [None] * 1000
        assert read(cluster, "two")[0] == [b"%d" % i for i in range(1000)]
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
        with pytest.raises(SystemFailure, match="leader cannot leave"):
            cluster.shrink_in_sync("t", 0, target)
        cluster.resume(leader)
        eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
        assert send(cluster, "t", b"c") == [None]
        assert read(cluster, "t")[0] == [b"a", b"b", b"c"]


def test_a_broker_is_added_and_gets_its_share() -> None:
    with LiteCluster(brokers=2) as cluster:
        create_topic(cluster, "before", 2, 2)
        added = cluster.add()
        assert (added.id, added.state) == (3, "running")
        create_topic(cluster, "after", 3, 3)
        assert send(cluster, "after", b"a") == [None]
        leaders = {partition_of(cluster, "after", index).leader for index in range(3)}
        assert 3 in leaders
        cluster.kill(3)
        cluster.restart(3)
        eventually(lambda: in_sync(cluster, "after") == {1, 2, 3})
