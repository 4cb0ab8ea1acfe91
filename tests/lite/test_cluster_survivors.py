"""What is promised when brokers, all nodes, or disks are lost: the last copy is enough."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.lite.storage.recovery.shutdown_marker import MARKER_NAME
from shoal.model.errors import SystemFailure, UsageError
from support.lite.clusters import (
    Load,
    await_values,
    create_topic,
    eventually,
    goes_as_expected,
    in_sync,
    partition_of,
    read,
    replicas_are_equal,
    send,
)


@pytest.mark.parametrize(
    ("brokers", "profile"),
    [(2, "available"), (4, "available"), (5, "default"), (5, "strict"), (9, "available")],
)
@pytest.mark.quick("2-available", "5-default")
def test_all_but_one_are_killed_and_the_others_return(brokers: int, profile: str) -> None:
    everyone = set(range(1, brokers + 1))
    with LiteCluster(brokers=brokers, profile=profile) as cluster:
        create_topic(cluster, "t", 2, brokers)
        assert send(cluster, "t", b"a", b"b") == [None, None]
        last = partition_of(cluster, "t").leader
        for broker_id in everyone - {last}:
            cluster.kill(broker_id)
        assert [node.id for node in cluster.nodes()] == [last]
        for index in (0, 1):
            eventually(lambda index=index: partition_of(cluster, "t", index).leader == last)  # type: ignore[misc]
        await_values(cluster, "t", [b"a", b"b"])
        may_write = profile == "available"
        assert goes_as_expected(cluster, b"c", in_vain=not may_write)
        for broker_id in everyone - {last}:
            cluster.restart(broker_id)
        for index in (0, 1):
            eventually(lambda index=index: in_sync(cluster, "t", index) == everyone)  # type: ignore[misc]
        assert send(cluster, "t", b"d") == [None]
        eventually(lambda: read(cluster, "t")[0][-1:] == [b"d"])
        values = read(cluster, "t")[0]
        assert [value for value in values if value != b"c"] == [b"a", b"b", b"d"]
        assert (b"c" in values) or not may_write
        eventually(lambda: replicas_are_equal(cluster, "t"))


@pytest.mark.parametrize("size_bytes", [100, 50_000])
@pytest.mark.parametrize("profile", ["default", "strict"])
@pytest.mark.quick("default-100", "strict-50000")
def test_the_last_one_serves_what_was_acknowledged_a_moment_ago(
    profile: str, size_bytes: int
) -> None:
    values = [bytes([number]) * size_bytes for number in range(20)]
    with LiteCluster(brokers=3, profile=profile) as cluster:
        create_topic(cluster, "t", 1, 3)
        leader = partition_of(cluster, "t").leader
        last = min({1, 2, 3} - {leader})
        doomed = [node.pid for node in cluster.nodes() if node.id != last]
        assert send(cluster, "t", *values) == [None] * len(values)
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: partition_of(cluster, "t").leader == last)
        await_values(cluster, "t", values)


@pytest.mark.parametrize(
    ("brokers", "profile", "controllers"),
    [
        (1, None, None),
        (2, "strict", None),
        (3, "default", 3),
        (4, "available", None),
        (5, "default", None),
    ],
)
@pytest.mark.quick("1-None-None", "3-default-3")
def test_everything_is_killed_at_once_and_starts_again(
    brokers: int, profile: str | None, controllers: int | None, tmp_path: Path
) -> None:
    partitions = 2 * brokers
    folder = tmp_path / "kept"
    cluster = LiteCluster(brokers, folder, profile=profile, controllers=controllers).start()
    before = cluster.bootstrap
    create_topic(cluster, "t", partitions, min(3, brokers))
    with Load(cluster, "t", partitions) as load:
        for _ in range(2):
            load.goes_on()
            cluster.crash()
            cluster.start()
            assert cluster.bootstrap == before
            for index in range(partitions):
                load.goes_on(index)
    load.check(cluster)
    for index in range(partitions):
        found = partition_of(cluster, "t", index)
        assert found.leader in found.replicas
        eventually(
            lambda index=index, found=found: in_sync(cluster, "t", index) == set(found.replicas)  # type: ignore[misc]
        )
    cluster.stop()


def test_a_temporary_cluster_is_not_crashed() -> None:
    with LiteCluster() as cluster, pytest.raises(UsageError, match="temporary"):
        cluster.crash()


def lose_disks(cluster: LiteCluster, *broker_ids: int) -> None:
    """Stop brokers, delete their folders, and start them again with nothing."""
    for broker_id in broker_ids:
        cluster.stop_node(broker_id)
    for broker_id in broker_ids:
        shutil.rmtree(cluster.log_dirs()[broker_id])
    for broker_id in broker_ids:
        cluster.restart(broker_id)


def test_strict_survives_the_loss_of_all_disks_but_one() -> None:
    with LiteCluster(brokers=3, profile="strict") as cluster:
        create_topic(cluster, "t", 3, 3)
        with Load(cluster, "t", 3) as load:
            pass
        for survivor in (1, 2, 3):
            lose_disks(cluster, *{1, 2, 3} - {survivor})
            for index in range(3):
                eventually(lambda index=index: in_sync(cluster, "t", index) == {1, 2, 3})  # type: ignore[misc]
            load.check(cluster)


def test_the_default_survives_the_loss_of_one_disk_at_the_worst_moment() -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, "t", 1, 3)
        leader = partition_of(cluster, "t").leader
        absent, other = sorted({1, 2, 3} - {leader})
        cluster.kill(absent)
        # Two have it, and one of them loses its disk.
        assert send(cluster, "t", b"a", b"b") == [None, None]
        cluster.stop_node(other)
        cluster.stop_node(leader)
        shutil.rmtree(cluster.log_dirs()[leader])
        cluster.restart(leader)
        cluster.restart(absent)
        # Neither of these has everything, and neither may lead.
        eventually(lambda: partition_of(cluster, "t").leader == -1)
        cluster.restart(other)
        eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
        await_values(cluster, "t", [b"a", b"b"])
        assert send(cluster, "t", b"c") == [None]
        eventually(lambda: replicas_are_equal(cluster, "t"))


def test_an_older_copy_of_a_folder_is_not_taken_for_the_folder(tmp_path: Path) -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, "t", 1, 3)
        leader = partition_of(cluster, "t").leader
        folder = cluster.log_dirs()[leader]
        cluster.stop_node(leader)
        shutil.copytree(folder, tmp_path / "copy")
        cluster.restart(leader)
        eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
        assert send(cluster, "t", b"a") == [None]
        for other in {1, 2, 3} - {leader}:
            cluster.kill(other)
        # The last one in sync, which alone could lead with what it has.
        cluster.stop_node(leader)
        folder.rename(tmp_path / "newer")
        shutil.copytree(tmp_path / "copy", folder)
        for _ in range(3):
            with pytest.raises(SystemFailure, match="older copy"):
                cluster.restart(leader)
        # Told that it is nobody's, it is taken in, and leads nothing.
        (folder / MARKER_NAME).unlink()
        cluster.restart(leader)
        eventually(lambda: partition_of(cluster, "t").leader == -1)
        for other in {1, 2, 3} - {leader}:
            cluster.restart(other)
        eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
        await_values(cluster, "t", [b"a"])


def test_where_the_only_copy_is_lost_nobody_pretends() -> None:
    with LiteCluster(brokers=3, profile="available") as cluster:
        create_topic(cluster, "t", 1, 3)
        leader = partition_of(cluster, "t").leader
        for other in {1, 2, 3} - {leader}:
            cluster.kill(other)
        assert send(cluster, "t", b"only here") == [None]
        cluster.stop_node(leader)
        shutil.rmtree(cluster.log_dirs()[leader])
        for broker_id in (1, 2, 3):
            cluster.restart(broker_id)
        eventually(lambda: partition_of(cluster, "t").leader == -1)
        assert goes_as_expected(cluster, b"x", in_vain=True)
        # Every broker with a replica says so in the status, and what to do about it.
        eventually(lambda: all("t-0" in node.offline for node in cluster.status()))
        for node in cluster.status():
            assert f"broker {leader} came back" in node.offline["t-0"]
            assert "unclean.leader.election.enable=true" in node.offline["t-0"]
