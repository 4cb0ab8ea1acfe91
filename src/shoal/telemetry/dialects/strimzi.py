"""The names of Strimzi's JMX exporter rules for brokers: its dashboards kafka and kraft."""

from collections.abc import Iterator

from shoal.telemetry.definitions import Metric
from shoal.telemetry.dialects.dialect import (
    Dialect,
    Rates,
    Renamed,
    all_chunks,
    by_name,
    lowest_broker,
    samples_of_node,
    value_of,
)
from shoal.telemetry.samples import Chunk, Families, Sample, chunks_of, one

_NODE = ("broker",)
_NODE_TOPIC = ("broker", "topic")
_NODE_PARTITION = ("broker", "topic", "partition")

# Series of one broker; the first native label is the broker.
_OF_BROKERS = (
    *(
        Renamed(f"kafka_server_brokertopicmetrics_{name}_total", "counter",
                f"shoal_broker_{source}_total", (0, 1), _NODE_TOPIC)
        for name, source in (
            ("bytesin", "bytes_in"),
            ("bytesout", "bytes_out"),
            ("messagesin", "records_in"),
            ("totalproducerequests", "produce_requests"),
            ("totalfetchrequests", "fetch_requests"),
            ("failedproducerequests", "failed_produce_requests"),
            ("failedfetchrequests", "failed_fetch_requests"),
        )
    ),
    *(
        Renamed(name, "gauge", f"shoal_broker_{source}", (0,), _NODE)
        for name, source in (
            ("kafka_server_replicamanager_leadercount", "leaders"),
            ("kafka_server_replicamanager_partitioncount", "replicas"),
            ("kafka_server_replicamanager_offlinereplicacount", "offline_replicas"),
            ("kafka_server_replicamanager_underreplicatedpartitions",
             "under_replicated_partitions"),
            ("kafka_network_socketserver_networkprocessoravgidle_percent", "idle_ratio"),
            ("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", "idle_ratio"),
            ("process_open_fds", "open_files"),
            ("process_resident_memory_bytes", "resident_memory_bytes"),
            ("process_start_time_seconds", "start_time_seconds"),
            ("kafka_server_raftmetrics_high_watermark", "metadata_offset"),
            ("kafka_server_raftmetrics_log_end_offset", "metadata_offset"),
            # Counters that JMX names without a suffix.
            ("kafka_server_kafkaserver_linux_disk_read_bytes", "disk_read_bytes_total"),
            ("kafka_server_kafkaserver_linux_disk_write_bytes", "disk_written_bytes_total"),
        )
    ),
    *(
        Renamed(name, "counter", f"shoal_broker_{source}_total", (0,), _NODE)
        for name, source in (
            ("process_cpu_seconds_total", "cpu_seconds"),
            ("kafka_server_raftchannelmetrics_request_total", "metadata_requests"),
            ("kafka_server_raftchannelmetrics_response_total", "metadata_responses"),
            ("kafka_server_raftchannelmetrics_outgoing_byte_total", "metadata_sent_bytes"),
            ("kafka_server_raftchannelmetrics_incoming_byte_total", "metadata_received_bytes"),
        )
    ),
    Renamed("kafka_log_log_size", "gauge", "shoal_broker_log_size_bytes", (0, 1, 2),
            _NODE_PARTITION),
    Renamed("kafka_server_socket_server_metrics_connection_count", "gauge",
            "shoal_broker_connections", (0,), _NODE, {"listener": "PLAINTEXT"}),
)  # fmt: skip

