"""Every Prometheus metric of Shoal, once.

Code, the reference page, the Grafana dashboard and the alert rules are made from this table
(`scripts/prometheus_files.py`), so a metric that is not here does not exist.

Rules:
- Names have the prefix `shoal_` and base units: seconds, bytes, ratios from 0 to 1.
- A counter ends in `_total` and only increases while its process lives.
- A histogram has at most 16 buckets and no label `partition`.
- A series of the subjects `cluster` and `group` has no label of a node: exactly one endpoint of a
  cluster exposes it.
"""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]
Subject = Literal["cluster", "broker", "group", "mirror", "run"]

MAX_BUCKETS: Final = 16
# From a message within one machine to a mirror that waits for a broker's session to expire.
LATENCY_BUCKETS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip

# Octaves of microseconds, as workers count them: from a millisecond to 17 seconds.
LATENCY_BOUNDS_US: Final = tuple(1 << power for power in range(10, 25))
OCTAVE_BUCKETS_S: Final = tuple(bound / 1e6 for bound in LATENCY_BOUNDS_US)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: a family of series that differ in their labels."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    subject: Subject
    buckets: tuple[float, ...] = ()


_TOPIC = ("topic",)
_PARTITION = ("topic", "partition")
_BROKER = ("broker",)
_BROKER_TOPIC = ("broker", "topic")
_BROKER_PARTITION = ("broker", "topic", "partition")
_GROUP_PARTITION = ("group", "topic", "partition")
_MIRROR = ("mirror",)
_MIRROR_PARTITION = ("mirror", "topic", "partition")

# name without prefix, kind, unit, labels, help
_Row = tuple[str, Kind, str, tuple[str, ...], str]

_CLUSTER: tuple[_Row, ...] = (
    ("cluster_info", "gauge", "", ("cluster_id",), "Always 1; the id of the cluster."),
    ("brokers", "gauge", "brokers", (), "Registered brokers."),
    ("brokers_active", "gauge", "brokers", (), "Brokers that may lead and be in sync."),
    ("broker_up", "gauge", "", _BROKER, "1 if a broker's process serves, otherwise 0."),
    ("broker_info", "gauge", "", ("broker", "address", "rack"),
     "Always 1; where clients connect to a broker."),
    ("topics", "gauge", "topics", (), "Topics, internal ones included."),
    ("topic_partitions", "gauge", "partitions", _TOPIC, "Partitions of a topic."),
    ("offline_partitions", "gauge", "partitions", (), "Partitions without a leader."),
    ("under_replicated_partitions", "gauge", "partitions", (),
     "Partitions with fewer in-sync replicas than replicas."),
    ("under_min_isr_partitions", "gauge", "partitions", (),
     "Partitions with fewer in-sync replicas than min.insync.replicas."),
    ("at_min_isr_partitions", "gauge", "partitions", (),
     "Partitions with exactly min.insync.replicas in-sync replicas."),
    ("partition_leader", "gauge", "", _PARTITION, "Id of the leader; -1 without one."),
    ("partition_replicas", "gauge", "replicas", _PARTITION, "Replicas of a partition."),
    ("partition_in_sync_replicas", "gauge", "replicas", _PARTITION,
     "In-sync replicas of a partition."),
    ("partition_min_isr", "gauge", "replicas", _PARTITION, "Its min.insync.replicas."),
    ("partition_leader_is_preferred", "gauge", "", _PARTITION,
     "1 if the first replica leads, otherwise 0."),
    ("unclean_leader_elections_total", "counter", "elections", (),
     "Elections of a replica that may lack acknowledged records, since the metadata was loaded."),
    ("controller_active", "gauge", "", (), "Id of the active controller; -1 if it is not known."),
    ("controller_epoch", "gauge", "", (), "Epoch of the quorum of controllers."),
    ("controller_high_watermark", "gauge", "records", (), "Committed records of the metadata."),
    ("controller_log_end_offset", "gauge", "records", ("controller",),
     "Log end offset of the metadata at a controller."),
)  # fmt: skip

