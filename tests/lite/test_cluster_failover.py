"""Clusters of several brokers, killed and paused under load: nothing acknowledged is lost."""

import sys
import time
from pathlib import Path

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.wire.api_keys import ApiKey
from support.lite.client import PlainClient
from support.lite.clusters import (
    Load,
    await_in_sync,
    await_values,
    create_topic,
    eventually,
    goes_as_expected,
    in_sync,
    kill_all_at_once,
    partition_of,
    read,
    replicas_are_equal,
    send,
)


def test_a_killed_leader_costs_nothing_but_a_moment(capsys: pytest.CaptureFixture[str]) -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, "t", 3, 3)
        with Load(cluster, "t", 3) as load:
            for _ in range(2):
                leader = partition_of(cluster, "t").leader
                cluster.kill(leader)
                seconds = load.goes_on()
                with capsys.disabled():
                    sys.stdout.write(f"\n  {seconds:.3f} s from a leader's death to the next ack\n")
                await_in_sync(cluster, "t", {1, 2, 3} - {leader})
                cluster.restart(leader)
                eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
        load.check(cluster)
        eventually(lambda: all(replicas_are_equal(cluster, "t", index) for index in range(3)))


def test_a_follower_leaves_the_in_sync_set_and_comes_back() -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, "t", 1, 3)
        follower = 3 if partition_of(cluster, "t").leader != 3 else 2
        with Load(cluster, "t") as load:
            cluster.kill(follower)
            load.goes_on()
            await_in_sync(cluster, "t", {1, 2, 3} - {follower})
            cluster.restart(follower)
            eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
            load.goes_on()
        load.check(cluster)
        eventually(lambda: replicas_are_equal(cluster, "t"))


@pytest.mark.parametrize("profile", ["available", "default", "strict"])
@pytest.mark.quick("default")
def test_the_last_broker_serves_reads_and_in_one_profile_writes(profile: str) -> None:
    with LiteCluster(brokers=3, profile=profile) as cluster:
        create_topic(cluster, "t", 1, 3)
        assert send(cluster, "t", b"a", b"b") == [None, None]
        cluster.kill(partition_of(cluster, "t").leader)
        assert goes_as_expected(cluster, b"c", in_vain=profile == "strict")
        alive = {node.id for node in cluster.nodes()}
        eventually(lambda: partition_of(cluster, "t").leader in alive)
        cluster.kill(partition_of(cluster, "t").leader)
        [last] = cluster.nodes()
        eventually(lambda: partition_of(cluster, "t").leader == last.id)
        eventually(lambda: read(cluster, "t")[0][:2] == [b"a", b"b"])
        assert goes_as_expected(cluster, b"d", in_vain=profile != "available")
        for broker_id in {1, 2, 3} - {last.id}:
            cluster.restart(broker_id)
        eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
        assert send(cluster, "t", b"e") == [None]
        # Who leads now may learn late that the last one is committed.
        eventually(lambda: read(cluster, "t")[0][-1:] == [b"e"])
        values = read(cluster, "t")[0]
        assert values[:2] == [b"a", b"b"]
        if profile == "available":
            assert values == [b"a", b"b", b"c", b"d", b"e"]
        eventually(lambda: replicas_are_equal(cluster, "t"))


def test_all_are_killed_at_once_and_nothing_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    cluster = LiteCluster(brokers=3, directory=folder).start()
    before = cluster.bootstrap
    create_topic(cluster, "t", 4, 3)
    with Load(cluster, "t", 4) as load:
        time.sleep(1)
        kill_all_at_once(cluster)
        with LiteCluster(brokers=3, directory=folder) as again:
            assert again.bootstrap == before
            for index in range(4):
                load.goes_on(index)
            load.__exit__()
            load.check(again)
            for index in range(4):
                eventually(lambda index=index: in_sync(again, "t", index) == {1, 2, 3})  # type: ignore[misc]
                eventually(lambda index=index: partition_of(again, "t", index).leader in {1, 2, 3})  # type: ignore[misc]


def test_brokers_are_restarted_one_after_the_other_under_load() -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, "t", 2, 3)
        with Load(cluster, "t", 2) as load:
            for broker_id in (1, 2, 3):
                cluster.restart(broker_id)
                eventually(lambda: in_sync(cluster, "t") == in_sync(cluster, "t", 1) == {1, 2, 3})
                load.goes_on()
        load.check(cluster)


def test_a_paused_leader_is_replaced_and_returns_as_a_follower() -> None:
    properties = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}
    with LiteCluster(brokers=3, properties=properties) as cluster:
        create_topic(cluster, "t", 1, 3)
        with Load(cluster, "t") as load:
            leader = partition_of(cluster, "t").leader
            cluster.pause(leader)
            # librdkafka asks a paused broker until its socket times out; other clients do not.
            eventually(lambda: leader not in _leaders_seen_by_others(cluster, leader))
            cluster.resume(leader)
            load.goes_on()
            eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
        load.check(cluster)
        eventually(lambda: replicas_are_equal(cluster, "t"))


def _leaders_seen_by_others(cluster: LiteCluster, silent: int) -> set[int]:
    other = next(node for node in cluster.nodes() if node.id != silent)
    options = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    with PlainClient(f"{other.host}:{other.port}") as client:
        answer = client.request(ApiKey.METADATA, 12, topics=None, **options)
    return {partition.leader_id for topic in answer.topics for partition in topic.partitions}


def test_what_only_a_dead_leader_has_is_cut_off_when_it_returns() -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, "t", 1, 3)
        assert send(cluster, "t", b"a") == [None]
        leader = partition_of(cluster, "t").leader
        followers = sorted({1, 2, 3} - {leader})
        for follower in followers:
            cluster.pause(follower)
        # The answer to the fetches that are held is in the followers' sockets, though they are
        # paused. What comes then is on the leader alone.
        assert send(cluster, "t", b"perhaps", acks=1) == [None]
        assert send(cluster, "t", b"lost", b"also lost", acks=1) == [None, None]
        cluster.kill(leader)
        for follower in followers:
            cluster.resume(follower)
        assert send(cluster, "t", b"b") == [None]
        cluster.restart(leader)
        eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
        assert send(cluster, "t", b"c") == [None]
        eventually(lambda: read(cluster, "t")[0][-1:] == [b"c"])
        values = read(cluster, "t")[0]
        assert [value for value in values if value != b"perhaps"] == [b"a", b"b", b"c"]
        eventually(lambda: replicas_are_equal(cluster, "t"))


def test_only_where_a_topic_says_so_is_a_replica_elected_that_may_lack_records() -> None:
    with LiteCluster(brokers=2, profile="available") as cluster:
        create_topic(cluster, "careful", 1, 2)
        create_topic(cluster, "hasty", 1, 2, unclean_leader_election_enable="true")
        for topic in ("careful", "hasty"):
            assert send(cluster, topic, b"a") == [None]
        cluster.kill(2)
        for topic in ("careful", "hasty"):
            assert send(cluster, topic, b"b") == [None]
        cluster.kill(1)
        cluster.restart(2)
        eventually(lambda: partition_of(cluster, "hasty").leader == 2)
        await_values(cluster, "hasty", [b"a"])
        eventually(lambda: partition_of(cluster, "careful").leader == -1)
        cluster.restart(1)
        eventually(lambda: in_sync(cluster, "careful") == in_sync(cluster, "hasty") == {1, 2})
        await_values(cluster, "careful", [b"a", b"b"])
        await_values(cluster, "hasty", [b"a"])
        eventually(lambda: replicas_are_equal(cluster, "hasty"))
