"""What Kafka Lite does not serve is named in the log of the broker, once for each client."""

import logging
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from shoal.lite.broker.unserved import MOST_REPORTS, UnservedReports
from shoal.lite.cluster import LiteCluster
from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import RequestFrame
from support.lite.clusters import create_topic, eventually


def broker_log(cluster: LiteCluster) -> str:
    return "\n".join(path.read_text(errors="replace") for path in cluster.directory.glob("*.log"))


def test_a_silent_consumer_is_named_in_the_log() -> None:
    with LiteCluster() as cluster:
        create_topic(cluster, "t", 1, 1)
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "g",
                "group.protocol": "consumer",
                "client.id": "modern",
            }
        )
        consumer.subscribe(["t"])

        def is_named() -> bool:
            consumer.poll(0.2)
            return "group.protocol=classic" in broker_log(cluster)

        try:
            assert eventually(is_named) >= 0
        finally:
            consumer.close()
        assert broker_log(cluster).count("client 'modern' at 127.0.0.1") == 1


def test_each_unserved_request_is_named_once_for_a_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    reports = UnservedReports()
    header = RequestFrame(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, 7, "java", 20)
    for _ in range(3):
        reports.report_request(header, "no version is")
    reports.report_request(header._replace(client_id="other"), "no version is")
    assert [record.getMessage() for record in caplog.records] == [
        f"client {name!r} asked for CONSUMER_GROUP_HEARTBEAT version 1, which is not served "
        "(no version is); its connection is closed"
        for name in ("java", "other")
    ]
    for number in range(2 * MOST_REPORTS):
        reports.report_request(header._replace(client_id=str(number)), "no version is")
    assert len(caplog.records) == MOST_REPORTS


@pytest.mark.parametrize(
    ("joins", "waits_s", "is_named"), [(False, 6, True), (False, 4, False), (True, 60, False)]
)
def test_who_looks_up_a_group_and_never_joins_is_named(
    caplog: pytest.LogCaptureFixture, joins: bool, waits_s: float, is_named: bool
) -> None:
    reports = UnservedReports()
    header = RequestFrame(ApiKey.FIND_COORDINATOR, 4, 7, "c", 20)
    for _ in range(2):
        reports.on_lookup(header, "/127.0.0.1", group="g", now_s=100.0)
        if joins:
            reports.on_group_request(header._replace(api_key=ApiKey.JOIN_GROUP), "/127.0.0.1")
        reports.report_silent_clients(100.0 + waits_s)
    named = [record.getMessage() for record in caplog.records]
    assert len(named) == is_named
    assert all("client 'c' at 127.0.0.1 looked up the coordinator of group 'g'" in n for n in named)


def test_a_broker_describes_what_it_is() -> None:
    with LiteCluster(properties={"log.segment.bytes": "1000000"}) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        resource = ConfigResource(ResourceType.BROKER, "1")
        found = admin.describe_configs([resource])[resource].result(timeout=60)
        values = {name: found[name].value for name in found}
        assert values["node.id"] == values["broker.id"] == "1"
        assert values["process.roles"] == "broker"
        assert values["listeners"] == f"PLAINTEXT://{cluster.bootstrap}"
        assert values["advertised.listeners"] == f"PLAINTEXT://{cluster.bootstrap}"
        assert Path(values["log.dirs"] or "").is_dir()
        assert values["log.segment.bytes"] == "1000000"
        for name in ("listeners", "node.id", "log.dirs"):
            assert found[name].source == 4, "STATIC_BROKER_CONFIG"
