"""Links between brokers of a real Apache Kafka: cut, noticed by its controllers, and healed."""

from collections.abc import Iterator

import pytest

from shoal.experiment.faults.fault_injection import prepare_environment
from shoal.experiment.spec import ClusterSpec, ExperimentSpec, ProducersSpec, TopicsSpec
from shoal.faults.network import ProxyNetwork
from shoal.faults.zones import Zones
from shoal.net.link_faults import LinkEffect
from shoal.systems.clusters import Cluster
from shoal.systems.probe import ask_metadata
from support.apache.clusters import PROPERTIES, short_lived_jvm
from support.lite.clusters import eventually

PATIENCE_S = 90.0
SETTINGS = PROPERTIES | {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, ProxyNetwork]]:
    short_lived_jvm(monkeypatch)
    spec = ExperimentSpec(
        "links",
        TopicsSpec("links"),
        ProducersSpec(1, {"messages": 1, "rate_per_s": 1.0}),
        source=ClusterSpec("apache", brokers=3, properties=SETTINGS),
        zones=Zones(("a", "b"), {"source/3": "a", "source": "b"}),
    )
    with prepare_environment(spec) as made:
        assert made.network is not None
        yield made.running.clusters["source"], made.network


@pytest.mark.apache
@pytest.mark.slow
@pytest.mark.long
def test_a_zone_that_is_cut_off_is_fenced_and_comes_back(
    ground: tuple[Cluster, ProxyNetwork],
) -> None:
    cluster, network = ground
    nodes = {node.id: node for node in cluster.nodes()}

    def seen_by(node_id: int) -> frozenset[int]:
        view = ask_metadata(nodes[node_id].host, nodes[node_id].port)
        return view.broker_ids if view else frozenset()

    eventually(lambda: seen_by(1) == {1, 2, 3}, PATIENCE_S)
    assert cluster.bootstrap.count(",") == 2
    numbers = [
        *network.add_fault(["zone/a"], ["zone/b"], LinkEffect(is_cut=True)),
        *network.add_fault(["zone/b"], ["zone/a"], LinkEffect(is_cut=True)),
    ]
    eventually(lambda: seen_by(1) == {1, 2} and seen_by(2) == {1, 2}, PATIENCE_S)
    network.remove_faults(numbers)
    eventually(lambda: all(seen_by(node_id) == {1, 2, 3} for node_id in nodes), PATIENCE_S)
