"""Claim: from producer to consumer a message takes at most twice as long as with Apache Kafka.

The 99th percentile at 1,000 messages of 1 KiB per second, three brokers, three replicas,
acks=all, by librdkafka without lingering; producer and consumer are processes of their own, the
same for both clusters. A message carries the time at which it was meant to be sent, so that a
sender that is held up does not hide it.
"""

import statistics
import struct
import subprocess
import sys
import time
from array import array
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.harness import LEAST_PAIRS, Claim, store
from benchmarks.side_by_side import System, both

CLAIM = Claim(
    name="lite_latency",
    sentence="End to end, the 99th percentile at 1,000 messages per second with three brokers and "
    "acks=all is at most twice that of Apache Kafka.",
    packages=("confluent-kafka",),
)
MOST_TIMES = 2.0
PER_SECOND = 1000
PARTITIONS = 6
_WARM_UP_S = 3
_RUN_S = 10
_TIME = struct.Struct("=q")
_PADDING = bytes(1024 - _TIME.size)


def produce(bootstrap: str, topic: str, seconds: int) -> None:
    """What the sending process does."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    )
    producer.list_topics(topic, timeout=30)
    start_ns = time.monotonic_ns() + 200_000_000
    for number in range(seconds * PER_SECOND):
        due_ns = start_ns + number * 1_000_000_000 // PER_SECOND
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            producer.poll(0)
            time.sleep(min(left_ns, 500_000) / 1e9)
        producer.produce(topic, _TIME.pack(due_ns) + _PADDING, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def consume(bootstrap: str, topic: str, count: int) -> None:
    """What the receiving process does: prints the latencies in microseconds, as bytes."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "latency", "log_level": 0}
        | {"enable.auto.commit": False, "fetch.wait.max.ms": 500}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    latencies_us = array("q")
    while len(latencies_us) < count:
        message = consumer.poll(30)
        assert message is not None, "nothing arrives"
        assert message.error() is None, message.error()
        (due_ns,) = _TIME.unpack_from(message.value() or b"")
        latencies_us.append((time.monotonic_ns() - due_ns) // 1000)
    consumer.close()
    sys.stdout.buffer.write(latencies_us.tobytes())


def measure_latency(system: System, seconds: int) -> dict[str, float]:
    """One run; latencies in milliseconds."""
    topic = system.create_topic(3, PARTITIONS)
    found = measure_between((system.bootstrap, topic), (system.bootstrap, topic), seconds)
    system.delete_topic(topic)
    return found


def measure_between(
    sent_to: tuple[str, str], read_from: tuple[str, str], seconds: int
) -> dict[str, float]:
    """One run from a new topic to another, or the same; each is a cluster and a name."""
    count = seconds * PER_SECOND
    consumer = subprocess.Popen(_command("consume", *read_from, count), stdout=subprocess.PIPE)
    with consumer:
        subprocess.run(_command("produce", *sent_to, seconds), check=True)
        assert consumer.stdout is not None
        latencies_us = array("q")
        latencies_us.frombytes(consumer.stdout.read())
    assert len(latencies_us) == count, f"{len(latencies_us)} of {count} messages"
    cuts = statistics.quantiles(latencies_us, n=1000)
    return {
        "p50_ms": round(cuts[499] / 1000, 2),
        "p99_ms": round(cuts[989] / 1000, 2),
        "p999_ms": round(cuts[998] / 1000, 2),
        "max_ms": round(max(latencies_us) / 1000, 2),
    }


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.lite_latency", *map(str, words)]


def main() -> int:
    print(CLAIM.sentence, flush=True)
    runs: dict[str, list[dict[str, float]]] = {}
    with both(3) as systems:
        for system in systems:
            for _ in range(3):
                measure_latency(system, _WARM_UP_S)
        for _ in range(LEAST_PAIRS):
            for system in systems:
                runs.setdefault(system.name, []).append(measure_latency(system, _RUN_S))
                print(f"  {system.name}: {runs[system.name][-1]}", flush=True)
    ours, theirs = runs.values()
    ratios = [o["p99_ms"] / t["p99_ms"] for o, t in zip(ours, theirs, strict=True)]
    result: dict[str, Any] = {
        "p99_times_median": round(statistics.median(ratios), 2),
        "p99_times_interval": [round(min(ratios), 2), round(max(ratios), 2)],
        "ours": _medians(ours) | {"runs": ours},
        "theirs": _medians(theirs) | {"runs": theirs},
    }
    print(f"  p99 {result['p99_times_median']} times that of Apache Kafka")
    conditions = {
        "brokers": 3,
        "replication_factor": 3,
        "partitions": PARTITIONS,
        "messages_per_s": PER_SECOND,
        "run_s": _RUN_S,
    }
    holds = result["p99_times_median"] <= MOST_TIMES
    return store(CLAIM, holds=holds, conditions=conditions, pairs=len(ours), **result)


def _medians(runs: list[dict[str, float]]) -> dict[str, Any]:
    return {what: round(statistics.median(run[what] for run in runs), 2) for what in runs[0]}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["produce", bootstrap, topic, seconds]:
            produce(bootstrap, topic, int(seconds))
        case ["consume", bootstrap, topic, count]:
            consume(bootstrap, topic, int(count))
        case _:
            sys.exit(main())
