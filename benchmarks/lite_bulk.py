"""Claim: thousands of partitions that come and go cost a steady writer nothing but a moment.

Three brokers, an idempotent producer of librdkafka with acks=all that writes to a topic of three
replicas every few milliseconds. Beside it a topic of 2,500 partitions with three replicas each is
created and deleted, and 500 partitions expire together. What counts is the longest time between
two acknowledgements, how often the writer's partition changed its leader, and its smallest
in-sync set.

On a busy machine anyone waits for the CPU. So the same writer is measured before without that
work, alone and beside as many processes that do nothing but compute as there are cores: what it
waits for then is the machine's share. Load averages stand beside all of them.

    python -m benchmarks.lite_bulk --raised    on a machine that is never quiet (Linux, as root)

gives the cluster and the writer more of the CPU than other programs have: what is left of the gap
is ours, and the machine's disk. The result says so.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from benchmarks.harness import Claim, store
from shoal.lite.cluster import LiteCluster

CLAIM = Claim(
    name="lite_bulk",
    sentence="With three brokers of Kafka Lite, a writer waits at most 500 ms while 2,500 "
    "partitions of another topic are created and deleted, and 500 expire; its leader stays, and "
    "so do its in-sync replicas.",
    packages=("confluent-kafka",),
)
MOST_MS = 500
ROUNDS = 3
PARTITIONS = 2500
EXPIRING = 500
_SEND_EVERY_S = 0.005
_ALONE_S = 10.0
_PATIENCE_S = 600.0
_STEADY = "steady"


class Writer:
    """Writes all the time, and knows when each write was acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self.acked_s: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: bool(self.acked_s))
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._producer.produce(_STEADY, b"x", partition=0, on_delivery=self._on_delivery)
            self._producer.poll(_SEND_EVERY_S)
        self._producer.flush(_PATIENCE_S)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        assert error is None, error
        self.acked_s.append(time.monotonic())

    def longest_gap_ms(self, since_s: float) -> int:
        """Between two acknowledgements, of which the later one came after a moment."""
        pairs = pairwise(self.acked_s[:])
        return round(1000 * max(after - before for before, after in pairs if after >= since_s))


class Watch:
    """The smallest in-sync set that the writer's partition had."""

    def __init__(self, admin: AdminClient) -> None:
        self.smallest = 3
        self._admin = admin
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.5):
            topic = self._admin.list_topics(_STEADY, timeout=60).topics[_STEADY]
            self.smallest = min(self.smallest, len(topic.partitions[0].isrs))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"not within {_PATIENCE_S} s"
        time.sleep(0.1)


def folders(cluster: LiteCluster, topic: str) -> int:
    return sum(
        path.name.startswith(f"{topic}-")
        for folder in cluster.log_dirs().values()
        for path in folder.iterdir()
    )


def elections(cluster: LiteCluster) -> int:
    """How often the writer's partition got another leader, by the histories of its replicas."""
    histories = (
        (folder / f"{_STEADY}-0" / "leader-epoch-checkpoint").read_text().splitlines()[2:]
        for folder in cluster.log_dirs().values()
    )
    return max(int(history[-1].split()[0]) for history in histories)


def create(admin: AdminClient, topic: str, partitions: int, **config: str) -> None:
    wish = NewTopic(topic, partitions, 3, config=config)
    admin.create_topics([wish], request_timeout=60)[topic].result(60)


def create_many(cluster: LiteCluster, admin: AdminClient) -> None:
    create(admin, "big", PARTITIONS)
    wait_until(lambda: folders(cluster, "big") == 3 * PARTITIONS)


def delete_many(cluster: LiteCluster, admin: AdminClient) -> None:
    admin.delete_topics(["big"], request_timeout=60)["big"].result(60)
    wait_until(lambda: folders(cluster, "big") == 0)


