"""The metrics of real clusters, read over HTTP while brokers are killed and restarted."""

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterable
from urllib.error import HTTPError

import pytest
from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from shoal.lite.cluster import LiteCluster
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.nodes.cluster_metrics import ClusterEndpoint
from shoal.telemetry.http_port import EndpointSpec
from shoal.telemetry.samples import Chunk, Families, one

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
PATIENCE_S = 120.0


def scrape(cluster: LiteCluster, path: str = "/metrics") -> Series:
    """All series of a page; a series that occurs twice is an error."""
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.metrics_port}{path}") as answer:
        text = answer.read().decode()
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(series: Series, name: str, **labels: str) -> float | None:
    return series.get((name, frozenset(labels.items())))


def scrape_until(
    cluster: LiteCluster, condition: Callable[[Series], object], path: str = "/metrics"
) -> Series:
    deadline = time.monotonic() + PATIENCE_S
    while not condition(found := scrape(cluster, path)):
        assert time.monotonic() < deadline, sorted(map(str, found.items()))
        time.sleep(0.05)
    return found


def produce(cluster: LiteCluster, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for _ in range(count):
        producer.produce(topic, b"x" * 100)
    assert producer.flush(PATIENCE_S) == 0


def consume_and_commit(cluster: LiteCluster, topic: str, count: int) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    read = 0
    deadline = time.monotonic() + PATIENCE_S
    while read < count and time.monotonic() < deadline:
        read += len(consumer.consume(count - read, 1.0))
    consumer.commit(asynchronous=False)
    consumer.close()
    assert read == count


@pytest.mark.parametrize("controllers", [None, 1], ids=["embedded", "quorum"])
def test_traffic_groups_kills_and_restarts(controllers: int | None) -> None:
    with LiteCluster(brokers=3, controllers=controllers, metrics=EndpointSpec(0)) as cluster:
        produce(cluster, "orders", 300)
        consume_and_commit(cluster, "orders", 120)
        found = scrape(cluster)
        at = {"topic": "orders", "partition": "0"}
        leader = f"{value(found, 'shoal_partition_leader', **at):.0f}"
        here = {"broker": leader, "topic": "orders"}
        assert value(found, "shoal_broker_records_in_total", **here) == 300
        assert (value(found, "shoal_broker_bytes_in_total", **here) or 0) > 300 * 100
        assert (value(found, "shoal_broker_bytes_out_total", **here) or 0) > 0
        assert value(found, "shoal_partition_high_watermark", **at) == 300
        assert value(found, "shoal_group_lag_records", group="readers", **at) == 180
        assert value(found, "shoal_brokers_active") == 3
        assert value(found, "shoal_offline_partitions") == 0
        assert (value(found, "shoal_controller_active") or 0) >= 100

        exporter = scrape(cluster, "/metrics/kafka-exporter")
        assert value(exporter, "kafka_consumergroup_lag", consumergroup="readers", **at) == 180
        strimzi = scrape(cluster, f"/metrics/strimzi?node={leader}")
        name = "kafka_server_brokertopicmetrics_messagesin_total"
        assert value(strimzi, name, **here) == 300

        cluster.kill(int(leader))
        found = scrape_until(
            cluster, lambda found: value(found, "shoal_under_replicated_partitions")
        )
        assert value(found, "shoal_broker_up", broker=leader) == 0
        assert not any(("broker", leader) in labels for name, labels in found if "bytes" in name)
        with pytest.raises(HTTPError, match="503"):
            scrape(cluster, "/readyz")

        cluster.restart(int(leader))
        found = scrape_until(
            cluster, lambda found: value(found, "shoal_under_replicated_partitions") == 0
        )
        assert value(found, "shoal_broker_up", broker=leader) == 1
        assert value(found, "shoal_group_lag_records", group="readers", **at) == 180


def test_a_killed_only_broker_leaves_offline_partitions() -> None:
    with LiteCluster(metrics=EndpointSpec(0)) as cluster:
        produce(cluster, "orders", 1)
        assert value(scrape(cluster), "shoal_offline_partitions") == 0
        cluster.kill(1)
        found = scrape_until(cluster, lambda found: value(found, "shoal_offline_partitions"))
        assert value(found, "shoal_broker_up", broker="1") == 0


class _Claimant:
    """A broker that believes to lead a partition and to coordinate a group."""

    def __init__(self, broker: int, high_watermark: int) -> None:
        at = ("orders", "0")
        self.chunks: list[Chunk] = [
            one("shoal_broker_leaders", 1, str(broker)),
            one("shoal_partition_high_watermark", high_watermark, *at),
            one("shoal_group_members", 1, "readers"),
            one("shoal_group_committed_offset", 5, "readers", *at),
            one("shoal_group_lag_records", high_watermark - 5, "readers", *at),
        ]

    async def collect(self, _what: str) -> Iterable[Chunk]:
        return self.chunks


@pytest.mark.parametrize("marks", [(10, 12), (12, 10)])
def test_no_series_occurs_twice_while_a_leader_changes(marks: tuple[int, int]) -> None:
    async def no_quorum() -> None:
        return None

    async def collect() -> Families:
        brokers = {n: _Claimant(n, mark) for n, mark in enumerate(marks, 1)}
        return await ClusterEndpoint(
            EndpointSpec(0), brokers=lambda: brokers, state=ClusterState, quorum=no_quorum
        ).collect()

    found = asyncio.run(collect())
    for name, samples in found.items():
        assert len({tuple(labels) for labels, _ in samples}) == len(samples), name
    assert found["shoal_partition_high_watermark"] == [(("orders", "0"), 12)]
    assert found["shoal_group_lag_records"] == [(("readers", "orders", "0"), 7)]
    assert len(found["shoal_broker_leaders"]) == 2


def test_a_bad_node_is_refused() -> None:
    with (
        LiteCluster(metrics=EndpointSpec(0)) as cluster,
        pytest.raises(HTTPError, match="400"),
    ):
        scrape(cluster, "/metrics/strimzi?node=../etc")


def test_without_the_option_no_port_is_open() -> None:
    with LiteCluster() as cluster:
        assert cluster.metrics_port == 0
