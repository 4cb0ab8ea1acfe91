"""Events of clusters that write none: judged against clusters whose brokers really die."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.model.events import Event, LogLine, Meta, State, Tick
from shoal.model.nodes import Node
from shoal.systems.metadata_events import MetadataEvents
from shoal.telemetry.events import EventReader
from support.lite.clusters import create_topic, eventually

pytestmark = pytest.mark.slow


class Stream:
    """What was written so far."""

    def __init__(self, folder: Path) -> None:
        self._reader = EventReader(folder)
        self.events: list[Event] = []

    def read(self) -> "Stream":
        self.events += self._reader.read().events
        return self

    def states(self) -> dict[str, State]:
        return {each.object: each for each in self.read().events if isinstance(each, State)}

    def words(self) -> dict[str, str]:
        return {name: each.state for name, each in self.states().items()}

    def of_kind(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.read().events if isinstance(each, kind)]


@pytest.fixture
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=2) as cluster:
        create_topic(cluster, "orders", 1, 2)
        create_topic(cluster, "others", 1, 2)
        yield cluster


def test_states_follow_the_processes_and_the_metadata(cluster: LiteCluster, tmp_path: Path) -> None:
    def list_nodes() -> list[Node]:
        return [Node(node.id, node.host, node.port, node.pid) for node in cluster.status()]

    servers = {"bootstrap.servers": cluster.bootstrap}
    events = MetadataEvents(tmp_path, "c", servers, engine="apache", list_nodes=list_nodes)
    stream = Stream(tmp_path)
    try:
        eventually(lambda: "partition orders-0" in stream.states())
        leader = int(stream.states()["partition orders-0"].details["leader"])
        follower = 3 - leader
        eventually(lambda: stream.words().get(f"broker {leader}") in ("leads", "in sync"))
        cluster.pause(follower)
        eventually(lambda: stream.words()[f"broker {follower}"] == "paused")
        cluster.resume(follower)
        cluster.kill(leader)
        eventually(lambda: stream.words()[f"broker {leader}"] == "dead")
        eventually(lambda: stream.words()["partition orders-0"] == f"led by broker {follower}")
        eventually(lambda: stream.states()["partition orders-0"].details["in_sync"] == [follower])
        eventually(lambda: stream.of_kind(Tick)[-1].gauges.get("under_replicated") == 2)
    finally:
        events.close()
    used = {each.name for tick in stream.of_kind(Tick) for each in tick.processes}
    assert used == {"broker 1", "broker 2"}
    (meta,) = stream.of_kind(Meta)
    assert (meta.subject, meta.details["engine"], meta.pid) == ("cluster", "apache", os.getpid())


def test_of_an_external_cluster_only_the_named_topics_are_asked_for(
    cluster: LiteCluster, tmp_path: Path
) -> None:
    servers = {"bootstrap.servers": cluster.bootstrap}
    wanted = ["orders", "missing"]
    events = MetadataEvents(tmp_path, "c", servers, engine="external", topics=wanted)
    stream = Stream(tmp_path)
    try:
        eventually(lambda: "partition orders-0" in stream.words())
        cluster.kill(1)
        cluster.kill(2)
        eventually(lambda: bool(stream.of_kind(LogLine)))
        cluster.restart(1)
        cluster.restart(2)
        seen = len(stream.of_kind(Tick))
        eventually(lambda: any("brokers" in tick.gauges for tick in stream.of_kind(Tick)[seen:]))
    finally:
        events.close()
    assert [name for name in stream.words() if name.startswith("partition")] == [
        "partition orders-0"
    ]
    assert all(tick.processes == [] for tick in stream.of_kind(Tick))


def test_an_address_where_nothing_answers_is_said_once(tmp_path: Path) -> None:
    servers = {"bootstrap.servers": "127.0.0.1:1"}
    events = MetadataEvents(tmp_path, "c", servers, engine="external")
    stream = Stream(tmp_path)
    try:
        eventually(lambda: len(stream.of_kind(Tick)) >= 2)
    finally:
        events.close()
    assert [log.level for log in stream.of_kind(LogLine)] == ["warning"]
    assert stream.states() == {}
