"""Scans as tasks of Spark: the same rows as one process reads, in ranges and after a lost try."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster
from shoal.model.topics import TopicPartition
from shoal.pipeline.scans import SparkScanner, pack
from shoal.workers.specs import Role, WorkerSpec
from shoal.workload.receive.scan import LogBounds
from shoal.workload.record.ledger import CommitLog, LedgerFolder, create_run, open_run
from shoal.workload.specs import ScanSpec
from support.experiment.workload_bench import PARTITIONS, PLAN, STARTS, TOPIC, Bench

pytestmark = pytest.mark.spark

TABLES = ("log", "control_ranges", "batches", "scans")


def test_large_logs_are_cut_and_small_ones_share_tasks() -> None:
    def bounds(*sizes: int) -> dict[TopicPartition, LogBounds]:
        logs = {TopicPartition("t", number): size for number, size in enumerate(sizes)}
        return {tp: LogBounds(5, 5 + size, "", False) for tp, size in logs.items()}

    def sizes(packed: Any) -> list[list[int]]:
        return [[part.end - part.start for part in parts] for parts in packed]

    assert sizes(pack(bounds(25, 10, 0, 3), 10, tasks=2)) == [[8], [8], [9], [10, 0], [3]]
    assert sizes(pack(bounds(1, 1, 1), 10, tasks=9)) == [[1], [1], [1]]
    assert pack({}, 10, tasks=3) == []


def test_ranges_give_the_rows_of_the_whole_log(spark: SparkSession, tmp_path: Path) -> None:
    with LiteCluster() as kafka:
        asyncio.run(produce(kafka.bootstrap, tmp_path / "one"))
        write_transactions(kafka.bootstrap)
        spec = ScanSpec("r1", "source", (TOPIC,), STARTS, batches=True)
        whole = scan(spark, kafka.bootstrap, spec, tmp_path / "whole", 1 << 40)
        parts = scan(spark, kafka.bootstrap, spec, tmp_path / "parts", 40)
    workers = {line["worker"] for line in segments(parts, "log")}
    assert len(workers) > 11  # a log has parts on both sides of the tenth
    assert workers > {"scan-source-part-05", "scan-source-part-10"}
    # The ledger has every log in its own order, or the audit would read it a second time.
    for partition in range(PARTITIONS):
        offsets = [row["offset"] for row in log_rows(parts) if row["partition"] == partition]
        assert offsets == sorted(offsets), partition
    for table in TABLES:
        assert rows(whole, table) == rows(parts, table), table
    assert len(rows(whole, "log")) == 1000
    assert len(rows(whole, "scans")) == PARTITIONS
    ranges = [json.loads(row) for row in rows(whole, "control_ranges")]
    assert sum(row["high"] - row["low"] for row in ranges) == 2
    assert foreign(whole) == foreign(parts) == 2


def test_a_cluster_that_does_not_answer_is_recorded(spark: SparkSession, tmp_path: Path) -> None:
    spec = ScanSpec("r1", "source", (TOPIC,), STARTS)
    run = scan(spark, "127.0.0.1:1", spec, tmp_path / "run", 60)
    [line] = [line for line in run.commits if line["kind"] == "ended"]
    assert (line["worker"], line["reason"]) == ("scan-source", "failed")
    assert "127.0.0.1:1" in line["error"]
    assert not rows(run, "scans")


async def produce(bootstrap: str, folder: Path) -> None:
    async with Client({"bootstrap.servers": bootstrap}) as client:
        await client.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    bench = Bench(folder, bootstrap)
    await bench.produce_and_consume(bench.spec(rate_per_s=8000.0))
    bench.log.close()


def write_transactions(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(60)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(TOPIC, value=b"foreign", partition=0)
        assert producer.flush(60) == 0
        end(60)


def scan(
    spark: SparkSession, bootstrap: str, spec: ScanSpec, folder: Path, offsets: int
) -> LedgerFolder:
    create_run(folder, PLAN)
    client = {"bootstrap.servers": bootstrap, "default.api.timeout.ms": "5000"}
    worker = WorkerSpec("scan-source", Role.SCAN, {"client": client, "spec": spec.to_json()})
    seen: list[tuple[int, int]] = []
    with CommitLog(folder) as log:
        SparkScanner(spark, offsets_per_part=offsets).scan(
            folder, [worker], commit=log.append, report=lambda *counts: seen.append(counts)
        )
    assert all(done <= count for done, count in seen)
    return open_run(folder)


def segments(run: LedgerFolder, table: str) -> list[dict[str, Any]]:
    return [line for line in run.commits if line.get("table") == table]


def log_rows(run: LedgerFolder) -> list[dict[str, Any]]:
    return list(run.read("log").to_pylist())


def rows(run: LedgerFolder, table: str) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in run.read(table).to_pylist())


def foreign(run: LedgerFolder) -> int:
    return sum(line["count"] for line in run.commits if line["kind"] == "foreign")
