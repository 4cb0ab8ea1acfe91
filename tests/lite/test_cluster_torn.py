"""Files of one broker that were cut or damaged while all were down: the others have it all."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.cluster import LiteCluster
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.high_watermarks import HIGH_WATERMARKS
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from support.lite.clusters import (
    await_values,
    create_topic,
    eventually,
    in_sync,
    partition_of,
    replicas_are_equal,
    send,
)

VALUES = [b"%d" % number for number in range(50)]


def cut(log: Path) -> None:
    os.truncate(log, log.stat().st_size - 7)


def garble(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)


def cut_and_open(log: Path) -> None:
    """A process has opened the log, and written its marks, and was killed before it told."""
    cut(log)
    PartitionLog(log.parent, LogSettings(), last_shutdown=LastShutdown.CLEANLY).close()
    (log.parents[1] / HIGH_WATERMARKS).unlink()


def take_batches(log: Path) -> None:
    """Whole ones: nothing in the file tells that they were there."""
    os.truncate(log, log.stat().st_size // 5)


def remove_folder(log: Path) -> None:
    for path in log.parent.iterdir():
        path.unlink()
    log.parent.rmdir()


def assert_all_is_there_again(cluster: LiteCluster) -> None:
    cluster.start()
    try:
        await_values(cluster, "t", VALUES)
        eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
        eventually(lambda: replicas_are_equal(cluster, "t"))
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    ("ends", "damage"),
    [
        ("killed", cut),
        ("killed", take_batches),
        ("killed", garble),
        ("killed", remove_folder),
        ("cleanly", cut),
        ("cleanly", take_batches),
        ("cleanly", remove_folder),
    ],
)
@pytest.mark.quick("killed-cut", "cleanly-remove_folder")
def test_what_one_disk_lost_the_others_have(
    tmp_path: Path, ends: str, damage: Callable[[Path], None]
) -> None:
    cluster = LiteCluster(brokers=3, directory=tmp_path / "c").start()
    create_topic(cluster, "t", 1, 3)
    for start in range(0, len(VALUES), 10):
        assert send(cluster, "t", *VALUES[start : start + 10]) == [None] * 10
    leader = partition_of(cluster, "t").leader
    if ends == "killed":
        cluster.crash()
    else:
        cluster.stop()
    [log] = (tmp_path / "c" / f"broker-{leader}" / "t-0").glob("*.log")
    damage(log)
    assert_all_is_there_again(cluster)


@pytest.mark.parametrize(("damage", "place"), [(cut, 1), (Path.unlink, 1), (Path.unlink, 0)])
@pytest.mark.parametrize("ends", ["killed", "cleanly"])
@pytest.mark.quick("killed-unlink-0", "cleanly-unlink-1")
def test_what_is_missing_at_the_begin_or_in_the_middle_of_a_log_the_others_have(
    tmp_path: Path, ends: str, damage: Callable[[Path], None], place: int
) -> None:
    cluster = LiteCluster(brokers=3, directory=tmp_path / "c").start()
    create_topic(cluster, "t", 1, 3, segment_bytes="300")
    for start in range(0, len(VALUES), 10):
        assert send(cluster, "t", *VALUES[start : start + 10]) == [None] * 10
    leader = partition_of(cluster, "t").leader
    if ends == "killed":
        cluster.crash()
    else:
        cluster.stop()
    logs = sorted((tmp_path / "c" / f"broker-{leader}" / "t-0").glob("*.log"))
    assert len(logs) > 2
    damage(logs[place])
    assert_all_is_there_again(cluster)


@pytest.mark.parametrize("damage", [cut, cut_and_open, remove_folder])
@pytest.mark.quick("cut")
def test_the_last_one_in_sync_lost_what_an_eligible_one_has(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with LiteCluster(brokers=3, directory=tmp_path / "c") as cluster:
        create_topic(cluster, "t", 1, 3)
        assert send(cluster, "t", *VALUES) == [None] * len(VALUES)
        last = partition_of(cluster, "t").leader
        for broker_id in (*{1, 2, 3} - {last}, last):
            cluster.stop_node(broker_id)
        [log] = (tmp_path / "c" / f"broker-{last}" / "t-0").glob("*.log")
        damage(log)
        cluster.restart(last)
        eventually(lambda: partition_of(cluster, "t").leader == -1)
        for broker_id in {1, 2, 3} - {last}:
            cluster.restart(broker_id)
        eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
        await_values(cluster, "t", VALUES)
        eventually(lambda: replicas_are_equal(cluster, "t"))


def test_what_is_left_behind_a_missing_begin_is_served_where_nobody_has_more(
    tmp_path: Path,
) -> None:
    cluster = LiteCluster(directory=tmp_path / "c").start()
    create_topic(cluster, "t", 1, 1, segment_bytes="300")
    for value in VALUES:
        assert send(cluster, "t", value) == [None]
    cluster.stop()
    logs = sorted((tmp_path / "c" / "broker-1" / "t-0").glob("*.log"))
    left = VALUES[int(logs[1].stem) :]
    assert left != VALUES
    logs[0].unlink()
    for _ in range(2):
        with cluster:
            await_values(cluster, "t", left)


def test_a_write_that_a_kill_tore_is_no_loss_and_a_cut_is(tmp_path: Path) -> None:
    cluster = LiteCluster(brokers=3, directory=tmp_path / "c").start()
    create_topic(cluster, "t", 1, 3)
    leader = partition_of(cluster, "t").leader
    torn, absent = sorted({1, 2, 3} - {leader})
    cluster.kill(absent)
    for start in range(0, len(VALUES), 10):
        assert send(cluster, "t", *VALUES[start : start + 10]) == [None] * 10
    cluster.crash()
    with (tmp_path / "c" / f"broker-{torn}" / "t-0" / f"{0:020}.log").open("ab") as log:
        log.write(bytes(8) + b"half a batch")
    take_batches(tmp_path / "c" / f"broker-{leader}" / "t-0" / f"{0:020}.log")
    # Only one of the two has lost something, and the other one is relied on.
    assert_all_is_there_again(cluster)
