"""Real Apache Kafka under our hands: started, paused, killed, restarted, gone without a trace."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer

from shoal.model.errors import ConfigError, SystemFailure, UsageError
from shoal.runtime.processes import ProcessIdentity
from shoal.systems.apache.apache import ApacheCluster
from shoal.systems.apache.cluster_file import ClusterFile
from shoal.systems.apache.files import NodePlan, server_properties, zookeeper_properties
from shoal.systems.clusters import make_cluster
from shoal.systems.probe import ClusterView, ask_metadata
from support.apache.clusters import PROPERTIES, short_lived_jvm
from support.lite.clusters import eventually

# A killed broker may come back only when its session has expired: 9 s by default.
SHORT_SESSION = PROPERTIES | {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
}


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 60_000})
    failures: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(60) == 0
    assert failures == [None]


def consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, timeout=60)
        return [message.value() for message in messages]
    finally:
        consumer.close()


def view_of(cluster: ApacheCluster, node_id: int = 1) -> ClusterView | None:
    node = next(node for node in cluster.nodes() if node.id == node_id)
    return ask_metadata(node.host, node.port, timeout_s=0.5)


@pytest.fixture(autouse=True)
def fast_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    short_lived_jvm(monkeypatch)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that only the test uses, in processes that it starts too."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_shared_broker_keeps_messages(apache_cluster: ApacheCluster) -> None:
    eventually(lambda: view_of(apache_cluster) == ClusterView(frozenset({1}), 1))
    produce(apache_cluster.bootstrap, "kept", b"a message")
    assert consume(apache_cluster.bootstrap, "kept", 1) == [b"a message"]
    assert (apache_cluster.log_dirs()[1] / "kept-0").is_dir()


@pytest.mark.apache
def test_a_broker_is_paused_killed_and_restarted(tmp_path: Path, temporary: Path) -> None:
    directory = tmp_path / "kept"
    with ApacheCluster(directory=directory, properties=SHORT_SESSION) as cluster:
        (node,) = cluster.nodes()
        produce(cluster.bootstrap, "lasting", b"first")
        cluster.pause(1)
        assert view_of(cluster) is None
        assert cluster.nodes() == [node]
        cluster.resume(1)
        eventually(lambda: view_of(cluster) is not None)
        cluster.kill(1)
        assert cluster.nodes()[0].pid == 0
        assert view_of(cluster) is None
        with pytest.raises(SystemFailure, match="is not running: killed by signal 9"):
            cluster.resume(1)
        cluster.restart(1)
        (again,) = cluster.nodes()
        assert (again.port, again.pid != node.pid) == (node.port, True)
        produce(cluster.bootstrap, "lasting", b"second")
        with pytest.raises(UsageError, match="has no node 2"):
            cluster.kill(2)
        cluster.pause(1)  # a paused node can be stopped, too
    cluster.stop()
    assert consume_after_moving(directory, node.port) == [b"first", b"second"]
    assert list(temporary.iterdir()) == []


def consume_after_moving(directory: Path, old_port: int) -> list[bytes | None]:
    """Starts the cluster of a folder again while someone else sits on its old port."""
    with (
        socket.create_server(("127.0.0.1", old_port)),
        ApacheCluster(directory=directory, properties=SHORT_SESSION) as cluster,
    ):
        assert cluster.nodes()[0].port != old_port
        with pytest.raises(SystemFailure, match="another cluster is running in"):
            ApacheCluster(directory=directory).start()
        with pytest.raises(UsageError, match="is already started"):
            cluster.start()
        return consume(cluster.bootstrap, "lasting", 2)


@pytest.mark.apache
@pytest.mark.slow
@pytest.mark.long
def test_three_brokers_survive_one(temporary: Path) -> None:
    with make_cluster("apache", brokers=3, properties=SHORT_SESSION) as cluster:
        assert isinstance(cluster, ApacheCluster)
        eventually(lambda: all(view_of(cluster, n) is not None for n in (1, 2, 3)))
        cluster.kill(2)
        deadline = time.monotonic() + 120
        while (view := view_of(cluster, 1)) is None or 2 in view.broker_ids:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert view.broker_ids == {1, 3}
        produce(cluster.bootstrap, "survives", b"still here")
        assert [node.pid > 0 for node in cluster.nodes()] == [True, False, True]
        assert len(list(temporary.iterdir())) == 1
    assert list(temporary.iterdir()) == []


@pytest.mark.apache
@pytest.mark.slow
@pytest.mark.long
def test_a_broker_with_zookeeper_is_killed_and_comes_back(temporary: Path) -> None:
    # A killed broker may come back only when ZooKeeper has given its session up.
    properties = PROPERTIES | {"zookeeper.session.timeout.ms": "2000"}
    with ApacheCluster(version="2.8.1", properties=properties) as cluster:
        (node,) = cluster.nodes()
        produce(cluster.bootstrap, "older", b"first")
        cluster.kill(1)
        assert view_of(cluster) is None
        cluster.restart(1)
        (again,) = cluster.nodes()
        assert (again.port, again.pid != node.pid) == (node.port, True)
        produce(cluster.bootstrap, "older", b"second")
        assert consume(cluster.bootstrap, "older", 2) == [b"first", b"second"]
        assert (cluster.log_dirs()[1] / "older-0").is_dir()
    assert list(temporary.iterdir()) == []


@pytest.mark.apache
def test_nothing_is_left_of_a_killed_owner(temporary: Path) -> None:
    code = (
        "import time; from shoal.systems.apache.apache import ApacheCluster as A\n"
        "cluster = A(); cluster.start()\n"
        "print(cluster.nodes()[0].pid, flush=True); time.sleep(1000)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        broker = ProcessIdentity.of(int(owner.stdout.readline()))
        assert broker is not None
        guardian = psutil.Process(broker.pid).parent()
        assert guardian is not None
        os.kill(owner.pid, signal.SIGKILL)
    assert broker.wait_until_ended(60)
    guardian.wait(100)
    assert list(temporary.iterdir()) == []


@pytest.mark.apache
def test_a_broker_that_refuses_to_start_is_explained(temporary: Path) -> None:
    cluster = ApacheCluster(properties={"num.partitions": "many"})
    with pytest.raises(SystemFailure, match=r"exited while starting .*num\.partitions"):
        cluster.start()
    assert [node.pid for node in cluster.nodes()] == [0]
    assert list(temporary.iterdir()) == []


def test_properties_of_addresses_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot set the property listeners") as refusal:
        make_cluster("apache", properties={"listeners": "PLAINTEXT://:9092"})
    assert refusal.value.remedy == "leave listeners out"


def test_a_folder_of_another_size_is_refused(tmp_path: Path) -> None:
    ClusterFile("4.3.0", "x", [[20001, 20002]]).write(tmp_path)
    cluster = ApacheCluster(brokers=3, directory=tmp_path)
    cluster._directory = tmp_path
    with pytest.raises(ConfigError, match="holds a cluster of 1 brokers, not 3"):
        cluster._load_or_plan()


@pytest.mark.parametrize(
    ("engine", "brokers", "complaint"),
    [("pulsar", 1, "unknown cluster engine 'pulsar'"), ("apache", 0, "cannot have 0 brokers")],
)
def test_what_cannot_be_made_is_refused(engine: str, brokers: int, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        make_cluster(engine, brokers=brokers)


def test_racks_are_dealt_out_in_turn(tmp_path: Path) -> None:
    plan = [NodePlan(n, tmp_path / str(n), n, 2, 3, n, 3, 2) for n in (1, 2, 3, 4)]
    wished = {"broker.rack": "a,b,c"}
    racks = [server_properties(one, plan, wished, version="4.3.1")["broker.rack"] for one in plan]
    assert racks == ["a", "b", "c", "a"]
    assert "broker.rack" not in server_properties(plan[0], plan, {}, version="4.3.1")


def test_what_is_advertised_may_be_another_port(tmp_path: Path) -> None:
    node = NodePlan(1, tmp_path, 11, 12, 13, 21, 23, 12)
    for properties in (
        server_properties(node, [node], {}, version="3.9.2"),
        zookeeper_properties(node, [node], {}, connect="127.0.0.1:5"),
    ):
        assert "CLIENTS://127.0.0.1:11,BROKERS://127.0.0.1:13" in properties["listeners"]
        expected = "CLIENTS://127.0.0.1:21,BROKERS://127.0.0.1:23"
        assert properties["advertised.listeners"] == expected
