"""Clients of a real cluster behind the proxy: librdkafka and our own client as judges."""

import time
from collections.abc import Iterator

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from shoal.experiment.faults.fault_targets import ClusterAdmin, LiteNodeLinks
from shoal.faults.network import ProxyNetwork, refuse_encrypted_clients
from shoal.faults.zones import Zones
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import ConfigError
from shoal.net.link_faults import LinkEffect
from support.lite.clusters import create_topic, eventually, in_sync, partition_of, send

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=3, properties={"replica.lag.time.max.ms": "2000"}) as running:
        yield running


@pytest.fixture
def network() -> Iterator[ProxyNetwork]:
    zones = Zones(("a", "b"), {"producers": "a", "source/1": "a", "source": "b"})
    with ProxyNetwork(zones) as running:
        yield running


def brokers_seen(bootstrap: str) -> set[str]:
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        seen = admin.list_topics(timeout=PATIENCE_S).brokers.values()
        return {f"{broker.host}:{broker.port}" for broker in seen}


def count_delivered(bootstrap: str, topic: str, count: int, **settings: object) -> int:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 1, **settings}
    )
    outcomes: list[object] = []
    for number in range(count):
        producer.produce(
            topic, str(number).encode(), on_delivery=lambda error, _m: outcomes.append(error)
        )
    producer.flush(PATIENCE_S)
    return sum(error is None for error in outcomes)


def test_librdkafka_stays_on_the_proxy(cluster: LiteCluster, network: ProxyNetwork) -> None:
    create_topic(cluster, "through", 6, 3)
    bootstrap = network.add_client(["producer-1", "producers"], "source", cluster.bootstrap)
    direct = set(cluster.bootstrap.split(","))
    seen = brokers_seen(bootstrap)
    assert len(seen) == 3
    assert not seen & direct
    assert brokers_seen(bootstrap) == seen, "addresses must not change from answer to answer"
    assert count_delivered(bootstrap, "through", 500) == 500
    consumer = Consumer(
        {
            "bootstrap.servers": network.add_client(["consumers"], "source", cluster.bootstrap),
            "group.id": "through-the-proxy",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(["through"])
    values: set[bytes] = set()

    def all_there() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.add(message.value() or b"")
        return len(values) == 500

    eventually(all_there, PATIENCE_S)
    consumer.close()


def test_a_cut_concerns_those_it_names(cluster: LiteCluster, network: ProxyNetwork) -> None:
    create_topic(cluster, "cut", 1, 3)
    leader = partition_of(cluster, "cut").leader
    cut_off = network.add_client(["producer-1", "producers"], "source", cluster.bootstrap)
    free = network.add_client(["producer-2"], "source", cluster.bootstrap)
    assert count_delivered(cut_off, "cut", 1) == 1
    numbers = network.add_fault(["producers"], [f"source/{leader}"], LinkEffect(is_cut=True))
    assert count_delivered(cut_off, "cut", 1, **{"message.timeout.ms": 1500}) == 0
    assert count_delivered(free, "cut", 1) == 1
    network.remove_faults(numbers)
    assert count_delivered(cut_off, "cut", 1) == 1
    network.add_fault(["zone/a"], ["zone/b"], LinkEffect(is_cut=True))
    network.add_fault(["zone/a"], ["zone/a"], LinkEffect(is_cut=True))
    assert count_delivered(cut_off, "cut", 1, **{"message.timeout.ms": 1500}) == 0


def test_nodes_of_kafka_lite_mind_their_links(cluster: LiteCluster, network: ProxyNetwork) -> None:
    create_topic(cluster, "links", 1, 3, min_insync_replicas="1")
    leader, followers = ClusterAdmin({"bootstrap.servers": cluster.bootstrap}).replicas("links")
    network.attach_nodes("source", LiteNodeLinks(cluster))
    eventually(lambda: in_sync(cluster, "links") == {1, 2, 3}, PATIENCE_S)
    names = [f"source/{node}" for node in followers]
    numbers = network.add_fault(names, [f"source/{leader}"], LinkEffect(is_cut=True))
    eventually(lambda: count_delivered(cluster.bootstrap, "links", 1) == 1, PATIENCE_S)
    eventually(lambda: in_sync(cluster, "links") == {leader}, PATIENCE_S)
    network.remove_faults(numbers)
    eventually(lambda: in_sync(cluster, "links") == {1, 2, 3}, PATIENCE_S)
    assert cluster.faults() == []


def test_a_narrow_link_between_nodes_slows_what_waits_for_all(
    cluster: LiteCluster, network: ProxyNetwork
) -> None:
    create_topic(cluster, "narrow", 1, 3)
    leader, followers = ClusterAdmin({"bootstrap.servers": cluster.bootstrap}).replicas("narrow")
    network.attach_nodes("source", LiteNodeLinks(cluster))
    assert send(cluster, "narrow", b"small") == [None]
    ends = [f"source/{leader}"], [f"source/{followers[0]}"]
    numbers = network.add_fault(*ends, LinkEffect(bytes_per_s=50_000))
    numbers += network.add_fault(*ends, LinkEffect(bytes_per_s=1e9, delay_ms=1))
    assert [fault["bytes_per_s"] for fault in cluster.faults()] == [50_000]
    began = time.monotonic()
    assert send(cluster, "narrow", b"x" * 50_000, message_timeout_ms=60_000) == [None]
    assert time.monotonic() - began >= 1.0
    network.remove_faults(numbers)
    assert cluster.faults() == []


def test_nodes_of_kafka_lite_connect_again_after_a_reset(
    cluster: LiteCluster, network: ProxyNetwork
) -> None:
    create_topic(cluster, "reset", 1, 3)
    leader, followers = ClusterAdmin({"bootstrap.servers": cluster.bootstrap}).replicas("reset")
    network.attach_nodes("source", LiteNodeLinks(cluster))
    nodes = {node.id: node for node in cluster.nodes()}

    def connections(follower: int) -> set[int]:
        """The follower's ports of its connections to the leader."""
        return {
            one.laddr.port
            for one in psutil.Process(nodes[follower].pid).net_connections("tcp")
            if one.status == psutil.CONN_ESTABLISHED and one.raddr.port == nodes[leader].port
        }

    eventually(lambda: all(connections(follower) for follower in followers), PATIENCE_S)
    hit = followers[0]
    before = connections(hit)
    network.reset([f"source/{leader}"], [f"source/{hit}"])
    eventually(lambda: bool(connections(hit)) and not connections(hit) & before, PATIENCE_S)
    assert send(cluster, "reset", b"goes on") == [None]


def test_zones_are_apart_between_nodes_too(cluster: LiteCluster) -> None:
    zones = Zones(("a", "b"), {"source/1": "a", "source/2": "b"}, {("a", "b"): 30.0})
    with ProxyNetwork(zones) as network:
        network.attach_nodes("source", LiteNodeLinks(cluster))
        assert len(cluster.faults()) == 1
    cluster.heal()


def test_links_of_encrypted_clients_are_refused() -> None:
    refuse_encrypted_clients("source", {})
    refuse_encrypted_clients("source", {"security.protocol": "sasl_plaintext"})
    with pytest.raises(ConfigError, match="SASL_SSL"):
        refuse_encrypted_clients("target", {"security.protocol": "SASL_SSL"})