# Series of the whole cluster, at one broker.
_OF_CLUSTER = (
    Renamed("kafka_controller_kafkacontroller_offlinepartitionscount", "gauge",
            "shoal_offline_partitions", (), ()),
    Renamed("kafka_controller_kafkacontroller_activebrokercount", "gauge",
            "shoal_brokers_active", (), ()),
    Renamed("kafka_controller_kafkacontroller_globaltopiccount", "gauge", "shoal_topics", (), ()),
    Renamed("kafka_controller_controllerstats_uncleanleaderelections_total", "counter",
            "shoal_unclean_leader_elections_total", (), ()),
)  # fmt: skip
_ACTIVE_CONTROLLERS = "kafka_controller_kafkacontroller_activecontrollercount"
_PARTITIONS = {
    "kafka_cluster_partition_replicascount": "Replicas; at the leader.",
    "kafka_cluster_partition_atminisr": "1 with exactly min.insync.replicas; at the leader.",
    "kafka_cluster_partition_underminisr": "1 below min.insync.replicas; at the leader.",
    "kafka_cluster_partition_underreplicated": "1 if under-replicated; at the leader.",
}
_RAFT = {
    "kafka_server_raftmetrics_current_leader": "Active controller.",
    "kafka_server_raftmetrics_current_epoch": "Epoch of the quorum.",
    "kafka_server_raftmetrics_current_vote": "Brokers do not vote: -1.",
    "kafka_server_raftmetrics_append_records_rate": "Metadata records per second.",
    "kafka_server_raftmetrics_fetch_records_rate": "Metadata records per second.",
}
_RAFT_STATE = "kafka_server_raftmetrics_current_state"

METRICS = by_name(
    (
        *(each.metric for each in (*_OF_BROKERS, *_OF_CLUSTER)),
        Metric(_ACTIVE_CONTROLLERS, "gauge", "", (), "Active controllers.", "cluster"),
        *(
            Metric(name, "gauge", "", _NODE_PARTITION, text, "broker")
            for name, text in _PARTITIONS.items()
        ),
        *(Metric(name, "gauge", "", _NODE, text, "broker") for name, text in _RAFT.items()),
        Metric(_RAFT_STATE, "gauge", "", ("broker", "current_state"), "Always 1.", "broker"),
    )
)


class _Strimzi:
    def __init__(self) -> None:
        self._rates = Rates()

    def translate(self, families: Families, node: str) -> Iterator[Chunk]:
        parts = [
            each.chunks(samples_of_node(families.get(each.source, []), node))
            for each in _OF_BROKERS
        ]
        if node in {"", lowest_broker(families)}:
            parts += [each.chunks(families.get(each.source, ())) for each in _OF_CLUSTER]
            is_known = value_of(families, "shoal_controller_active") >= 0
            parts.append(iter([one(_ACTIVE_CONTROLLERS, int(is_known))]))
        parts += [
            chunks_of(name, samples_of_node(samples, node))
            for name, samples in _partitions(families).items()
        ]
        parts.append(self._raft(families, node))
        return all_chunks(parts)

    def _raft(self, families: Families, node: str) -> Iterator[Chunk]:
        values = {
            "current_leader": value_of(families, "shoal_controller_active"),
            "current_epoch": value_of(families, "shoal_controller_epoch"),
            "current_vote": -1,
        }
        followed = samples_of_node(families.get("shoal_broker_metadata_offset", []), node)
        for (broker,), offset in followed:
            for name, value in values.items():
                yield one(f"kafka_server_raftmetrics_{name}", value, broker)
            yield one(_RAFT_STATE, 1, broker, "observer")
            rate = self._rates.rate((broker,), offset)
            yield one("kafka_server_raftmetrics_fetch_records_rate", rate, broker)
            if broker == lowest_broker(families):
                yield one("kafka_server_raftmetrics_append_records_rate", rate, broker)


def _partitions(families: Families) -> dict[str, list[Sample]]:
    """The series of partitions that Kafka has at their leaders."""

    def by_partition(name: str) -> dict[tuple[str, ...], int]:
        return {tuple(labels): value for labels, value in families.get(name, ())}

    in_sync = by_partition("shoal_partition_in_sync_replicas")
    least = by_partition("shoal_partition_min_isr")
    replicas = by_partition("shoal_partition_replicas")
    found: dict[str, list[Sample]] = {name: [] for name in _PARTITIONS}
    for labels, leader in families.get("shoal_partition_leader", ()):
        key, place = tuple(labels), (str(leader), *labels)
        if leader < 0:
            continue
        count, wanted, total = in_sync.get(key, 0), least.get(key, 0), replicas.get(key, 0)
        for name, value in zip(
            _PARTITIONS, (total, count == wanted, count < wanted, count < total), strict=True
        ):
            found[name].append((place, int(value)))
    return found


def make_strimzi() -> Dialect:
    """The dialect of one endpoint; it remembers the last scrape to compute rates."""
    return Dialect(METRICS, _Strimzi().translate)
