"""Mirrors that copy record by record with librdkafka, well or badly on purpose.

As a context manager (`with Copier(…)`) they copy in a thread; as a command,

    python -m support.mirror.copiers --source HOST:PORT --target HOST:PORT --topics a,b \\
        [--to PREFIX | --into TOPIC] [--repartition] [--drop-headers] [--fault lose:50:250 …]

they copy until they are ended. A fault is NAME[:EVERY[:BELOW]]: it befalls every EVERY-th record
of each partition (offsets EVERY - 1, 2 EVERY - 1, …) below offset BELOW.
"""

import argparse
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.05
_FOREVER: Final = 1 << 62


@dataclass(frozen=True)
class Record:
    """What is copied; `partition` None leaves the choice to the key."""

    topic: str
    partition: int | None
    offset: int  # in the source
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]
    timestamp_ms: int


@dataclass(frozen=True)
class Chosen:
    """Which records of a partition something befalls."""

    every: int = 1
    below: int = _FOREVER

    def __contains__(self, record: Record) -> bool:
        return record.offset < self.below and record.offset % self.every == self.every - 1


# From a record of the source to those that are written, in this order.
Change = Callable[[Record], Iterable[Record]]


def lose(chosen: Chosen) -> Change:
    return lambda record: () if record in chosen else (record,)


def duplicate(chosen: Chosen) -> Change:
    return lambda record: (record, record) if record in chosen else (record,)


def reorder(chosen: Chosen) -> Change:
    """A chosen record goes behind the one that follows it in its partition."""
    held: dict[tuple[str, int | None], Record] = {}

    def change(record: Record) -> Iterator[Record]:
        before = held.pop((record.topic, record.partition), None)
        if record in chosen:
            held[record.topic, record.partition] = record
        else:
            yield record
        if before is not None:
            yield before

    return change


def change_key(chosen: Chosen) -> Change:
    return lambda r: (replace(r, key=(r.key or b"") + b"!") if r in chosen else r,)


def drop_headers(chosen: Chosen) -> Change:
    return lambda r: (replace(r, headers=[]) if r in chosen else r,)


def corrupt(chosen: Chosen) -> Change:
    """The last byte of the payload is another."""

    def change(record: Record) -> tuple[Record]:
        value = record.value or b""
        return (
            replace(record, value=value[:-1] + bytes([value[-1] ^ 1]))
            if record in chosen
            else record,
        )

    return change


def skip_partition(chosen: Chosen) -> Change:
    """Partition EVERY - 1 is never copied."""
    return lambda record: () if record.partition == chosen.every - 1 else (record,)


def stop_at_tail(chosen: Chosen) -> Change:
    """Nothing at or above offset BELOW is copied."""
    return lambda record: (record,) if record.offset < chosen.below else ()


FAULTS: Final[Mapping[str, Callable[[Chosen], Change]]] = {
    "lose": lose,
    "duplicate": duplicate,
    "reorder": reorder,
    "change-key": change_key,
    "drop-headers": drop_headers,
    "corrupt": corrupt,
    "skip-partition": skip_partition,
    "stop-at-tail": stop_at_tail,
}


def fault_of(text: str) -> Change:
    name, *numbers = text.split(":")
    return FAULTS[name](Chosen(*map(int, numbers)))


@dataclass
class Copier:
    """Copies topics from the first offset on, each partition in its order."""

    clusters: Mapping[str, str]  # bootstrap servers of `source` and `target`
    routes: Mapping[str, str]  # topics of the source, and what they are called in the target
    changes: list[Change] = field(default_factory=list)
    repartition: bool = False  # by key, as Kafka's default partitioner does
    batch_bytes: int = 1_000_000  # batches larger than a segment are refused

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="copier")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        self._thread.join(_PATIENCE_S)
        if self._error is not None and error is None:
            raise self._error

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        try:
            self.copy()
        except BaseException as error:  # noqa: BLE001 - raised again where the copier ends
            self._error = error

    def copy(self) -> None:
        """Until it is stopped."""
        settings = {
            "bootstrap.servers": self.clusters["source"],
            "group.id": "copier",
            "log_level": 0,
        }
        consumer = Consumer({**settings, "enable.auto.commit": False})
        producer = Producer(
            {
                "bootstrap.servers": self.clusters["target"],
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 2,
                "batch.size": self.batch_bytes,
                "log_level": 0,
            }
        )
        try:
            consumer.assign(self._partitions())
            while not self._stop.is_set():
                message = consumer.poll(_POLL_S)
                if message is not None and message.error() is None:
                    for record in self._change(_record(message)):
                        self._write(producer, record)
                producer.poll(0)
            producer.flush(_PATIENCE_S)
        finally:
            consumer.close()

    def _partitions(self) -> list[TopicPartition]:
        with AdminClient({"bootstrap.servers": self.clusters["source"], "log_level": 0}) as admin:
            topics = admin.list_topics(timeout=_PATIENCE_S).topics
        return [
            TopicPartition(name, partition, 0)
            for name in self.routes
            for partition in topics[name].partitions
        ]

    def _change(self, record: Record) -> Iterable[Record]:
        records: Iterable[Record] = (record,)
        for change in self.changes:
            records = [changed for before in records for changed in change(before)]
        return records

    def _write(self, producer: Producer, record: Record) -> None:
        partition = -1 if self.repartition or record.partition is None else record.partition
        while True:
            try:
                producer.produce(
                    self.routes[record.topic],
                    record.value,
                    record.key,
                    partition,
                    timestamp=record.timestamp_ms,
                    headers=record.headers,
                )
            except BufferError:
                producer.poll(_POLL_S)
            else:
                return


def _record(message: Message) -> Record:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert offset is not None
    headers = message.headers() or []
    assert isinstance(headers, list)
    _, timestamp_ms = message.timestamp()
    return Record(topic, partition, offset, message.key(), message.value(), headers, timestamp_ms)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--topics", required=True)
    parser.add_argument("--to", default="", help="what goes before the names of topics")
    parser.add_argument("--into", default="", help="the one topic that all are merged into")
    parser.add_argument("--repartition", action="store_true")
    parser.add_argument("--fault", action="append", default=[], type=fault_of)
    arguments = parser.parse_args()
    routes = {name: arguments.into or arguments.to + name for name in arguments.topics.split(",")}
    clusters = {"source": arguments.source, "target": arguments.target}
    copier = Copier(clusters, routes, arguments.fault, arguments.repartition)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: copier.stop())
    copier.copy()


if __name__ == "__main__":
    main()
