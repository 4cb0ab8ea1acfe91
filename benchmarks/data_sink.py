"""The `shoal` sink writes at least 1.5 times the rows per second of Spark's Kafka connector.

Both in one session on two cores, the same rows of 1 KiB with a key, made by Spark, into topics of
one partition on the same broker; the connector with the batches of a tuned producer, driver 4g.

Rows per second are what is judged here; CPU seconds (of the session and its Python, not of the
broker) are beside them. `python -m benchmarks.data_sink ROWS` writes fewer than 1 million.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.data_source import RECORD_BYTES, find_jvm
from benchmarks.harness import Case, Claim, Side, prove
from benchmarks.side_by_side import System, apache, lite
from shoal.pipeline.session import start_session, stop_session
from shoal.systems.clusters import Cluster

ROWS = 1_000_000
TASKS = 4
# Larger batches than the default of 16 KiB, and time to fill them: the connector is faster so.
TUNED = {
    "kafka.batch.size": "262144",
    "kafka.linger.ms": "20",
    "kafka.buffer.memory": "67108864",
}
CLAIM = Claim(
    name="data_sink",
    sentence="Our sink writes 1.5 times the rows per second of Spark's own.",
    bar=0.0,  # of CPU
    packages=("pyspark", "pyarrow", "numpy", "numba"),
)


def make_rows(session: SparkSession, count: int) -> DataFrame:
    return session.range(0, count, 1, TASKS).selectExpr(
        "cast(id as string) as key", f"repeat('x', {RECORD_BYTES}) as value"
    )


def write(rows: DataFrame, count: int, options: dict[str, str], kind: str) -> int:
    """Write all rows; returns the bytes of their values."""
    rows.write.format(kind).mode("append").options(**options).save()
    return count * RECORD_BYTES


def all_cases(session: SparkSession, count: int) -> Iterator[Case]:
    """One broker after the other, so that the two cores are shared with one only."""
    rows = make_rows(session, count)
    brokers: dict[str, Callable[[int], AbstractContextManager[Cluster]]]
    brokers = {"Apache Kafka": apache, "Kafka Lite": lite}
    for name, start in brokers.items():
        with start(1) as cluster:
            system = System(name, cluster)
            to = {"kafka.bootstrap.servers": system.bootstrap, "topic": system.create_topic(1)}
            conditions = {"rows": count, "bytes": RECORD_BYTES, "tasks": TASKS, "broker": name}
            ours = Side("shoal", partial(write, rows, count, to, "shoal"), find_jvm)
            by_connector = partial(write, rows, count, to | TUNED, "kafka")
            theirs = Side("Spark's connector", by_connector, find_jvm)
            yield Case(
                *(f"rows, to {name}", ours, theirs, conditions),
                least_speed=1.5,
                needs_every_pair=True,
            )


def main(count: int) -> int:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))  # they fetch the connector too
    from support.spark.connector import connector_jars

    jars = ",".join(map(str, connector_jars()))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory 4g --jars {jars} pyspark-shell"
    # Our sessions tell the JVM not to optimise much; the connector would suffer from it.
    os.environ["_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=4"
    session = start_session("local[2]")
    try:
        return prove(CLAIM, all_cases(session, count))
    finally:
        stop_session(session)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS))
