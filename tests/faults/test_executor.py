"""Faults on a real cluster: what happens to it, and what is written down."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal.experiment.faults.fault_targets import ClusterAdmin, ClusterNodes, LiteNodeLinks
from shoal.faults import timeline
from shoal.faults.executor import FaultRunner
from shoal.faults.network import ProxyNetwork
from shoal.faults.targets import Targets
from shoal.faults.timeline import Fault, FaultSchedule
from shoal.model.errors import SystemFailure
from shoal.model.tables import parse_toml
from shoal.net.link_faults import LinkEffect
from shoal.systems.lite import LiteSystem
from support.lite.clusters import create_topic, eventually, partition_of, send

PATIENCE_S = 60.0


class Mirror:
    """Stands for a mirror; its second start fails."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def start(self) -> None:
        self.done.append("start")
        raise SystemFailure("no more mirrors")

    def kill(self) -> None:
        self.done.append("kill")

    def pause(self) -> None:
        self.done.append("pause")

    def resume(self) -> None:
        self.done.append("resume")


class World:
    def __init__(self, cluster: LiteSystem, network: ProxyNetwork) -> None:
        self.cluster = cluster
        self.lines: list[dict[str, Any]] = []
        self.mirror = Mirror()
        self.runners: list[FaultRunner] = []
        self.targets = Targets(
            nodes={"source": ClusterNodes(cluster)},
            admins={"source": ClusterAdmin({"bootstrap.servers": cluster.bootstrap})},
            topics=("faulty",),
            mirror=self.mirror,
            links=network,
        )

    def runner(self, text: str) -> FaultRunner:
        faults = timeline.parse(parse_toml(text, name="test.toml").tables("fault"))
        runner = FaultRunner(faults, self.targets, self.lines.append)
        self.runners.append(runner)
        return runner

    def has_seen(self, phase: str, name: str) -> bool:
        return any(line["phase"] == phase and line["name"] == name for line in self.lines)

    def state(self, node_id: int) -> str:
        return next(node.state for node in self.cluster.status() if node.id == node_id)


@pytest.fixture
def cluster() -> Iterator[LiteSystem]:
    with LiteSystem(brokers=3) as running:
        create_topic(running, "faulty", 2, 3, retention_ms="-1")
        yield running


@pytest.fixture
def world(cluster: LiteSystem) -> Iterator[World]:
    with ProxyNetwork() as network:
        network.attach_nodes("source", LiteNodeLinks(cluster))
        made = World(cluster, network)
        try:
            yield made
        finally:
            for runner in made.runners:
                runner.stop()


def soon(is_so: Callable[[], bool]) -> None:
    eventually(is_so, PATIENCE_S)


def test_a_killed_leader_is_named_and_comes_back(world: World) -> None:
    leader = partition_of(world.cluster, "faulty").leader
    runner = world.runner('[[fault]]\nname = "kill"\ntarget = "source/leader"\nat = 0\nfor = 0.1')
    runner.start()
    soon(lambda: world.has_seen("end", "kill"))
    runner.stop()
    assert runner.failures == []
    assert [line["target"] for line in world.lines] == [f"source/{leader}"] * 2
    assert [line["fault"] for line in world.lines] == [1, 1]
    assert world.lines[0]["at_us"] < world.lines[1]["at_us"]
    assert world.lines[0]["detail"] == {"for_s": 0.1}
    assert world.state(leader) == "running"


def test_stopping_heals_all_but_the_dead(world: World) -> None:
    runner = world.runner(
        '[[fault]]\nname = "pause"\ntarget = "source/1"\nat = 0\n'
        '[[fault]]\nname = "cut"\nbetween = ["source/2", "source/3"]\nat = 0\n'
        '[[fault]]\nname = "kill"\ntarget = "source/3"\nat = 0\n'
        '[[fault]]\nname = "kill"\ntarget = "source/2"\nat = "1h"\n'
    )
    runner.start()
    soon(lambda: world.state(1) == "paused" and world.state(3) == "dead")
    soon(lambda: len(world.cluster.faults()) == 2)
    runner.stop()
    assert runner.failures == []
    assert (world.state(1), world.state(2), world.state(3)) == ("running", "running", "dead")
    assert world.cluster.faults() == []
    ends = {line["name"] for line in world.lines if line["phase"] == "end"}
    assert ends == {"pause", "cut"}
    world.cluster.restart(3)


