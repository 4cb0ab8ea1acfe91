"""Load on clusters of several brokers, and a look at what they have. By librdkafka."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, Self

import psutil
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from shoal.lite.cluster import LiteCluster

PATIENCE_S = 60.0
_PAUSE_S = 0.02
# A writer that nobody answers waits too. librdkafka may also fail to rebuild a batch of many
# thousand messages when it sends it again, which it takes for fatal.
_MOST_UNACKNOWLEDGED_OF_PARTITION = 1000


def eventually(is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> float:
    """Wait until it is so; returns how long that took."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > patience_s:
            raise AssertionError(f"not within {patience_s} s")
        time.sleep(_PAUSE_S)
    return time.monotonic() - began


class Reachable(Protocol):
    """A cluster of any engine, as far as clients see it."""

    @property
    def bootstrap(self) -> str: ...


@contextmanager
def admin_of(cluster: Reachable) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}) as admin:
        yield admin


def create_topic(
    cluster: Reachable, name: str, partitions: int, factor: int, **config: str
) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    with admin_of(cluster) as admin:
        topic = NewTopic(name, partitions, factor, config=settings)
        admin.create_topics([topic])[name].result(PATIENCE_S)


def partition_of(cluster: Reachable, topic: str, index: int = 0) -> Any:
    """A partition as the metadata has it: leader, replicas, isrs."""
    with admin_of(cluster) as admin:
        return admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[index]


def count_partitions(cluster: Reachable, topic: str) -> int:
    with admin_of(cluster) as admin:
        return len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)


def in_sync(cluster: LiteCluster, topic: str, index: int = 0) -> set[int]:
    return set(partition_of(cluster, topic, index).isrs)


def await_in_sync(cluster: LiteCluster, topic: str, broker_ids: set[int], index: int = 0) -> None:
    """Wait until just these are in sync: a broker learns late what the controller has decided."""
    with suppress(AssertionError):
        eventually(lambda: in_sync(cluster, topic, index) == broker_ids)
    assert in_sync(cluster, topic, index) == broker_ids


def send(cluster: LiteCluster, topic: str, *values: bytes, **settings: Any) -> list[str | None]:
    """Send to partition 0; the names of what went wrong with each, None if nothing did."""
    outcomes: list[str | None] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        outcomes.append(None if error is None else error.name())

    properties = {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "linger.ms": 0}
    properties |= {key.replace("_", "."): value for key, value in settings.items()}
    with Producer(properties) as producer:
        for value in values:
            producer.produce(topic, value, partition=0, on_delivery=on_delivery)
        assert producer.flush(PATIENCE_S) == 0
    return outcomes


def goes_as_expected(cluster: LiteCluster, value: bytes, *, in_vain: bool) -> bool:
    """Send to `t`, and say whether it went as expected; what is in vain is given up soon."""
    outcome = send(cluster, "t", value, **({"message_timeout_ms": 1500} if in_vain else {}))
    return outcome == (["_MSG_TIMED_OUT"] if in_vain else [None])


