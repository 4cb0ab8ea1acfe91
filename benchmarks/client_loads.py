"""The same load by clients that are not ours: librdkafka, and Apache Kafka's own perf tools.

Batches of at most 64 KiB, acks=all; librdkafka and the Java client fill them as they see fit.
"""

import re
import subprocess
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from benchmarks.harness import Work
from shoal.runtime.java import find_java
from shoal.systems.apache.files import class_path
from shoal.systems.apache.jars import NEWEST_KAFKA, fetch_jars

BATCH_BYTES = 64 * 1024
_LINGER_MS = 20
_PATIENCE_S = 300.0
_READ_AT_ONCE = 5000
# What the tool says when it is done: "488281 records sent, 60000.1 records/sec (58.59 MB/sec), …"
_JAVA_SPEED = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec .*99th", re.MULTILINE)


def rdkafka_produce(bootstrap: str, topic: str, partitions: int, total_bytes: int) -> int:
    """1 KiB records; a batch to each partition, round-robin."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "batch.size": BATCH_BYTES,
            "linger.ms": _LINGER_MS,
            "queue.buffering.max.messages": 200_000,
            "log_level": 0,
        }
    )
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    value = bytes(1024)
    record_count = total_bytes // len(value)
    for number in range(record_count):
        partition = number // 63 % partitions
        while True:
            try:
                producer.produce(topic, value, partition=partition, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(_PATIENCE_S) == 0, "not all was delivered"
    assert not failed, failed[0]
    return record_count * len(value)


def rdkafka_consume(
    bootstrap: str, topic: str, partitions: int, *, record_bytes: int, total_bytes: int
) -> int:
    """All partitions from the start, until so many bytes were read."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "benchmark", "log_level": 0}
        | {"enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        left = record_count = total_bytes // record_bytes
        while left > 0:
            # Not more than exist, or it would wait for them.
            messages = consumer.consume(min(_READ_AT_ONCE, left), timeout=30)
            assert messages, "nothing arrives"
            for message in messages:
                assert message.error() is None, message.error()
            left -= len(messages)
        return (record_count - left) * record_bytes
    finally:
        consumer.close()


def java_produce(bootstrap: str, topic: str, record_bytes: int, total_bytes: int) -> Work:
    """Apache Kafka's ProducerPerformance with its idempotent producer, as fast as it goes."""
    record_count = total_bytes // record_bytes
    options = ["--topic", topic, "--num-records", str(record_count)]
    options += ["--record-size", str(record_bytes), "--throughput", "-1", "--producer-props"]
    options += [f"bootstrap.servers={bootstrap}", "acks=all", f"batch.size={BATCH_BYTES}"]
    options += [f"linger.ms={_LINGER_MS}"]
    said = _java("org.apache.kafka.tools.ProducerPerformance", options)
    found = _JAVA_SPEED.search(said)
    assert found is not None, said
    assert int(found[1]) == record_count, said
    return Work(record_count * record_bytes, record_count / float(found[2]))


def java_consume(bootstrap: str, topic: str, record_bytes: int, total_bytes: int) -> Work:
    """Apache Kafka's ConsumerPerformance, with a group of its own."""
    record_count = total_bytes // record_bytes
    options = ["--bootstrap-server", bootstrap, "--topic", topic, "--messages", str(record_count)]
    options += ["--group", f"perf-{time.time_ns()}", "--timeout", "60000", "--hide-header"]
    said = _java("org.apache.kafka.tools.ConsumerPerformance", options)
    # start.time, end.time, MB, MB/s, messages, messages/s, rebalance ms, fetch ms, …
    columns = said.strip().splitlines()[-1].split(", ")
    assert int(columns[4]) >= record_count, said
    return Work(int(columns[4]) * record_bytes, float(columns[7]) / 1000)


def _java(main: str, options: list[str]) -> str:
    jars = fetch_jars(NEWEST_KAFKA)
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        logging = Path(folder) / "log4j2.properties"
        logging.write_text("rootLogger.level = OFF\n")
        command = [str(find_java().executable), "-Xmx512m", "-XX:-UsePerfData"]
        command += [f"-Dlog4j2.configurationFile={logging}", f"-Djava.io.tmpdir={folder}"]
        command += ["-cp", class_path(jars), main, *options]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout
