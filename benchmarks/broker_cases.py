"""What the two benchmarks of throughput have in common: the cases, by the number of brokers.

Every run has a topic of its own with 6 partitions and as many replicas as there are brokers (at
most 3); consumers read what a run before has written, from the page cache. The CPU is that of
all processes of a cluster, without the clients, which are the same for both. Before anything is
measured both clusters have taken and given a GB, so that Apache Kafka's JVMs are warm.
"""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import client_loads, raw_load
from benchmarks.harness import Case, Work
from benchmarks.raw_load import RawProduce, batch_of
from benchmarks.side_by_side import PARTITIONS, System, both

KIB = 1024
MB = 1_000_000
_RECORDS_PER_BATCH = 63  # of 1 KiB with what surrounds them: just below 64 KiB
_SMALL_PER_BATCH = 590  # of 100 B
_CONNECTIONS = 50
_WARM_UP_BYTES = 1000 * MB

# One request of six batches, or of two where three brokers lead: what a Java client sends.
LARGE = RawProduce(batch_of(_RECORDS_PER_BATCH, KIB), _RECORDS_PER_BATCH * KIB)
SMALL = RawProduce(batch_of(_SMALL_PER_BATCH, 100), _SMALL_PER_BATCH * 100)
SINGLE = RawProduce(batch_of(1, KIB), KIB, partitions_per_request=1)
MANY = RawProduce(
    LARGE.batch, LARGE.record_bytes, clients=_CONNECTIONS, in_flight=1, partitions_per_request=1
)

Run = Callable[[System], int | Work]


def cases(brokers: int, *, produce_bar: float, size_bytes: int) -> Iterator[Case]:
    """All cases; the clusters run while they are measured."""
    with both(brokers) as systems:
        yield from _Cases(systems, brokers, size_bytes).all(produce_bar)


class _Cases:
    def __init__(self, systems: tuple[System, System], brokers: int, size_bytes: int) -> None:
        self._systems = systems
        self._copies = min(3, brokers)
        self._conditions: dict[str, Any] = {
            "brokers": brokers,
            "partitions": PARTITIONS,
            "replication_factor": self._copies,
        }
        self._size_bytes = size_bytes
        # Topics to read from, by the system's name.
        self._full = {system.name: self._fill_topic(system) for system in systems}

    def _fill_topic(self, system: System) -> str:
        topic = system.create_topic(self._copies)
        written = 0
        while written < _WARM_UP_BYTES:
            written += raw_load.produce(system.bootstrap, topic, LARGE, _WARM_UP_BYTES // 4)
            raw_load.consume(system.bootstrap, topic, _WARM_UP_BYTES // 4)
        return topic

    def all(self, produce_bar: float) -> Iterator[Case]:
        size = self._size_bytes
        bars = {"bar": produce_bar, "least_speed": 0.7}
        yield self._case("produce 1 KiB, raw", self._raw(LARGE, size), **bars)
        yield self._case("produce 1 KiB, Java perf tool", self._java(size), **bars)
        yield self._case("produce 1 KiB, librdkafka", self._rdkafka(size), **bars)
        yield self._case("consume 1 KiB, raw", self._read, bar=1.0)
        yield self._case("consume 1 KiB, librdkafka", self._read_by_rdkafka, bar=1.0)
        yield self._case("produce 100 B, raw", self._raw(SMALL, size // 2), judged=False)
        yield self._case(
            "one message of 1 KiB per request, raw", self._raw(SINGLE, 20 * MB), judged=False
        )
        yield self._case(
            f"{_CONNECTIONS} producers and {_CONNECTIONS} consumers, raw",
            self._crowd(size // 2),
            judged=False,
        )

    def _case(self, name: str, run: Run, **bars: Any) -> Case:
        ours, theirs = self._systems
        return Case(
            name,
            ours=ours.side(run),
            theirs=theirs.side(run),
            conditions=self._conditions,
            **bars,
        )

    def _with_topic(
        self, work: Callable[[System, str], int | Work], partitions: int = PARTITIONS
    ) -> Run:
        def run(system: System) -> int | Work:
            topic = system.create_topic(self._copies, partitions)
            try:
                return work(system, topic)
            finally:
                system.delete_topic(topic)

        return run

    def _raw(self, load: RawProduce, size_bytes: int) -> Run:
        return self._with_topic(
            lambda system, topic: raw_load.produce(system.bootstrap, topic, load, size_bytes)
        )

    def _java(self, size_bytes: int) -> Run:
        return self._with_topic(
            lambda system, topic: client_loads.java_produce(
                system.bootstrap, topic, KIB, size_bytes
            )
        )

    def _rdkafka(self, size_bytes: int) -> Run:
        return self._with_topic(
            lambda system, topic: client_loads.rdkafka_produce(
                system.bootstrap, topic, PARTITIONS, size_bytes
            )
        )

    def _crowd(self, size_bytes: int) -> Run:
        return self._with_topic(
            lambda system, topic: raw_load.produce_and_consume(
                system.bootstrap, topic, MANY, size_bytes
            ),
            partitions=_CONNECTIONS,
        )

    def _read(self, system: System) -> int:
        return raw_load.consume(system.bootstrap, self._full[system.name], _WARM_UP_BYTES)

    def _read_by_rdkafka(self, system: System) -> int:
        topic = self._full[system.name]
        return client_loads.rdkafka_consume(
            system.bootstrap, topic, PARTITIONS, record_bytes=KIB, total_bytes=_WARM_UP_BYTES // 2
        )