def read(cluster: LiteCluster, topic: str, partitions: int = 1) -> dict[int, list[bytes]]:
    """Everything below the high watermarks, by partition."""
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "nobody",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    values: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
    unread = set(values)
    deadline = time.monotonic() + PATIENCE_S
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, index, 0) for index in values])
        while unread and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                index = message.partition() or 0
                if error is None:
                    values[index].append(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(index)
    assert not unread
    return values


def await_values(cluster: LiteCluster, topic: str, values: list[bytes]) -> None:
    """Wait until partition 0 holds just that: a new leader learns late what is committed."""
    with suppress(AssertionError):
        eventually(lambda: read(cluster, topic)[0] == values)
    assert read(cluster, topic)[0] == values


def segments(cluster: LiteCluster, broker_id: int, topic: str, index: int = 0) -> bytes:
    """All bytes of a replica's log."""
    folder: Path = cluster.log_dirs()[broker_id] / f"{topic}-{index}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def replicas_are_equal(cluster: LiteCluster, topic: str, index: int = 0) -> bool:
    replicas = partition_of(cluster, topic, index).replicas
    return len({segments(cluster, broker_id, topic, index) for broker_id in replicas}) == 1


def kill_all_at_once(cluster: LiteCluster) -> None:
    """SIGKILL to the supervisor, the fork server and all brokers."""
    pid = json.loads((cluster.directory / "supervisor.json").read_text())["pid"]
    supervisor = psutil.Process(pid)
    processes = [supervisor, *supervisor.children(recursive=True)]
    for process in processes:
        # Those that see their owner die may be quicker than we are.
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    cluster.stop()
    psutil.wait_procs(processes, timeout=60)


class Load:
    """An idempotent producer with acks=all that sends running numbers, in a thread."""

    def __init__(
        self,
        cluster: LiteCluster,
        topic: str,
        partitions: int = 1,
        *,
        batch_bytes: int = 1_000_000,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.size": batch_bytes,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                # It learns only so that another broker leads now than one that is silent.
                "socket.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        # By partition: the numbers that were acknowledged, in this order.
        self.acked: dict[int, list[int]] = {index: [] for index in range(partitions)}
        # When the last acknowledgement came.
        self.acked_at: dict[int, float] = dict.fromkeys(self.acked, 0.0)
        self.failed: list[str] = []
        self._waiting = dict.fromkeys(self.acked, 0)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: all(self.acked.values()))
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._end.wait(0.002):
            for index in range(self._partitions):
                if self._waiting[index] >= _MOST_UNACKNOWLEDGED_OF_PARTITION:
                    continue
                self._waiting[index] += 1
                value = b"%d" % number
                self._producer.produce(
                    self._topic, value, partition=index, on_delivery=self._on_delivery
                )
            self._producer.poll(0)
            number += 1
        with self._producer:
            assert self._producer.flush(PATIENCE_S) == 0

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        index = message.partition()
        assert index is not None
        self._waiting[index] -= 1
        if error is not None:
            self.failed.append(error.name())
            return
        self.acked[index].append(int(message.value() or b""))
        self.acked_at[index] = time.monotonic()

    def goes_on(self, index: int = 0) -> float:
        """Wait for the next acknowledgement; returns how long that took."""
        began, known = time.monotonic(), len(self.acked[index])
        try:
            eventually(lambda: len(self.acked[index]) > known)
        except AssertionError as error:
            raise AssertionError(f"no acknowledgement {error}: {self._describe(index)}") from None
        return self.acked_at[index] - began

    def _describe(self, index: int) -> str:
        """What is known of a partition that acknowledges nothing."""
        silent_s = time.monotonic() - self.acked_at[index]
        found = partition_of(self._cluster, self._topic, index)
        return (
            f"silent for {silent_s:.1f} s after {len(self.acked[index])} acknowledgements, "
            f"{self._waiting[index]} messages wait, failed: {self.failed}, leader {found.leader}, "
            f"in sync {found.isrs} of {found.replicas}, "
            f"its thread {'runs' if self._thread.is_alive() else 'has ended'}"
        )

    def check(self, cluster: LiteCluster) -> None:
        """Everything acknowledged is there, in order, and nothing twice."""
        assert self.failed == []
        # A new leader learns late what is committed.
        with suppress(AssertionError):
            eventually(lambda: self._are_all_in(read(cluster, self._topic, self._partitions)))
        found = read(cluster, self._topic, self._partitions)
        for index, values in found.items():
            numbers = [int(value) for value in values]
            assert numbers == sorted(set(numbers))
            assert set(self.acked[index]) <= set(numbers)

    def _are_all_in(self, found: dict[int, list[bytes]]) -> bool:
        return all(
            set(self.acked[index]) <= {int(value) for value in values}
            for index, values in found.items()
        )
