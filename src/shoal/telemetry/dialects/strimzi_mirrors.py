"""The names of Strimzi's JMX exporter rules for MirrorMaker 2, for its dashboard mirror-maker-2.

A flow stands for a connector with one task. Rates have no label of a partition: a mirror counts
records and bytes for the whole flow.
"""

from collections.abc import Iterator

from shoal.telemetry.definitions import Metric
from shoal.telemetry.dialects.dialect import Dialect, Rates, Renamed, all_chunks, by_name
from shoal.telemetry.samples import Chunk, Families, Sample, chunks_of, one

_CONNECTOR = "kafka_connect_mirror_mirrorsourceconnector"
_FLOW = ("flow",)
_PARTITION = ("flow", "topic", "partition")

_RENAMED = (
    Renamed("kafka_consumer_incoming_byte_total", "counter", "shoal_mirror_bytes_total", (0,),
            _FLOW),
    Renamed("kafka_producer_outgoing_byte_total", "counter", "shoal_mirror_bytes_total", (0,),
            _FLOW),
)  # fmt: skip
# As MirrorMaker 2 names its clients, with the quotation marks of JMX.
_LAG = "kafka_consumer_fetch_manager_records_lag"
_CLIENT = '"shoal|replication-consumer"'
_SPREADS = {
    f"{_CONNECTOR}_{name}_ms{suffix}": (f"shoal_mirror_partition_{source}", which)
    for name, source in (
        ("record_age", "record_age_seconds"),
        ("replication_latency", "replication_latency_seconds"),
    )
    for suffix, which in (("", "last"), ("_avg", "avg"), ("_min", "min"), ("_max", "max"))
}
_RATES = {
    f"{_CONNECTOR}_record_rate": "shoal_mirror_records_total",
    f"{_CONNECTOR}_byte_rate": "shoal_mirror_bytes_total",
}
_COUNTS = {
    "kafka_connect_worker_connector_count": "Flows.",
    "kafka_connect_worker_task_count": "Flows.",
    "kafka_connect_coordinator_assigned_connectors": "Flows.",
    "kafka_connect_coordinator_assigned_tasks": "Flows.",
    "kafka_connect_worker_rebalance_rebalancing": "Always 0.",
}

METRICS = by_name(
    (
        *(each.metric for each in _RENAMED),
        Metric(_LAG, "gauge", "", (*_PARTITION, "clientid"), "shoal_mirror_lag_records.", "mirror"),
        *(
            Metric(name, "gauge", "", _PARTITION, f"{source}, in ms.", "mirror")
            for name, (source, _) in _SPREADS.items()
        ),
        *(
            Metric(name, "gauge", "", _FLOW, f"Rate of {source}.", "mirror")
            for name, source in _RATES.items()
        ),
        *(Metric(name, "gauge", "", (), text, "mirror") for name, text in _COUNTS.items()),
    )
)


class _Translator:
    def __init__(self) -> None:
        self._rates = Rates()

    def translate(self, families: Families, _node: str) -> Iterator[Chunk]:
        return all_chunks(
            (
                *(each.chunks(families.get(each.source, ())) for each in _RENAMED),
                chunks_of(
                    _LAG,
                    (
                        ((*labels, _CLIENT), value)
                        for labels, value in families.get("shoal_mirror_lag_records", ())
                    ),
                ),
                *(
                    chunks_of(name, _spread(families.get(source, []), which))
                    for name, (source, which) in _SPREADS.items()
                ),
                self._compute(families),
            )
        )

    def _compute(self, families: Families) -> Iterator[Chunk]:
        for name, source in _RATES.items():
            samples = [
                (labels, self._rates.rate((source, *labels), value))
                for labels, value in families.get(source, ())
            ]
            yield from chunks_of(name, samples)
        flows = len(families.get("shoal_mirror_partitions", ()))
        for name in _COUNTS:
            yield one(name, 0 if name.endswith("rebalancing") else flows)


def _spread(samples: list[Sample], which: str) -> Iterator[Sample]:
    for labels, value in samples:
        if labels[3] == which:
            yield tuple(labels[:3]), value * 1000


def make_strimzi_mirrors() -> Dialect:
    """The dialect of one endpoint; it remembers the last scrape to compute rates."""
    return Dialect(METRICS, _Translator().translate)
