"""The names of danielqsj's kafka_exporter: topics, partitions and consumer groups."""

from collections import Counter
from collections.abc import Iterator

from shoal.telemetry.definitions import Metric
from shoal.telemetry.dialects.dialect import (
    Dialect,
    Renamed,
    all_chunks,
    by_name,
    lowest_broker,
)
from shoal.telemetry.samples import Chunk, Families, Sample, chunks_of

_PARTITION = ("topic", "partition")
_GROUP = ("consumergroup", "topic", "partition")

_RENAMED = (
    Renamed("kafka_brokers", "gauge", "shoal_brokers_active", (), ()),
    Renamed("kafka_broker_info", "gauge", "shoal_broker_info", (1, 0), ("address", "id")),
    Renamed("kafka_topic_partitions", "gauge", "shoal_topic_partitions", (0,), ("topic",)),
    *(
        Renamed(f"kafka_topic_partition_{name}", "gauge", f"shoal_partition_{source}", (0, 1),
                _PARTITION)
        for name, source in (
            ("current_offset", "high_watermark"),
            ("oldest_offset", "log_start_offset"),
            ("leader", "leader"),
            ("replicas", "replicas"),
            ("in_sync_replica", "in_sync_replicas"),
            ("leader_is_preferred", "leader_is_preferred"),
        )
    ),
    Renamed("kafka_consumergroup_current_offset", "gauge", "shoal_group_committed_offset",
            (0, 1, 2), _GROUP),
    Renamed("kafka_consumergroup_lag", "gauge", "shoal_group_lag_records", (0, 1, 2), _GROUP),
    Renamed("kafka_consumergroup_members", "gauge", "shoal_group_members", (0,),
            ("consumergroup",)),
)  # fmt: skip
_UNDER_REPLICATED = "kafka_topic_partition_under_replicated_partition"
_SUMS = {
    "kafka_consumergroup_current_offset_sum": "shoal_group_committed_offset",
    "kafka_consumergroup_lag_sum": "shoal_group_lag_records",
}

METRICS = by_name(
    (
        *(each.metric for each in _RENAMED),
        Metric(_UNDER_REPLICATED, "gauge", "", _PARTITION, "1 if under-replicated.", "cluster"),
        *(
            Metric(name, "gauge", "", _GROUP[:2], f"{source} over all partitions.", "cluster")
            for name, source in _SUMS.items()
        ),
    )
)


def _translate(families: Families, node: str) -> Iterator[Chunk]:
    if node and node != lowest_broker(families):
        return iter(())
    return all_chunks(
        (
            *(each.chunks(families.get(each.source, ())) for each in _RENAMED),
            chunks_of(_UNDER_REPLICATED, _under_replicated(families)),
            *(chunks_of(name, _sums(families.get(source, []))) for name, source in _SUMS.items()),
        )
    )


def _under_replicated(families: Families) -> Iterator[Sample]:
    replicas = {
        tuple(labels): value for labels, value in families.get("shoal_partition_replicas", ())
    }
    for labels, in_sync in families.get("shoal_partition_in_sync_replicas", ()):
        yield labels, int(in_sync < replicas.get(tuple(labels), 0))


def _sums(samples: list[Sample]) -> Iterator[Sample]:
    sums: Counter[tuple[str, str]] = Counter()
    for (group, topic, _), value in samples:
        sums[group, topic] += value
    yield from sums.items()


KAFKA_EXPORTER = Dialect(METRICS, _translate)