_BROKERS: tuple[_Row, ...] = (
    ("broker_bytes_in_total", "counter", "bytes", _BROKER_TOPIC,
     "Bytes of record batches that producers appended."),
    ("broker_bytes_out_total", "counter", "bytes", _BROKER_TOPIC,
     "Bytes of record batches that consumers fetched."),
    ("broker_records_in_total", "counter", "records", _BROKER_TOPIC,
     "Records that producers appended."),
    ("broker_produce_requests_total", "counter", "requests", _BROKER_TOPIC,
     "Partitions in Produce requests."),
    ("broker_failed_produce_requests_total", "counter", "requests", _BROKER_TOPIC,
     "Partitions in Produce requests that were refused."),
    ("broker_fetch_requests_total", "counter", "requests", _BROKER_TOPIC,
     "Partitions in answered Fetch requests of consumers."),
    ("broker_failed_fetch_requests_total", "counter", "requests", _BROKER_TOPIC,
     "Partitions in Fetch requests of consumers that were refused."),
    ("broker_requests_total", "counter", "requests", ("broker", "api"),
     "Requests by the name of their API, those of other brokers included."),
    ("broker_connections", "gauge", "connections", _BROKER, "Open connections of clients."),
    ("broker_leaders", "gauge", "partitions", _BROKER, "Partitions that a broker leads."),
    ("broker_replicas", "gauge", "replicas", _BROKER, "Replicas that a broker has open."),
    ("broker_offline_replicas", "gauge", "replicas", _BROKER,
     "Replicas that a broker cannot serve."),
    ("broker_under_replicated_partitions", "gauge", "partitions", _BROKER,
     "Partitions that a broker leads and that lack an in-sync replica."),
    ("broker_log_size_bytes", "gauge", "bytes", _BROKER_PARTITION, "Size of a replica's log."),
    ("partition_high_watermark", "gauge", "records", _PARTITION,
     "Offset up to which consumers can read; from the leader."),
    ("partition_log_start_offset", "gauge", "records", _PARTITION,
     "First offset of the log; from the leader."),
    ("broker_metadata_offset", "gauge", "records", _BROKER,
     "Committed metadata records that a broker has applied."),
    ("broker_metadata_requests_total", "counter", "requests", _BROKER,
     "Requests of a broker to controllers."),
    ("broker_metadata_responses_total", "counter", "responses", _BROKER,
     "Responses of controllers to a broker."),
    ("broker_metadata_sent_bytes_total", "counter", "bytes", _BROKER,
     "Bytes that a broker sent to controllers."),
    ("broker_metadata_received_bytes_total", "counter", "bytes", _BROKER,
     "Bytes that a broker received from controllers."),
    ("broker_background_failures_total", "counter", "failures", ("broker", "work"),
     "Unexpected failures of background work."),
    ("broker_longest_hold_seconds", "gauge", "seconds", _BROKER,
     "Longest CPU time for which one callback blocked the event loop."),
    ("broker_idle_ratio", "gauge", "ratio", _BROKER,
     "Share of the time since the last scrape in which the process used no CPU."),
    ("broker_cpu_seconds_total", "counter", "seconds", _BROKER, "CPU time of the process."),
    ("broker_resident_memory_bytes", "gauge", "bytes", _BROKER, "Resident memory."),
    ("broker_open_files", "gauge", "files", _BROKER, "Open file descriptors."),
    ("broker_threads", "gauge", "threads", _BROKER, "Threads of the process."),
    ("broker_disk_read_bytes_total", "counter", "bytes", _BROKER,
     "Bytes that the process caused to be read from disks (Linux)."),
    ("broker_disk_written_bytes_total", "counter", "bytes", _BROKER,
     "Bytes that the process caused to be written to disks (Linux)."),
    ("broker_start_time_seconds", "gauge", "seconds", _BROKER,
     "Start of the process, since the Unix epoch."),
)  # fmt: skip

_GROUPS: tuple[_Row, ...] = (
    ("group_members", "gauge", "members", ("group",), "Members of a consumer group."),
    ("group_committed_offset", "gauge", "records", _GROUP_PARTITION,
     "Offset that a group has committed."),
    ("group_lag_records", "gauge", "records", _GROUP_PARTITION,
     "Records between the committed offset and the high watermark."),
)  # fmt: skip

