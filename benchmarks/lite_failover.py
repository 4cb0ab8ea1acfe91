"""Claim: a killed leader costs at most a second; one that hangs, its session and a second.

From SIGKILL (or SIGSTOP) of the broker that leads a partition to the next write to that
partition that is acknowledged, three brokers, three replicas, acks=all, by an idempotent
producer of librdkafka that sends all the time. Supervisor and brokers are on one machine, so a
death is known at once; a broker that hangs is fenced when its session ends.

Apache Kafka is measured too, with its defaults: it detects dead brokers by sessions only.
"""

import statistics
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from benchmarks.harness import LEAST_PAIRS, Claim, store
from benchmarks.side_by_side import System, both

CLAIM = Claim(
    name="lite_failover",
    sentence="With three brokers of Kafka Lite, writes go on within 1 s of a leader's death, and "
    "within its session time-out and 1 s of a leader's pause.",
    packages=("confluent-kafka",),
)
MOST_S = 1.0
# Kafka's own default, and ours.
SESSION_S = 9.0
_SEND_EVERY_S = 0.01
_PATIENCE_S = 60.0


class Writer:
    """Writes to one partition continuously, and knows when the last write was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                # By default it waits up to 60 s for a broker that hangs, and up to 10 s before it
                # tries one again that was away: what is measured is the cluster, not its client.
                "socket.timeout.ms": 1000,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._topic = topic
        # When the writes that were sent last, and acknowledged, were sent.
        self._acked_sent_s = 0.0
        self._acked_s = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            sent_s = time.monotonic()

            def on_delivery(error: KafkaError | None, _: Message, sent_s: float = sent_s) -> None:
                assert error is None, error
                self._acked_sent_s, self._acked_s = sent_s, time.monotonic()

            self._producer.produce(self._topic, b"x", partition=0, on_delivery=on_delivery)
            self._producer.poll(_SEND_EVERY_S)
        self._producer.flush(_PATIENCE_S)

    def next_ack_s(self, after_s: float) -> float:
        """How long after a moment the first write that was sent after it was acknowledged."""
        deadline = time.monotonic() + _PATIENCE_S
        while self._acked_sent_s <= after_s:
            assert time.monotonic() < deadline, "no write is acknowledged any more"
            time.sleep(0.001)
        return self._acked_s - after_s


def leader_of(system: System, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 0})
    return int(admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader)


def wait_for_all(system: System, topic: str) -> None:
    """Wait until every replica is in sync again."""
    admin = AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 0})
    deadline = time.monotonic() + _PATIENCE_S
    while len(admin.list_topics(topic, timeout=30).topics[topic].partitions[0].isrs) < 3:
        assert time.monotonic() < deadline, "a replica does not come back"
        time.sleep(0.1)


def measure_kills(system: System, times: int) -> list[float]:
    """Kill the leader `times` times; return the seconds until writes continued."""
    return _measure_faults(system, times, system.cluster.kill, system.cluster.restart)


def measure_pauses(system: System, times: int) -> list[float]:
    """Pause the leader `times` times; return the seconds until writes continued."""
    return _measure_faults(system, times, system.cluster.pause, system.cluster.resume)


def _measure_faults(
    system: System, times: int, harm: Callable[[int], None], mend: Callable[[int], None]
) -> list[float]:
    topic = system.create_topic(3, 1)
    seconds = []
    with Writer(system.bootstrap, topic) as writer:
        for _ in range(times):
            writer.next_ack_s(time.monotonic())
            leader = leader_of(system, topic)
            at_s = time.monotonic()
            harm(leader)
            seconds.append(round(writer.next_ack_s(at_s), 3))
            mend(leader)
            wait_for_all(system, topic)
    return seconds


def main() -> int:
    print(CLAIM.sentence, flush=True)
    with both(3) as (ours, theirs):
        ours_killed = measure_kills(ours, 2 * LEAST_PAIRS)
        theirs_killed = measure_kills(theirs, 3)
        ours_paused = measure_pauses(ours, 3)
        theirs_paused = measure_pauses(theirs, 3)
    result: dict[str, Any] = {
        "ours": {"killed": _summary(ours_killed), "paused": _summary(ours_paused)},
        "theirs": {"killed": _summary(theirs_killed), "paused": _summary(theirs_paused)},
    }
    for name, values in result.items():
        print(f"  {name}: {values}")
    holds = (
        result["ours"]["killed"]["most_s"] <= MOST_S
        and result["ours"]["paused"]["most_s"] <= SESSION_S + MOST_S
    )
    conditions = {"brokers": 3, "replication_factor": 3, "session_s": SESSION_S}
    return store(CLAIM, holds=holds, conditions=conditions, **result)


def _summary(seconds: list[float]) -> dict[str, Any]:
    return {
        "median_s": round(statistics.median(seconds), 3),
        "most_s": max(seconds),
        "seconds": seconds,
    }


if __name__ == "__main__":
    sys.exit(main())
