"""Three controllers in processes of their own: any one of them can be killed, paused, cut off,
restarted and replaced, and nothing is lost."""

import asyncio
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.lite.async_cluster import AsyncLiteCluster
from shoal.lite.cluster import LiteCluster, QuorumStatus
from shoal.model.errors import SystemFailure, UsageError
from support.lite.clusters import (
    Load,
    admin_of,
    await_values,
    create_topic,
    eventually,
    in_sync,
    partition_of,
    send,
)

IDS = {101, 102, 103}
PATIENCE_S = 60.0


def quorum_of(cluster: LiteCluster) -> QuorumStatus:
    """The quorum, as soon as somebody leads it."""
    found: list[QuorumStatus] = []

    def is_led() -> bool:
        described = cluster.quorum()
        if described is not None:
            found.append(described)
        return described is not None

    eventually(is_led, PATIENCE_S)
    return found[0]


def active(cluster: LiteCluster) -> int:
    return quorum_of(cluster).leader


def all_caught_up(cluster: LiteCluster, ids: set[int]) -> bool:
    described = cluster.quorum()
    if described is None:
        return False
    caught_up = {voter.id for voter in described.voters if voter.lag == 0}
    return caught_up >= ids


def topics_of(cluster: LiteCluster) -> set[str]:
    with admin_of(cluster) as admin:
        return set(admin.list_topics(timeout=PATIENCE_S).topics)


@contextmanager
def three(**options: object) -> Iterator[LiteCluster]:
    with LiteCluster(brokers=3, controllers=3, **options) as cluster:  # type: ignore[arg-type]
        yield cluster


def test_three_controllers_know_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with three() as cluster:
        with capsys.disabled():
            sys.stdout.write(
                f"\n  3 brokers and 3 controllers in {time.monotonic() - began:.3f} s\n"
            )
        assert {node.id for node in cluster.controllers()} == IDS
        assert {node.id for node in cluster.status()} == {1, 2, 3}
        eventually(lambda: all_caught_up(cluster, IDS))
        described = quorum_of(cluster)
        assert described.leader in IDS
        assert described.epoch == 1
        assert {voter.id for voter in described.voters} == IDS
        assert len({voter.directory for voter in described.voters}) == 3
        assert {observer.id for observer in described.observers} >= {1, 2, 3}


def test_the_active_controller_is_killed_under_load(capsys: pytest.CaptureFixture[str]) -> None:
    with three() as cluster:
        create_topic(cluster, "t", 3, 3)
        with Load(cluster, "t", 3) as load:
            killed = active(cluster)
            cluster.kill(killed)
            began = time.monotonic()
            create_topic(cluster, "made", 3, 3)
            took_s = time.monotonic() - began
            with capsys.disabled():
                sys.stdout.write(f"\n  {took_s:.3f} s from a controller's death to a topic\n")
            # A leader dies while a controller is down.
            leader = partition_of(cluster, "t").leader
            cluster.kill(leader)
            eventually(lambda: partition_of(cluster, "t").leader not in {leader, -1})
            load.goes_on()
            cluster.restart(leader)
            cluster.restart(killed)
            eventually(lambda: all_caught_up(cluster, IDS))
            eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
            # And both at once.
            other = partition_of(cluster, "t").leader
            cluster.kill(active(cluster))
            cluster.kill(other)
            eventually(lambda: partition_of(cluster, "t").leader not in {other, -1})
            load.goes_on()
        load.check(cluster)
        assert topics_of(cluster) >= {"t", "made"}


def test_a_paused_controller_is_passed_over_and_comes_back() -> None:
    with three() as cluster:
        create_topic(cluster, "t", 1, 3)
        with Load(cluster, "t") as load:
            paused = active(cluster)
            cluster.pause(paused)
            create_topic(cluster, "meanwhile", 1, 3)
            assert active(cluster) != paused
            load.goes_on()
            cluster.resume(paused)
            eventually(lambda: all_caught_up(cluster, IDS))
        load.check(cluster)
        assert topics_of(cluster) >= {"t", "meanwhile"}


def test_a_controller_that_is_cut_off_loses_its_place_and_no_record() -> None:
    with three() as cluster:
        create_topic(cluster, "t", 1, 3)
        cut = active(cluster)
        epoch = quorum_of(cluster).epoch
        cluster.isolate(cut)
        create_topic(cluster, "meanwhile", 1, 3)
        # Whoever was cut off may still be asked, and has not noticed.
        eventually(lambda: quorum_of(cluster).epoch > epoch)
        cluster.heal()
        eventually(lambda: all_caught_up(cluster, IDS))
        assert send(cluster, "t", b"a") == [None]
        assert topics_of(cluster) >= {"t", "meanwhile"}


