"""Dialects: native families by other names, cluster-wide series once."""

from shoal.telemetry.dialects.dialect import Rates
from shoal.telemetry.dialects.kafka_exporter import KAFKA_EXPORTER
from shoal.telemetry.dialects.strimzi import make_strimzi
from shoal.telemetry.samples import Families, merge

_NATIVE: Families = {
    "shoal_broker_up": [(("1",), 0), (("2",), 1), (("10",), 1)],
    "shoal_brokers_active": [((), 2)],
    "shoal_offline_partitions": [((), 4)],
    "shoal_controller_active": [((), 100)],
    "shoal_controller_epoch": [((), 3)],
    "shoal_broker_leaders": [(("2",), 5), (("10",), 6)],
    "shoal_broker_bytes_in_total": [(("2", "a"), 7), (("10", "a"), 8)],
    "shoal_broker_metadata_offset": [(("2",), 50), (("10",), 51)],
    "shoal_partition_leader": [(("a", "0"), 2), (("a", "1"), 10), (("a", "2"), -1)],
    "shoal_partition_replicas": [(("a", "0"), 3), (("a", "1"), 3), (("a", "2"), 3)],
    "shoal_partition_in_sync_replicas": [(("a", "0"), 2), (("a", "1"), 3), (("a", "2"), 1)],
    "shoal_partition_min_isr": [(("a", "0"), 2), (("a", "1"), 2), (("a", "2"), 2)],
    "shoal_group_lag_records": [(("g", "a", "0"), 2), (("g", "a", "1"), 5)],
}


def _strimzi(node: str) -> Families:
    return merge({}, make_strimzi().translate(_NATIVE, node))


def test_kafka_exporter_has_partitions_and_groups() -> None:
    found = merge({}, KAFKA_EXPORTER.translate(_NATIVE, ""))
    assert found["kafka_brokers"] == [((), 2)]
    assert found["kafka_consumergroup_lag"] == _NATIVE["shoal_group_lag_records"]
    assert found["kafka_consumergroup_lag_sum"] == [(("g", "a"), 7)]
    under = found["kafka_topic_partition_under_replicated_partition"]
    assert [value for _, value in under] == [1, 0, 1]


def test_cluster_wide_series_are_at_the_lowest_broker_that_serves() -> None:
    name = "kafka_controller_kafkacontroller_offlinepartitionscount"
    assert [node for node in ("", "1", "2", "10") if name in _strimzi(node)] == ["", "2"]
    assert merge({}, KAFKA_EXPORTER.translate(_NATIVE, "10")) == {}


def test_a_node_has_its_own_series_only() -> None:
    found = _strimzi("10")
    assert found["kafka_server_replicamanager_leadercount"] == [(("10",), 6)]
    assert found["kafka_cluster_partition_replicascount"] == [(("10", "a", "1"), 3)]
    assert found["kafka_server_raftmetrics_current_leader"] == [(("10",), 100)]
    everything = _strimzi("")
    at_least = everything["kafka_cluster_partition_atminisr"]
    assert at_least == [(("2", "a", "0"), 1), (("10", "a", "1"), 0)]


def test_rates_are_those_between_two_scrapes() -> None:
    now_s = [100.0]
    rates = Rates(lambda: now_s[0])
    assert rates.rate(("x",), 50) == 0
    now_s[0] = 110.0
    assert rates.rate(("x",), 150) == 10
    now_s[0] = 110.1  # another target of the same scrape
    assert rates.rate(("x",), 151) == 10
    now_s[0] = 120.0  # a restart sets it to 0
    assert rates.rate(("x",), 0) == 0
