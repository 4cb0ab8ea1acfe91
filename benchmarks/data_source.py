"""The `shoal` data source reads at least twice the rows per second of Spark's Kafka connector.

Both in one session on two cores, from the same topic of 1 KiB records on the same broker, each
summing up the lengths of all values; the connector tuned as its users tune it, driver 4g. In
batch mode (`mode=batches`) ours reads at least 2.3 times the connector's bytes per second.
Every pair of runs must show it.

MB/s are what is judged here; CPU seconds (of the session and its Python, not of the broker) are
beside them. `python -m benchmarks.data_source RECORDS` takes fewer than 2 million.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import Case, Claim, Side, prove
from benchmarks.raw_load import RawProduce, batch_of, produce
from benchmarks.side_by_side import System, apache, lite
from shoal.pipeline.session import start_session, stop_session
from shoal.systems.clusters import Cluster

RECORDS = 2_000_000
RECORD_BYTES = 1024
BATCH_RECORDS = 512
# How many times the connector's speed ours must have.
ROWS_SPEED = 2.0
BATCHES_SPEED = 2.3
# https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
TUNED = {
    "kafka.max.partition.fetch.bytes": "8388608",
    "kafka.fetch.max.bytes": "67108864",
    "kafka.max.poll.records": "5000",
    "kafka.receive.buffer.bytes": "4194304",
}
CLAIM = Claim(
    name="data_source",
    sentence="Our data source reads twice the rows per second of Spark's own, and in batch mode"
    " 2.3 times the bytes.",
    bar=0.0,  # of CPU
    packages=("pyspark", "pyarrow", "numpy", "numba"),
)


def frame(session: SparkSession, kind: str, system: System, topic: str, **more: str) -> DataFrame:
    servers = {"kafka.bootstrap.servers": system.bootstrap, "subscribe": topic}
    return session.read.format(kind).options(**servers, **more).load()


def sum_lengths(rows: DataFrame, column: str) -> int:
    """How many bytes all values of a column have."""
    [row] = rows.selectExpr(f"sum(length({column})) AS bytes").collect()
    return int(row["bytes"])


def find_jvm() -> list[int]:
    gateway = SparkContext._gateway  # noqa: SLF001 - pyspark does not tell its JVM's number
    return [gateway.proc.pid] if gateway is not None else []


def cases(session: SparkSession, system: System, topic: str, records: int) -> Iterator[Case]:
    connector = frame(session, "kafka", system, topic, **TUNED)
    rows = frame(session, "shoal", system, topic)
    batches = frame(session, "shoal", system, topic, mode="batches")
    assert sum_lengths(rows, "value") == sum_lengths(connector, "value") >= records * RECORD_BYTES
    theirs = Side("Spark's connector", lambda: sum_lengths(connector, "value"), find_jvm)
    conditions = {"records": records, "bytes": RECORD_BYTES, "cores": 2, "broker": system.name}
    ours = Side("shoal, rows", lambda: sum_lengths(rows, "value"), find_jvm)
    yield Case(
        f"rows, from {system.name}",
        ours,
        theirs,
        conditions,
        least_speed=ROWS_SPEED,
        needs_every_pair=True,
    )
    ours = Side("shoal, batches", lambda: sum_lengths(batches, "bytes"), find_jvm)
    name = f"bytes in batch mode, from {system.name}"
    yield Case(name, ours, theirs, conditions, least_speed=BATCHES_SPEED, needs_every_pair=True)


def all_cases(session: SparkSession, records: int) -> Iterator[Case]:
    """One broker after the other, so that the two cores are shared with one only."""
    load = RawProduce(batch_of(BATCH_RECORDS, RECORD_BYTES), BATCH_RECORDS * RECORD_BYTES)
    brokers: dict[str, Callable[[int], AbstractContextManager[Cluster]]]
    brokers = {"Apache Kafka": apache, "Kafka Lite": lite}
    for name, start in brokers.items():
        with start(1) as cluster:
            system = System(name, cluster)
            topic = system.create_topic(1)
            produce(system.bootstrap, topic, load, records * RECORD_BYTES)
            yield from cases(session, system, topic, records)


def main(records: int) -> int:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))  # they fetch the connector too
    from support.spark.connector import connector_jars

    jars = ",".join(map(str, connector_jars()))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory 4g --jars {jars} pyspark-shell"
    # Our sessions tell the JVM not to optimise much; the connector would suffer from it.
    os.environ["_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=4"
    session = start_session("local[2]")
    try:
        return prove(CLAIM, all_cases(session, records))
    finally:
        stop_session(session)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS))