def test_without_a_majority_nothing_changes_and_then_it_goes_on() -> None:
    with three() as cluster:
        create_topic(cluster, "t", 1, 3)
        assert send(cluster, "t", b"a") == [None]
        lost = sorted(IDS)[:2]
        for controller_id in lost:
            cluster.kill(controller_id)
        # Data flows without controllers, as long as nothing has to change.
        assert send(cluster, "t", b"b") == [None]
        await_values(cluster, "t", [b"a", b"b"])
        with admin_of(cluster) as admin:
            assert admin.list_topics(timeout=PATIENCE_S).topics.keys() >= {"t"}
        cluster.restart(lost[0])
        create_topic(cluster, "later", 1, 3)
        assert send(cluster, "later", b"c") == [None]


async def test_a_broker_waits_for_controllers_for_longer_than_for_its_predecessor() -> None:
    times = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "100"}
    async with AsyncLiteCluster(brokers=2, controllers=3, properties=times) as cluster:
        await cluster.kill(1)
        for controller_id in (101, 102):
            await cluster.pause(controller_id)
        restarting = asyncio.create_task(cluster.restart(1))
        await asyncio.sleep(3)
        for controller_id in (101, 102):
            await cluster.resume(controller_id)
        await restarting
        assert {status.state for status in await cluster.status()} == {"running"}


def test_everything_is_killed_and_started_again(tmp_path: Path) -> None:
    with three(directory=tmp_path) as cluster:
        create_topic(cluster, "t", 3, 3)
        with Load(cluster, "t", 3) as load:
            load.goes_on()
            for node in (*cluster.status(), *cluster.controllers()):
                cluster.kill(node.id)
            for controller_id in IDS:
                cluster.restart(controller_id)
            for broker_id in (1, 2, 3):
                cluster.restart(broker_id)
            load.goes_on()
        load.check(cluster)
    # All that was given is remembered with the folder.
    with LiteCluster(directory=tmp_path) as cluster:
        assert {node.id for node in cluster.controllers()} == IDS
        load.check(cluster)
        create_topic(cluster, "again", 1, 3)
    with pytest.raises(SystemFailure, match="has 3 controllers"):
        LiteCluster(directory=tmp_path, controllers=1).start()


def test_an_empty_disk_under_an_old_id_is_refused_and_then_replaced() -> None:
    with three() as cluster:
        create_topic(cluster, "t", 1, 3)
        victim = next(iter(IDS - {active(cluster)}))
        before = {voter.id: voter.directory for voter in quorum_of(cluster).voters}
        cluster.kill(victim)
        shutil.rmtree(cluster.directory / f"controller-{victim}")
        with pytest.raises(SystemFailure, match="another disk"):
            cluster.restart(victim)
        with Load(cluster, "t") as load:
            cluster.replace_controller(victim)
            load.goes_on()
            after = {voter.id: voter.directory for voter in quorum_of(cluster).voters}
            assert after.keys() == IDS
            assert after[victim] != before[victim]
            # The new one counts: with it, another may be missed.
            cluster.kill(next(iter(IDS - {victim, active(cluster)})))
            create_topic(cluster, "with-the-new-one", 1, 3)
        load.check(cluster)


def test_a_disk_that_was_lost_while_all_was_down_is_replaced(tmp_path: Path) -> None:
    with LiteCluster(3, tmp_path, controllers=3) as cluster:
        create_topic(cluster, "t", 1, 3)
        assert send(cluster, "t", b"a") == [None]
        before = {voter.id: voter.directory for voter in quorum_of(cluster).voters}
    shutil.rmtree(tmp_path / "controller-102")
    with LiteCluster(directory=tmp_path) as cluster:
        after = {voter.id: voter.directory for voter in quorum_of(cluster).voters}
        assert after.keys() == IDS
        assert after[102] != before[102]
        assert send(cluster, "t", b"b") == [None]
        await_values(cluster, "t", [b"a", b"b"])
    for controller_id in (101, 103):
        shutil.rmtree(tmp_path / f"controller-{controller_id}")
    with pytest.raises(SystemFailure, match="2 of 3 controllers have lost their disks"):
        LiteCluster(directory=tmp_path).start()


def test_the_active_controller_is_replaced() -> None:
    with three() as cluster:
        create_topic(cluster, "t", 1, 3)
        cluster.replace_controller(active(cluster))
        assert {voter.id for voter in quorum_of(cluster).voters} == IDS
        eventually(lambda: all_caught_up(cluster, IDS))
        assert "t" in topics_of(cluster)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot have 0 controllers"):
        LiteCluster(controllers=0)
    with LiteCluster(directory=tmp_path) as cluster:
        assert cluster.controllers() == []
        described = quorum_of(cluster)
        assert ([voter.id for voter in described.voters], described.leader) == ([100], 100)
        with pytest.raises(SystemFailure, match="is not a controller process"):
            cluster.replace_controller(1)
    with pytest.raises(SystemFailure, match="inside the supervisor"):
        LiteCluster(directory=tmp_path, controllers=3).start()
