"""Apache Kafka's own command-line tools, unchanged."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.systems.clusters import Cluster
from support.apache.kafka_tools import KafkaTools
from support.lite.clusters import eventually

NewName = Callable[[str], str]


@pytest.fixture
def server(bootstrap: str) -> tuple[str, str]:
    return ("--bootstrap-server", bootstrap)


def test_topics(kafka_tools: KafkaTools, server: tuple[str, str], new_name: NewName) -> None:
    topic = new_name("topics")
    named = (*server, "--topic", topic)
    made = kafka_tools(
        "topics", *named, "--create", "--partitions", "2", "--config", "retention.ms=123456"
    )
    assert f"Created topic {topic}." in made
    assert topic in kafka_tools("topics", *server, "--list").split()
    told = kafka_tools("topics", *named, "--describe")
    assert "PartitionCount: 2\tReplicationFactor: 1" in told
    assert "retention.ms=123456" in told
    assert f"Topic: {topic}\tPartition: 1\tLeader: 1\tReplicas: 1\tIsr: 1" in told
    again = kafka_tools.run("topics", *named, "--create")
    assert again.code != 0
    assert "already exists" in again.text
    kafka_tools("topics", *named, "--alter", "--partitions", "3")
    assert "PartitionCount: 3" in kafka_tools("topics", *named, "--describe")
    fewer = kafka_tools.run("topics", *named, "--alter", "--partitions", "1")
    assert fewer.code != 0
    kafka_tools("topics", *named, "--delete")
    eventually(lambda: topic not in kafka_tools("topics", *server, "--list").split())


def test_a_console_producer_and_consumer(
    kafka_tools: KafkaTools, bootstrap: str, server: tuple[str, str], topic: str
) -> None:
    lines = [f"k{number}:value {number}" for number in range(50)]
    kafka_tools(
        "console-producer",
        *server,
        "--topic",
        topic,
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "key.separator=:",
        stdin="\n".join([*lines, ""]).encode(),
    )
    said = kafka_tools(
        "console-consumer",
        *server,
        "--topic",
        topic,
        "--partition",
        "0",
        "--offset",
        "earliest",
        "--max-messages",
        "50",
        "--formatter-property",
        "print.key=true",
        "--formatter-property",
        "key.separator=:",
    )
    assert [line for line in said.splitlines() if line.startswith("k")] == lines


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_performance_tools(
    kafka_tools: KafkaTools, bootstrap: str, server: tuple[str, str], topic: str, codec: str
) -> None:
    produced = kafka_tools(
        "producer-perf-test",
        "--topic",
        topic,
        "--num-records",
        "500",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--producer-props",
        f"bootstrap.servers={bootstrap}",
        f"compression.type={codec}",
    )
    assert "500 records sent" in produced
    offsets = kafka_tools("get-offsets", *server, "--topic", topic)
    assert f"{topic}:0:500" in offsets.splitlines()
    consumed = kafka_tools(
        "consumer-perf-test", *server, "--topic", topic, "--num-records", "500", "--hide-header"
    )
    # Start, end, MB, MB/s, records, records/s, and times of rebalance and fetch.
    assert consumed.splitlines()[-1].split(", ")[4] == "500"


def test_a_verifiable_producer_and_consumer(
    kafka_tools: KafkaTools, server: tuple[str, str], topic: str, new_name: NewName
) -> None:
    said = kafka_tools.alone(
        "verifiable-producer", *server, "--topic", topic, "--max-messages", "100", "--acks", "-1"
    )
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert sum(event["name"] == "producer_send_success" for event in events) == 100
    assert [event["acked"] for event in events if event["name"] == "tool_data"] == [100]
    group = ("--group-id", new_name("group"), "--reset-policy", "earliest")
    said = kafka_tools.alone(
        "verifiable-consumer", *server, "--topic", topic, *group, "--max-messages", "100"
    )
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    consumed = [event["count"] for event in events if event["name"] == "records_consumed"]
    assert sum(consumed) == 100
    committed = [event for event in events if event["name"] == "offsets_committed"]
    assert committed
    assert all(event["success"] for event in committed)


def test_configs(kafka_tools: KafkaTools, server: tuple[str, str], topic: str) -> None:
    owner = (*server, "--entity-type", "topics", "--entity-name", topic)
    kafka_tools("configs", *owner, "--alter", "--add-config", "retention.ms=5000,flush.ms=7")
    told = kafka_tools("configs", *owner, "--describe")
    assert "retention.ms=5000" in told
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=5000" in told
    kafka_tools("configs", *owner, "--alter", "--delete-config", "retention.ms")
    told = kafka_tools("configs", *owner, "--describe")
    assert "retention.ms=5000" not in told
    assert "flush.ms=7" in told
    assert "min.insync.replicas=1" in kafka_tools("configs", *owner, "--describe", "--all")
    broker = (*server, "--entity-type", "brokers", "--entity-name", "1")
    kafka_tools("configs", *broker, "--alter", "--add-config", "log.cleaner.backoff.ms=1234")
    told = kafka_tools("configs", *broker, "--describe")
    assert "DYNAMIC_BROKER_CONFIG:log.cleaner.backoff.ms=1234" in told
    kafka_tools("configs", *broker, "--alter", "--delete-config", "log.cleaner.backoff.ms")
    refused = kafka_tools.run("configs", *broker, "--alter", "--add-config", "num.partitions=2")
    assert refused.code != 0
    assert "Cannot update these configs dynamically" in refused.text
    kafka_tools("configs", *server, "--entity-type", "users", "--describe")


def test_records_are_deleted(
    kafka_tools: KafkaTools,
    bootstrap: str,
    server: tuple[str, str],
    topic: str,
    tmp_path: Path,
) -> None:
    lines = "".join(f"{number}\n" for number in range(20)).encode()
    kafka_tools("console-producer", *server, "--topic", topic, stdin=lines)
    plan = tmp_path / "offsets.json"
    wish = {"topic": topic, "partition": 0, "offset": 12}
    plan.write_text(json.dumps({"partitions": [wish], "version": 1}))
    told = kafka_tools("delete-records", *server, "--offset-json-file", str(plan))
    assert f"partition: {topic}-0\tlow_watermark: 12" in told

    def first(when: str) -> str:
        return kafka_tools("get-offsets", *server, "--topic", topic, "--time", when).strip()

    assert first("earliest").splitlines()[-1] == f"{topic}:0:12"
    assert first("latest").splitlines()[-1] == f"{topic}:0:20"
    assert first("-3").splitlines()[-1].startswith(f"{topic}:0:")
    assert first("-4").splitlines()[-1] == f"{topic}:0:12"


def test_what_there_is(
    kafka_tools: KafkaTools, cluster: Cluster, server: tuple[str, str], topic: str
) -> None:
    told = kafka_tools("log-dirs", *server, "--describe", "--topic-list", topic)
    described = json.loads(next(line for line in told.splitlines() if line.startswith("{")))
    [broker] = described["brokers"]
    [folder] = broker["logDirs"]
    assert [one["partition"] for one in folder["partitions"]] == [f"{topic}-0"]
    versions = kafka_tools("broker-api-versions", *server)
    assert re.search(r"Produce\(0\): 0 to \d+ \[usable: \d+\]", versions)
    assert re.search(r"Fetch\(1\): 4 to \d+ \[usable: \d+\]", versions)
    features = kafka_tools("features", *server, "describe")
    assert "SupportedMinVersion" in features or not features.strip()
    identity = kafka_tools("cluster", "cluster-id", *server)
    assert re.search(r"Cluster ID: [\w-]{22}", identity)
    kafka_tools("client-metrics", *server, "--list")


def test_leaders_are_elected_and_partitions_reassigned(
    kafka_tools: KafkaTools, trio: Cluster, new_name: NewName, tmp_path: Path
) -> None:
    server = ("--bootstrap-server", trio.bootstrap)
    topic = new_name("moved")
    named = (*server, "--topic", topic)
    kafka_tools("topics", *named, "--create", "--replica-assignment", "1:2")

    def leads() -> str:
        told = kafka_tools("topics", *named, "--describe")
        found = re.search(r"Partition: 0\tLeader: (\S+)\tReplicas: (\S+)\tIsr: (\S+)", told)
        assert found is not None, told
        return f"{found[1]} of {found[2]}"

    assert leads() == "1 of 1,2"
    plan = tmp_path / "plan.json"
    wish = {"topic": topic, "partition": 0, "replicas": [3, 1]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wish]}))
    moving = (*server, "--reassignment-json-file", str(plan))
    kafka_tools("reassign-partitions", *moving, "--execute")
    eventually(
        lambda: "is completed" in kafka_tools("reassign-partitions", *moving, "--verify"), 60
    )
    assert "No partition reassignments found" in kafka_tools(
        "reassign-partitions", *server, "--list"
    )
    election = (*server, "--election-type", "preferred", "--topic", topic, "--partition", "0")
    kafka_tools("leader-election", *election)
    assert leads() == "3 of 3,1"
    needless = kafka_tools("leader-election", *election)
    assert "Valid replica already elected" in needless
