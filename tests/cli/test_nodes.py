"""`shoal broker` and `shoal controller`: a cluster of single nodes, as on several hosts."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from prometheus_client.parser import text_string_to_metric_families

from shoal.control.actions import Action, act
from shoal.control.clusters import open_cluster
from shoal.model.errors import UsageError
from shoal.net.ports import free_ports
from shoal.telemetry.discovery import find_sources
from support.cluster_streams import last_states, last_tick, read_events
from support.lite.clusters import eventually

pytestmark = pytest.mark.slow

CLUSTER = ("--cluster-id", "east")
PATIENCE_S = 60.0


class Node:
    """A process of `shoal broker` or `shoal controller`."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shoal", *arguments],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200"},
            )

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until it has said so."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.text)) is None:
            ended = self.process.poll()
            assert ended is None or re.search(pattern, self.text), f"ended {ended}: {self.text}"
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)
        return found

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


class Hosts:
    """Starts nodes; all of them are gone at the end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.ports = free_ports(3)
        named = [f"{i}@127.0.0.1:{port}" for i, port in enumerate(self.ports, start=101)]
        self.named = ("--controllers", ",".join(named))
        self._count = 0

    def start(self, kind: str, node_id: int, *more: str, folder: str = "") -> Node:
        port = self.ports[node_id - 101] if kind == "controller" else 0
        self._count += 1
        node = Node(
            kind,
            *("--id", str(node_id), "--dir", str(self.folder / (folder or f"{kind}-{node_id}"))),
            *("--listen", f"127.0.0.1:{port}"),
            *self.named,
            *(more if "--cluster-id" in more else (*CLUSTER, *more)),
            log=self.folder / f"{self._count}-{kind}-{node_id}.log",
        )
        self._stack.callback(node.kill)
        return node

    def controllers(self) -> dict[int, Node]:
        nodes = {node_id: self.start("controller", node_id) for node_id in (101, 102, 103)}
        for node in nodes.values():
            node.says("listens on")
        return nodes

    def broker(self, node_id: int) -> tuple[Node, str]:
        node = self.start("broker", node_id)
        return node, node.says(r"broker \d+ listens on (\S+)").group(1)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with ExitStack() as stack:
        yield Hosts(tmp_path, stack)


@contextmanager
def admin_of(bootstrap: str) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        yield admin


def send_and_read(bootstrap: str, topic: str, value: bytes) -> list[bytes | None]:
    settings = {"bootstrap.servers": bootstrap, "log_level": 0}
    failed: list[object] = []
    with Producer(settings) as producer:
        producer.produce(topic, value, partition=0, on_delivery=lambda e, _: failed.append(e))
        assert producer.flush(PATIENCE_S) == 0
    assert failed == [None]
    consumer = Consumer(settings | {"group.id": "g", "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[bytes | None] = []
        while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
            values.append(message.value())
        return values
    finally:
        consumer.close()


def test_a_cluster_of_single_nodes(hosts: Hosts) -> None:
    controllers = hosts.controllers()
    (first, bootstrap), (second, _) = hosts.broker(1), hosts.broker(2)
    with admin_of(bootstrap) as admin:
        admin.create_topics([NewTopic("t", 1, 2)])["t"].result(PATIENCE_S)
    assert send_and_read(bootstrap, "t", b"a") == [b"a"]

    # The id of a broker that lives, and a folder that is in use.
    double = hosts.start("broker", 1, folder="other")
    double.says("another live process is registered as broker 1")
    assert double.process.wait(PATIENCE_S) == 1
    again = hosts.start("broker", 1)
    again.says("another process uses .*broker-1")
    assert again.process.wait(PATIENCE_S) == 1

    # A broker that was killed comes back at once: nobody else can have its folder.
    first.kill()
    first, bootstrap = hosts.broker(1)
    assert send_and_read(bootstrap, "t", b"b") == [b"a", b"b"]

    # Two of three controllers are enough.
    controllers[101].kill()
    with admin_of(bootstrap) as admin:
        admin.create_topics([NewTopic("u", 1, 2)])["u"].result(PATIENCE_S)
    for node in (first, second, controllers[102], controllers[103]):
        assert node.end() == 0


def await_in_sync(folder: Path, broker: str) -> None:
    eventually(lambda: last_states(folder)[broker]["state"] in ("leads", "in sync"))


def count_records(folder: Path) -> int:
    return int(last_tick(folder)["counters"].get("records_in", 0))


def test_nodes_write_what_they_see_and_take_signals(hosts: Hosts) -> None:
    hosts.controllers()
    (first, bootstrap), _ = hosts.broker(1), hosts.broker(2)
    with admin_of(bootstrap) as admin:
        admin.create_topics([NewTopic("t", 1, 2)])["t"].result(PATIENCE_S)
    assert send_and_read(bootstrap, "t", b"a") == [b"a"]
    found = {each.name: each for each in find_sources(hosts.folder / "runs")}
    assert sorted(found) == [
        *("east-broker-1", "east-broker-2"),
        *("east-controller-101", "east-controller-102", "east-controller-103"),
    ]
    assert all(each.is_alive and each.subject == "cluster" for each in found.values())
    views = [found["east-broker-1"].folder, found["east-controller-102"].folder]
    for folder in views:
        await_in_sync(folder, "broker 2")
        states = [last_states(folder)[f"controller {each}"]["state"] for each in (101, 102, 103)]
        assert states.count("active") == 1
        assert last_states(folder)["partition t-0"]["details"]["leader"] in (1, 2)
    brokers = [found[f"east-broker-{number}"].folder for number in (1, 2)]
    eventually(lambda: sum(count_records(folder) for folder in brokers) == 1)
    assert [each["name"] for each in last_tick(views[0])["processes"]] == ["broker 1"]

    # What the page and commands do to a node, and what only its host can do.
    assert open_cluster("cluster:east-broker-1", None).bootstrap == bootstrap
    with pytest.raises(UsageError, match="only the owner of cluster east-broker-1"):
        act(Action("cluster:east-broker-1", "cut", 1))
    with pytest.raises(UsageError, match="its nodes are 1"):
        act(Action("cluster:east-broker-1", "kill", 2))
    command = [sys.executable, "-m", "shoal", "cluster"]
    shown = subprocess.run([*command, "status"], capture_output=True, text=True, check=True)
    assert all(name in shown.stdout for name in found), shown
    killed = [*command, "kill", "1", "--name", "east-broker-1"]
    assert subprocess.run(killed, capture_output=True, check=False).returncode == 0
    assert first.process.wait(PATIENCE_S) == -signal.SIGKILL
    eventually(lambda: last_states(views[1])["broker 1"]["state"] == "fenced")
    # Its stream goes on when it is started again.
    hosts.broker(1)
    await_in_sync(views[1], "broker 1")
    assert [each["kind"] for each in read_events(views[0])].count("meta") == 1


def test_a_lost_disk_is_refused_and_replaced(hosts: Hosts) -> None:
    controllers = hosts.controllers()
    controllers[102].kill()
    emptied = hosts.start("controller", 102, folder="empty")
    emptied.says("known to the quorum by another disk")
    assert emptied.process.wait(PATIENCE_S) == 1
    replaced = hosts.start("controller", 102, "--replace", folder="empty")
    replaced.says("102 asked to become a voter: NONE")
    controllers[101].kill()
    _, bootstrap = hosts.broker(1)
    with admin_of(bootstrap) as admin:
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
    assert replaced.end() == 0


def test_nodes_of_another_cluster_are_refused(hosts: Hosts) -> None:
    hosts.controllers()
    stranger = hosts.start("broker", 1, "--cluster-id", "west")
    stranger.says("do not belong to cluster west")
    assert stranger.process.wait(PATIENCE_S) == 1
    # The folder was signed for that cluster.
    returned = hosts.start("broker", 1)
    returned.says("belongs to cluster west, not to east")
    assert returned.process.wait(PATIENCE_S) == 1


def test_a_node_that_waits_for_others_ends_when_told(hosts: Hosts) -> None:
    alone = hosts.start("controller", 101)
    alone.says(r"is waiting for controllers \[102, 103\]")
    assert alone.end() == 0
    broker = hosts.start("broker", 1)
    broker.says("did not answer")
    assert broker.end() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["broker", "--id", "1"], "--dir"),
        (["broker", "--controllers", "1:2", "--listen", "x:1"], "is not ID@HOST:PORT"),
        (["broker", "--controllers", "1@a:2", "--listen", "x"], "is not an address"),
        (["broker", "--controllers", "1@a:2", "--listen", "0.0.0.0:1"], "--advertise"),
        (["broker", "--controllers", "1@a:2,1@b:2", "--listen", "a:1"], "the same id"),
        (
            ["broker", "--controllers", "9@a:2", "--listen", "a:1"],
            "id 9 is already the id of a controller",
        ),
        (["broker", "--controllers", "-1@a:2", "--listen", "a:1"], "is not an id"),
        (["broker", "--controllers", "1@a:2", "--listen", "no.invalid:1"], "cannot listen on"),
        (["controller", "--controllers", "1@a:2", "--listen", "a:1"], "not among"),
        (["broker", "--controllers", "1@a:2", "--listen", "a:1", "-X", "nope=1"], "nope"),
    ],
)
def test_what_cannot_be_understood_is_said(arguments: list[str], said: str, tmp_path: Path) -> None:
    complete = (
        [] if "--listen" not in arguments else ["--id", "9", "--dir", str(tmp_path), *CLUSTER]
    )
    node = Node(*arguments, *complete, log=tmp_path / "log")
    node.process.wait(PATIENCE_S)
    assert node.process.returncode != 0
    assert said in node.text


@pytest.mark.parametrize("command", ["broker", "controller"])
def test_a_folder_that_cannot_be_is_said_in_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = ["--id", "1" if command == "controller" else "2", "--dir", str(tmp_path / "file/x")]
    where = ["--listen", "127.0.0.1:0", "--controllers", "1@127.0.0.1:1", *CLUSTER]
    node = Node(command, *options, *where, log=tmp_path / "log")
    assert node.process.wait(PATIENCE_S) == 1
    assert "file/x: not a directory" in node.text
    assert "Traceback" not in node.text


def test_options_can_stand_in_a_file(hosts: Hosts) -> None:
    hosts.controllers()
    config = hosts.folder / "broker.properties"
    config.write_text(
        f"# A broker\nid=5\ndir={hosts.folder / 'five'}\nlisten=127.0.0.1:0\n"
        f"controllers={hosts.named[1]}\ncluster-id=east\nnum.partitions=7\n"
    )
    with ExitStack() as stack:
        node = Node("broker", "--config", str(config), log=hosts.folder / "five.log")
        stack.callback(node.kill)
        bootstrap = node.says(r"broker 5 listens on (\S+)").group(1)
        with admin_of(bootstrap) as admin:
            admin.create_topics([NewTopic("t", replication_factor=1)])["t"].result(PATIENCE_S)
            assert len(admin.list_topics("t", timeout=PATIENCE_S).topics["t"].partitions) == 7


def scrape_node(node: Node) -> set[tuple[str, str]]:
    """Names and first labels of the series of a broker; none if it does not answer."""
    url = node.says(r"metrics: (http://\S+)").group(1)
    try:
        with urllib.request.urlopen(url) as answer:  # noqa: S310 - a port of the node
            text = answer.read().decode()
    except OSError:
        return set()
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, sample.labels.get("broker", "")) for sample in samples}


def test_the_lowest_active_broker_exposes_the_series_of_the_cluster(hosts: Hosts) -> None:
    hosts.named = ("--controllers", hosts.named[1].split(",")[0])
    hosts.start("controller", 101, "-X", "broker.session.timeout.ms=3000").says("listens on")
    one, two = (hosts.start("broker", each, "--metrics-port", "0") for each in (1, 2))
    two.says("broker 2 listens")
    own, cluster_wide = ("shoal_broker_leaders", "2"), ("shoal_brokers_active", "")
    assert cluster_wide in scrape_node(one)
    assert own in scrape_node(two)
    assert cluster_wide not in scrape_node(two)
    one.kill()
    deadline = time.monotonic() + PATIENCE_S
    while cluster_wide not in scrape_node(two):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert two.end() == 0
