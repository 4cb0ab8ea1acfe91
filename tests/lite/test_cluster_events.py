"""The event stream of a cluster: states of its nodes and partitions, faults, counters."""

from pathlib import Path

from shoal.lite.cluster import LiteCluster
from shoal.lite.nodes.cluster_events import describe
from support.cluster_streams import last_states, last_tick, read_events
from support.lite.clusters import create_topic, eventually, send


def test_a_cluster_writes_what_happens_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    with LiteCluster(brokers=3, name="seen", events=folder) as cluster:
        create_topic(cluster, "orders", partitions=1, factor=3)
        send(cluster, "orders", b"a", b"b")
        eventually(lambda: last_states(folder)["partition orders-0"]["details"]["leader"] == 1)
        eventually(lambda: last_tick(folder)["counters"].get("records_in") == 2)
        names = {each["name"] for each in last_tick(folder)["processes"]}
        assert names == {"broker 1", "broker 2", "broker 3", "controller 100"}
        cluster.kill(1)
        eventually(lambda: last_states(folder)["broker 1"]["state"] == "dead")
        eventually(lambda: last_states(folder)["partition orders-0"]["details"]["leader"] in (2, 3))
        elected = last_states(folder)["partition orders-0"]
        assert elected["state"] == f"led by broker {elected['details']['leader']}"
        assert elected["details"]["epoch"] == 1
        cluster.restart(1)
        eventually(lambda: last_states(folder)["broker 1"]["state"] == "in sync")
        # The counters of the broker that was killed go on.
        eventually(lambda: last_tick(folder)["counters"].get("records_in") == 2)
        cluster.pause(2)
        eventually(lambda: last_states(folder)["broker 2"]["state"] == "paused")
        cluster.resume(2)
        cluster.cut_link(1, 3)
        eventually(lambda: count_faults(folder, "begin") == 2)
        cluster.heal()
        eventually(lambda: count_faults(folder, "end") == 2)
    meta, *_, end = read_events(folder)
    assert (meta["subject"], meta["name"]) == ("cluster", "seen")
    assert meta["details"]["engine"] == "lite"
    assert end["kind"] == "end"


def count_faults(folder: Path, phase: str) -> int:
    events = read_events(folder)
    return sum(each["kind"] == "fault" and each["phase"] == phase for each in events)


def test_controllers_and_new_brokers_are_seen(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with LiteCluster(brokers=1, controllers=3, directory=folder) as cluster:
        eventually(lambda: "active" in states_of(folder, "controller"))
        assert states_of(folder, "controller").count("follows") == 2
        cluster.add()
        eventually(lambda: "broker 2" in last_states(folder))
        cluster.remove(2)
        eventually(lambda: last_states(folder)["broker 2"]["state"] == "removed")


def states_of(folder: Path, role: str) -> list[str]:
    return [each["state"] for name, each in last_states(folder).items() if name.startswith(role)]


def test_faults_are_described_in_words() -> None:
    link = {"kind": "link", "source": 1, "target": 2, "is_cut": False}
    assert describe({**link, "delay_ms": 5, "bytes_per_s": 10}) == (
        "link from 1 to 2 delayed by 5 ms, limited to 10 B/s"
    )
    assert describe({"kind": "disk", "node": 3, "writes": "EIO", "reads": None}) == (
        "disk of node 3: writes EIO"
    )
