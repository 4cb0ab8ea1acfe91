"""Atomic writes whose driver is killed at every step: all rows become visible, or none."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from shoal.lite.cluster import LiteCluster
from shoal.systems.apache.apache import ApacheCluster
from support.lite.clusters import create_topic
from support.sizes import size_cases
from support.spark.atomic_driver import PARTITIONS, ROWS_OF_TASKS

TESTS = Path(__file__).parents[1]
TOTAL = sum(ROWS_OF_TASKS)


def kill_at_every_step(bootstrap: str, topic: str, every: int) -> list[dict[str, int]]:
    """Run the drivers; one entry for each."""
    ran = subprocess.run(
        [sys.executable, "-m", "support.spark.atomic_driver", bootstrap, topic, "job", str(every)],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def read_committed(bootstrap: str, topic: str) -> dict[int, int]:
    """How many rows of each driver librdkafka sees, after it has reached every end."""
    found: dict[int, int] = defaultdict(int)
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
        ends = {
            p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1]
            for p in range(PARTITIONS)
        }
        at_end: set[int] = set()
        while len(at_end) < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None, "a transaction is still open"
            error = message.error()
            if error is None:
                found[int((message.value() or b"").split(b":")[0])] += 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                partition = message.partition()
                assert partition is not None
                assert message.offset() == ends[partition], "a transaction is still open"
                at_end.add(partition)
    finally:
        consumer.close()
    return dict(found)


def check(bootstrap: str, topic: str, every: int) -> None:
    drivers = kill_at_every_step(bootstrap, topic, every)
    found = read_committed(bootstrap, topic)
    killed = [driver for driver in drivers if not driver["has_ended"]]
    visible = [driver["number"] in found for driver in killed]
    assert set(found.values()) == {TOTAL}, found
    assert all(driver["number"] in found for driver in drivers if driver["has_ended"])
    # Both happen, and nothing that is decided is forgotten at a later step.
    assert {True, False} == set(visible)
    unsent = [is_in for driver, is_in in zip(killed, visible, strict=True) if not driver["is_sent"]]
    assert unsent == sorted(unsent)


@size_cases("every", quick=6, long=1)
def test_a_killed_driver_leaves_everything_or_nothing(every: int) -> None:
    with LiteCluster() as cluster:
        create_topic(cluster, "t", PARTITIONS, 1)
        check(cluster.bootstrap, "t", every)


@pytest.mark.apache
def test_a_killed_driver_leaves_everything_or_nothing_at_apache_kafka(
    apache_cluster: ApacheCluster,
) -> None:
    create_topic(apache_cluster, "atomic-writes", PARTITIONS, 1)
    check(apache_cluster.bootstrap, "atomic-writes", every=6)