def prepare_expiry(cluster: LiteCluster, admin: AdminClient) -> None:
    create(admin, "old", EXPIRING, **{"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for index in range(EXPIRING):
        producer.produce("old", b"old", partition=index, timestamp=1)
    assert producer.flush(_PATIENCE_S) == 0


def expire_many(cluster: LiteCluster, admin: AdminClient) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, "old")
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(entry)
    admin.incremental_alter_configs([resource])[resource].result(60)
    name = "old-*/log-start-offset-checkpoint"
    wait_until(
        lambda: (
            sum(len(list(folder.glob(name))) for folder in cluster.log_dirs().values())
            == 3 * EXPIRING
        )
    )


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute."""
    with ExitStack() as stack:
        for _ in range(processes):
            command = [sys.executable, "-c", "while True: pass"]
            process = stack.enter_context(subprocess.Popen(command, start_new_session=True))
            stack.callback(process.kill)
        yield


def measure(name: str, writer: Writer, work: Callable[[], object]) -> dict[str, Any]:
    """What the writer waited for while something was done."""
    began_s = time.monotonic()
    before = round(os.getloadavg()[0], 2)
    work()
    result = {
        "work": name,
        "longest_gap_ms": writer.longest_gap_ms(began_s),
        "seconds": round(time.monotonic() - began_s, 1),
        "load_before": before,
        "load_after": round(os.getloadavg()[0], 2),
    }
    print(f"  {result}", flush=True)
    return result


def raise_priority(pids: list[int]) -> None:
    """Prefer processes to those of other sessions: Linux shares the CPU among sessions first."""
    for pid in pids:
        Path(f"/proc/{pid}/autogroup").write_text("-20")


def run_round(*, is_raised: bool) -> dict[str, Any]:
    properties = {"log.retention.check.interval.ms": "500"}
    with ExitStack() as stack:
        cluster = stack.enter_context(LiteCluster(brokers=3, properties=properties))
        admin = stack.enter_context(
            AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        )
        if is_raised:
            raise_priority([os.getpid(), *(node.pid for node in cluster.status())])
        create(admin, _STEADY, 1)
        writer = stack.enter_context(Writer(cluster.bootstrap))
        watch = stack.enter_context(Watch(admin))
        time.sleep(2)
        controls = [measure("none", writer, lambda: time.sleep(_ALONE_S))]
        with busy(os.cpu_count() or 1):
            name = "none, every core busy with something else"
            controls.append(measure(name, writer, lambda: time.sleep(_ALONE_S)))
        works = [
            measure("2,500 created", writer, lambda: create_many(cluster, admin)),
            measure("2,500 deleted", writer, lambda: delete_many(cluster, admin)),
        ]
        prepare_expiry(cluster, admin)
        works.append(measure("500 expired", writer, lambda: expire_many(cluster, admin)))
        return {
            "controls": controls,
            "works": works,
            "elections": elections(cluster),
            "smallest_in_sync": watch.smallest,
            "longest_hold_cpu_ms": {node.id: node.longest_hold_ms for node in cluster.status()},
        }


def is_within(result: dict[str, Any]) -> bool:
    longest_ms: int = max(work["longest_gap_ms"] for work in result["works"])
    is_kept: bool = result["elections"] == 0 and result["smallest_in_sync"] == 3
    return is_kept and longest_ms <= MOST_MS


def main() -> int:
    print(CLAIM.sentence, flush=True)
    is_raised = "--raised" in sys.argv[1:]
    rounds = [run_round(is_raised=is_raised) for _ in range(ROUNDS)]
    conditions = {
        "brokers": 3,
        "replication_factor": 3,
        "writes_per_s": round(1 / _SEND_EVERY_S),
        "priority": "raised" if is_raised else "normal",
    }
    holds = all(map(is_within, rounds))
    return store(CLAIM, holds=holds, conditions=conditions, rounds=rounds)


if __name__ == "__main__":
    sys.exit(main())