def test_a_fault_on_demand_is_in_effect_at_once_and_ends_when_asked(world: World) -> None:
    runner = world.runner("")
    cut = Fault(
        "cut",
        FaultSchedule(0.0),
        sources=("source/1",),
        targets=("source/2",),
        effect=LinkEffect(is_cut=True),
    )
    heal = runner.inject(cut)
    assert len(world.cluster.faults()) == 2
    runner.inject(Fault("kill", FaultSchedule(0.0), target="source/3"))
    assert world.state(3) == "dead"
    heal()
    soon(lambda: world.has_seen("end", "cut"))
    assert world.cluster.faults() == []
    runner.inject(Fault("kill", FaultSchedule(0.0), target="source/9"))
    assert len(runner.failures) == 1
    runner.stop()
    assert [(line["fault"], line["name"]) for line in world.lines if line["phase"] == "begin"] == [
        *((1, "cut"), (2, "kill"), (3, "kill"))
    ]
    world.cluster.restart(3)


def test_a_restart_ends_a_death_and_heal_ends_what_links_suffer(world: World) -> None:
    runner = world.runner(
        '[[fault]]\nname = "kill"\ntarget = "source/2"\nat = 0\n'
        '[[fault]]\nname = "delay"\nbetween = ["source/1", "source/3"]\ndelay = "5ms"\nat = 0\n'
        '[[fault]]\nname = "restart"\ntarget = "source/2"\nat = 0.5\n'
        '[[fault]]\nname = "heal"\nat = 0.5\n'
    )
    runner.start()
    for name in ("kill", "delay", "restart", "heal"):
        soon(lambda name=name: world.has_seen("end", name))  # type: ignore[misc]
    assert world.state(2) == "running"
    assert world.cluster.faults() == []
    runner.stop()
    assert runner.failures == []


def test_what_fails_is_written_down(world: World) -> None:
    runner = world.runner(
        '[[fault]]\nname = "kill"\ntarget = "mirror"\nat = 0\nfor = 0.1\n'
        '[[fault]]\nname = "kill"\ntarget = "source/9"\nat = 0.1\n'
    )
    runner.start()
    soon(lambda: len([line for line in world.lines if line["phase"] == "end"]) == 2)
    runner.stop()
    assert world.mirror.done == ["kill", "start"]
    assert len(runner.failures) == 2
    failed = {line["target"]: line["detail"].get("failed") for line in world.lines[1:]}
    assert failed["mirror"] == "no more mirrors"
    assert "no node 9" in failed["source/9"]


def test_topics_grow_are_purged_and_made_again(world: World) -> None:
    assert send(world.cluster, "faulty", b"1", b"2", b"3") == [None] * 3
    runner = world.runner(
        '[[fault]]\nname = "purge"\ntarget = "source"\nat = 0\n'
        '[[fault]]\nname = "grow"\ntarget = "source"\npartitions = 4\nat = 0\n'
    )
    runner.start()
    soon(lambda: world.has_seen("end", "purge") and world.has_seen("end", "grow"))
    assert runner.failures == []
    runner.stop()
    again = world.runner('[[fault]]\nname = "recreate_topic"\ntarget = "source"\nat = 0\n')
    again.start()
    soon(lambda: world.has_seen("end", "recreate_topic"))
    again.stop()
    assert again.failures == []
    soon(lambda: partition_of(world.cluster, "faulty", 3).leader >= 1)


def test_a_rolling_restart_touches_all(world: World) -> None:
    before = {node.id: node.pid for node in world.cluster.nodes()}
    runner = world.runner('[[fault]]\nname = "rolling_restart"\ntarget = "source"\nat = 0\n')
    runner.start()
    soon(lambda: world.has_seen("end", "rolling_restart"))
    runner.stop()
    after = {node.id: node.pid for node in world.cluster.nodes()}
    assert runner.failures == []
    assert all(before[node] != after[node] for node in before)
    assert not [t for t in threading.enumerate() if t.name.startswith("fault-")]
