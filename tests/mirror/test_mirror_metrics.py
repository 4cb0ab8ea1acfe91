"""The metrics of a mirror: what a flow exposes, its latencies, and a real mirror over HTTP."""

import asyncio
import re
import signal
import subprocess
import sys
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from shoal.lite.cluster import LiteCluster
from shoal.mirror.copy.delivery.choice import Chosen
from shoal.mirror.copy.intake import Counts
from shoal.mirror.metrics import collect_flow, collect_latencies
from shoal.mirror.routes import Route
from shoal.mirror.run.latencies import MirrorLatencies
from shoal.mirror.status import MirrorStatus, PartitionStatus
from shoal.model.topics import TopicPartition
from shoal.telemetry.definitions import METRICS
from shoal.telemetry.dialects.strimzi_mirrors import make_strimzi_mirrors
from shoal.telemetry.samples import Families, merge
from support.mirror.copies import fill, make_topic

PATIENCE_S = 120.0
_ROUTE = Route(TopicPartition("a", 0), TopicPartition("b", 0))


def _status() -> MirrorStatus:
    return MirrorStatus(
        Counts(batches=2, records=20, bytes=300, lost=4, split=1, trimmed=2),
        {},
        -1,
        (),
        deliveries={"a": Chosen("idempotent", None)},
        partitions=(
            PartitionStatus(_ROUTE, 20, 25, 5, 75, 1.5),
            PartitionStatus(_ROUTE, -1, -1, -1, -1, -1.0, waiting="no leader"),
        ),
    )


def _scrape(url: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - a port of the mirror
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_status_becomes_series_and_what_is_unknown_is_left_out() -> None:
    found = merge({}, collect_flow("m", _status()))
    assert set(found) <= set(METRICS)
    assert found["shoal_mirror_records_total"] == [(("m",), 20)]
    assert found["shoal_mirror_re_encoded_batches_total"] == [(("m",), 3)]
    assert found["shoal_mirror_lost_offsets_total"] == [(("m",), 4)]
    assert found["shoal_mirror_lag_records"] == [(("m", "a", "0"), 5)]
    assert found["shoal_mirror_waiting_partitions"] == [(("m",), 1)]


def test_latencies_are_counted_by_partition_and_in_a_histogram() -> None:
    latencies = MirrorLatencies(lambda: 10_000)
    for timestamp_ms in (9_000, 9_500, 11_000, -1):  # the clock of a producer may be ahead
        latencies.on_copied(_ROUTE.source, timestamp_ms)
    latencies.on_fetched(_ROUTE.source, 9_990)
    families: Families = merge({}, collect_latencies("m", latencies))
    assert sum(latencies.histogram.counts) == 3
    values = {
        labels[3]: value
        for labels, value in families["shoal_mirror_partition_replication_latency_seconds"]
    }
    assert values == {"last": 0.0, "avg": 0.5, "min": 0.0, "max": 1.0}
    spoken = merge({}, make_strimzi_mirrors().translate(families, ""))
    prefix = "kafka_connect_mirror_mirrorsourceconnector"
    assert spoken[f"{prefix}_replication_latency_ms_max"] == [(("m", "a", "0"), 1000.0)]
    assert spoken[f"{prefix}_record_age_ms"] == [(("m", "a", "0"), 10.0)]
    latencies.forget(_ROUTE.source)
    assert not latencies.replication


def test_a_running_mirror_is_scraped(source: LiteCluster, target: LiteCluster) -> None:
    topic = "metrics-of-a-mirror"
    asyncio.run(make_topic(source.bootstrap, topic, 2))
    fill(source.bootstrap, topic, range(500), partitions=2)
    command = [
        sys.executable, "-m", "shoal", "mirror", "run", "--topics", topic, "--name", "m",
        "--source-bootstrap-server", source.bootstrap,
        "--target-bootstrap-server", target.bootstrap,
        "--metrics-port", "0",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as mirror:
        try:
            assert mirror.stderr is not None
            lines = iter(mirror.stderr)
            url = next(filter(None, (re.search(r"http://\S+", line) for line in lines))).group()
            key = ("shoal_mirror_records_total", frozenset({("mirror", "m")}))
            deadline = time.monotonic() + PATIENCE_S
            while (found := _scrape(url)).get(key) != 500:
                assert time.monotonic() < deadline, found
                time.sleep(0.1)
            place = frozenset({("mirror", "m"), ("topic", topic), ("partition", "1")})
            assert found["shoal_mirror_lag_records", place] == 0
            count = "shoal_mirror_replication_latency_seconds_count"
            assert found[count, frozenset({("mirror", "m")})] > 0
            strimzi = _scrape(f"{url}/strimzi")
            assert strimzi["kafka_connect_worker_connector_count", frozenset()] == 1
        finally:
            mirror.send_signal(signal.SIGTERM)
            mirror.communicate(timeout=PATIENCE_S)
    assert mirror.returncode == 0