_MIRRORS: tuple[_Row, ...] = (
    ("mirror_info", "gauge", "", ("mirror", "topic", "delivery"),
     "Always 1; how a topic is delivered."),
    ("mirror_records_total", "counter", "records", _MIRROR,
     "Records that the target acknowledged."),
    ("mirror_bytes_total", "counter", "bytes", _MIRROR,
     "Bytes of record batches that the target acknowledged."),
    ("mirror_batches_total", "counter", "batches", _MIRROR,
     "Batches that the target acknowledged."),
    ("mirror_resent_batches_total", "counter", "batches", _MIRROR,
     "Batches that were sent again because the outcome was unknown."),
    ("mirror_re_encoded_batches_total", "counter", "batches", _MIRROR,
     "Batches that could not be copied byte for byte."),
    ("mirror_lost_offsets_total", "counter", "records", _MIRROR,
     "Source offsets that were deleted before they were copied."),
    ("mirror_displaced_batches_total", "counter", "batches", _MIRROR,
     "Batches that another producer at the target displaced."),
    ("mirror_damaged_batches_total", "counter", "batches", _MIRROR,
     "Source batches with a wrong checksum, each time they are read."),
    ("mirror_paused", "gauge", "", _MIRROR, "1 if the mirror is paused, otherwise 0."),
    ("mirror_partitions", "gauge", "partitions", _MIRROR, "Partitions that are assigned."),
    ("mirror_parked_partitions", "gauge", "partitions", _MIRROR,
     "Partitions that are not copied until somebody acts."),
    ("mirror_waiting_partitions", "gauge", "partitions", _MIRROR,
     "Partitions that cannot be copied now and are retried."),
    ("mirror_refused_topics", "gauge", "topics", _MIRROR, "Topics that are not copied."),
    ("mirror_position", "gauge", "records", _MIRROR_PARTITION,
     "Source offset below which everything is copied."),
    ("mirror_lag_records", "gauge", "records", _MIRROR_PARTITION,
     "Source offsets that can be read and are not copied, also those that hold no record."),
    ("mirror_lag_bytes", "gauge", "bytes", _MIRROR_PARTITION,
     "Bytes that are not copied; what is not fetched yet is estimated."),
    ("mirror_lag_seconds", "gauge", "seconds", _MIRROR_PARTITION,
     "Age of the oldest record that is not copied."),
    ("mirror_proven_offset", "gauge", "records", _MIRROR_PARTITION,
     "Source offset below which mirror verify --follow has proven the copy equal."),
    ("mirror_proof_age_seconds", "gauge", "seconds", _MIRROR_PARTITION,
     "Time since mirror verify --follow last compared the partition."),
    ("mirror_proof_difference", "gauge", "", _MIRROR_PARTITION,
     "1 if mirror verify --follow has found a difference, otherwise 0."),
    ("mirror_cpu_seconds_total", "counter", "seconds", (), "CPU time of the mirror's process."),
    ("mirror_peak_memory_bytes", "gauge", "bytes", (), "Most memory that the process has used."),
    ("mirror_partition_replication_latency_seconds", "gauge", "seconds",
     (*_MIRROR_PARTITION, "of"),
     "Time from the newest timestamp of a batch to its acknowledgement: last, avg, min, max."),
    ("mirror_partition_record_age_seconds", "gauge", "seconds", (*_MIRROR_PARTITION, "of"),
     "Age of the newest record of a fetch when it arrives: last, avg, min, max."),
)  # fmt: skip

_RUNS: tuple[_Row, ...] = (
    ("run_info", "gauge", "", ("run",), "Always 1; the name of the run."),
    ("run_active", "gauge", "", (), "1 from the start of a run to its verdict, otherwise 0."),
    ("records_expected", "gauge", "records", (), "Records that the run is going to send."),
    ("records_produced_total", "counter", "records", (), "Records that producers attempted."),
    ("records_acked_total", "counter", "records", (), "Records that were acknowledged."),
    ("records_failed_total", "counter", "records", (), "Records that were refused."),
    ("records_unknown_total", "counter", "records", (),
     "Records whose acknowledgement did not arrive."),
    ("records_consumed_total", "counter", "records", (), "Deliveries to consumers."),
    ("records_missing", "gauge", "records", (),
     "Acknowledged records that a group has not received yet; the largest of all groups."),
    ("records_lost_total", "counter", "records", (),
     "Acknowledged records that were certainly lost: set when the audit has proven it."),
)  # fmt: skip


def _rows(rows: tuple[_Row, ...], subject: Subject) -> list[Metric]:
    return [
        Metric(f"shoal_{name}", kind, unit, labels, text, subject)
        for name, kind, unit, labels, text in rows
    ]


_HISTOGRAMS: Final = (
    Metric(
        "shoal_mirror_replication_latency_seconds",
        "histogram",
        "seconds",
        _MIRROR,
        "Time from the newest timestamp of a batch to its acknowledgement by the target.",
        "mirror",
        LATENCY_BUCKETS_S,
    ),
    Metric(
        "shoal_records_produce_latency_seconds",
        "histogram",
        "seconds",
        (),
        "Time from sending a record to its acknowledgement.",
        "run",
        OCTAVE_BUCKETS_S,
    ),
    Metric(
        "shoal_records_end_to_end_latency_seconds",
        "histogram",
        "seconds",
        (),
        "Time from sending a record to its delivery to a consumer.",
        "run",
        OCTAVE_BUCKETS_S,
    ),
)

METRICS: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        *_rows(_CLUSTER, "cluster"),
        *_rows(_BROKERS, "broker"),
        *_rows(_GROUPS, "group"),
        *_rows(_MIRRORS, "mirror"),
        *_rows(_RUNS, "run"),
        *_HISTOGRAMS,
    )
}
