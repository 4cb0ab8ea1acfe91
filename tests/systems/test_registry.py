"""Clusters found from another terminal: harmed, taken down, and forgotten when dead."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.model.errors import SystemFailure, UsageError
from shoal.model.nodes import Node
from shoal.runtime import paths
from shoal.systems import registry

# A cluster of plain processes; its owner publishes it, and ends on SIGTERM with its nodes.
OWNER = """
import os, signal, sys, time
from pathlib import Path
from shoal.model.nodes import Node
from shoal.systems import registry
from shoal.systems.processes.guarded import GuardedProcess
folder = Path(sys.argv[2])
processes = [GuardedProcess(["/bin/sleep", "1000"], log=folder / "log", folder=folder)
             for _ in range(2)]
class Fake:
    engine, name, bootstrap = "fake", sys.argv[1], "127.0.0.1:1,127.0.0.1:2"
    def nodes(self):
        pids = [p.pid if p.is_alive() else 0 for p in processes]
        return [Node(id=n, host="127.0.0.1", port=n, pid=pid) for n, pid in enumerate(pids, 1)]
registry.publish(Fake())
if "stubborn" in sys.argv[1]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


class Owners:
    """Processes that own clusters."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[str]] = []

    def start(self, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OWNER, name, str(self.folder)]
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.running.append(owner)
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        return owner


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    made = Owners(tmp_path)
    yield made
    for owner in made.running:
        owner.kill()
        owner.communicate()


def test_a_cluster_is_found_by_name_or_alone(owners: Owners) -> None:
    with pytest.raises(UsageError, match="no cluster is running"):
        registry.find()
    owner = owners.start("blue")
    entry = registry.find()
    assert (entry.name, entry.engine, entry.owner.pid) == ("blue", "fake", owner.pid)
    assert entry.bootstrap == "127.0.0.1:1,127.0.0.1:2"
    assert abs(entry.started_us / 1e6 - time.time()) < 60
    owners.start("green")
    assert registry.find("green").name == "green"
    assert [each.name for each in registry.entries()] == ["blue", "green"]
    with pytest.raises(UsageError, match="several clusters are running") as refusal:
        registry.find()
    assert refusal.value.remedy == "choose one with --name: blue, green"
    with pytest.raises(UsageError, match="no cluster named red is running"):
        registry.find("red")


def test_nodes_are_paused_resumed_and_killed(owners: Owners) -> None:
    owners.start("blue")
    entry = registry.find("blue")
    assert [entry.node_state(n) for n in (1, 2)] == ["running", "running"]
    entry.pause(1)
    assert [entry.node_state(n) for n in (1, 2)] == ["paused", "running"]
    entry.resume(1)
    assert entry.node_state(1) == "running"
    entry.kill(1)
    entry.identities[1].wait_until_ended(60)
    assert [entry.node_state(n) for n in (1, 2)] == ["down", "running"]
    for order in (entry.kill, entry.pause, entry.resume):
        with pytest.raises(SystemFailure, match="node 1 of cluster blue is down"):
            order(1)
        with pytest.raises(UsageError, match="cluster blue has no node 3"):
            order(3)


@pytest.mark.parametrize("name", ["gentle", "stubborn"])
def test_down_ends_owner_and_nodes(owners: Owners, name: str) -> None:
    owner = owners.start(name)
    entry = registry.find(name)
    entry.pause(2)
    entry.down(timeout_s=0.5 if name == "stubborn" else 10)
    ending = signal.SIGKILL if name == "stubborn" else signal.SIGTERM
    assert owner.wait(100) == -ending
    assert all(identity.wait_until_ended(60) for identity in entry.identities.values())
    assert registry.entries() == []
    assert not list((paths.state_dir() / "clusters").iterdir())


def test_what_dead_owners_left_is_removed(owners: Owners) -> None:
    owner = owners.start("blue")
    entry = registry.find("blue")
    owner.kill()
    owner.wait()
    assert all(identity.wait_until_ended(60) for identity in entry.identities.values())
    assert registry.entries() == []
    assert not list((paths.state_dir() / "clusters").iterdir())


def test_recycled_ids_are_not_mistaken_for_a_cluster(owners: Owners) -> None:
    owners.start("blue")
    file = paths.state_dir() / "clusters" / "blue.json"
    content = json.loads(file.read_text())
    innocent = {"pid": os.getpid(), "start_mark": "long ago"}
    content |= {"owner": innocent, "identities": {"1": innocent, "2": innocent}}
    file.write_text(json.dumps(content))
    assert registry.entries() == []
    assert not file.exists()


def test_files_of_others_are_left_alone() -> None:
    folder = paths.make_folder(paths.state_dir() / "clusters")
    for name, text in (("broken.json", "{"), ("newer.json", '{"format": 99}'), ("list.json", "[]")):
        (folder / name).write_text(text)
    assert registry.entries() == []
    assert len(list(folder.iterdir())) == 3


class OneNode:
    """The least that can be published: this very process as the only node."""

    engine = "fake"
    bootstrap = "127.0.0.1:1"

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = os.getpid()

    def nodes(self) -> list[Node]:
        return [Node(id=1, host="127.0.0.1", port=1, pid=self.pid)]


def test_a_name_belongs_to_one_living_cluster(owners: Owners) -> None:
    owner = owners.start("blue")
    rival = OneNode("blue")
    with pytest.raises(UsageError, match="a cluster named blue is already running"):
        registry.publish(rival)
    registry.find("blue").down()
    owner.wait()
    registry.publish(rival)
    assert registry.find("blue").owner.pid == os.getpid()


def test_who_was_refused_a_name_takes_it_from_nobody(owners: Owners) -> None:
    owner = owners.start("blue")
    registry.withdraw("blue")
    assert registry.find("blue").owner.pid == owner.pid


def test_a_free_name_is_the_word_or_begins_with_it(owners: Owners) -> None:
    assert registry.free_name("blue") == "blue"
    owners.start("blue")
    assert registry.free_name("blue") == "blue-2"
    owners.start("blue-2")
    assert registry.free_name("blue") == "blue-3"


def test_publishing_again_renews_the_nodes() -> None:
    cluster = OneNode("blue")
    registry.publish(cluster)
    first = registry.find("blue")
    assert first.node_state(1) == "running"
    cluster.pid = 0
    registry.publish(cluster)
    again = registry.find("blue")
    assert (again.node_state(1), again.started_us) == ("down", first.started_us)
    registry.withdraw("blue")
    registry.withdraw("blue")
    assert registry.entries() == []


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65, "blank space"])
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid name for a cluster"):
        registry.check_name(name)
