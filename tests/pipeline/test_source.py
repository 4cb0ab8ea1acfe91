"""The data source `shoal` on a real cluster: what librdkafka wrote is what Spark reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from shoal.lite.cluster import LiteCluster

pytestmark = pytest.mark.spark

COUNT = 3000
PARTITIONS = 3
Row = tuple[Any, ...]


def written(number: int) -> tuple[bytes | None, bytes | None, Any]:
    key = None if number % 7 == 0 else b"k%d" % number
    value = None if number % 11 == 0 else b"v%d" % number * (number % 40)
    return key, value, [("a", b"%d" % number), ("b", b"")] if number % 5 == 0 else None


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LiteCluster() as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        # The timestamps below are long past: they say which message is which.
        topic = NewTopic("t", PARTITIONS, config={"retention.ms": "-1"})
        for future in admin.create_topics([topic]).values():
            future.result()
        for codec in ("none", "zstd"):
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec})
            for number in range(0 if codec == "none" else 1, COUNT, 2):
                key, value, headers = written(number)
                producer.produce(
                    "t",
                    value,
                    key,
                    partition=number % PARTITIONS,
                    headers=headers,
                    timestamp=number + 1,  # 0 would mean now
                )
            assert producer.flush(30) == 0
        yield cluster.bootstrap


def table(spark: SparkSession, bootstrap: str, **options: str) -> DataFrame:
    reader = spark.read.format("shoal").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", "t").options(**options).load()


def test_every_record_is_a_row(spark: SparkSession, bootstrap: str) -> None:
    rows = table(spark, bootstrap, includeHeaders="true", minPartitions="7").collect()
    assert len(rows) == COUNT
    assert len({(row["partition"], row["offset"]) for row in rows}) == COUNT
    found = set()
    for row in rows:
        number = round(row["timestamp"].timestamp() * 1000) - 1
        headers = row["headers"] and [(h["key"], bytes(h["value"])) for h in row["headers"]]
        key, value = (part if part is None else bytes(part) for part in (row["key"], row["value"]))
        assert (key, value, headers) == written(number)
        assert (row["topic"], row["partition"], row["timestampType"]) == ("t", number % 3, 0)
        found.add(number)
    assert found == set(range(COUNT))


def test_batches_are_rows_once_however_they_are_cut(spark: SparkSession, bootstrap: str) -> None:
    whole = table(spark, bootstrap, mode="batches").selectExpr("sum(records)", "count(*)")
    cut = table(spark, bootstrap, mode="batches", minPartitions="20")
    assert cut.selectExpr("sum(records)", "count(*)").collect() == whole.collect()
    assert {row["codec"] for row in cut.select("codec").distinct().collect()} == {"none", "zstd"}


def test_offsets_bound_the_rows(spark: SparkSession, bootstrap: str) -> None:
    bounds = {
        "startingOffsets": '{"t":{"0":5,"1":-2,"2":990}}',
        "endingOffsets": '{"t":{"0":8,"1":4,"2":-1}}',
    }
    rows = table(spark, bootstrap, **bounds).select("partition", "offset").collect()
    expected = [(0, o) for o in range(5, 8)] + [(1, o) for o in range(4)]
    assert sorted(map(tuple, rows)) == expected + [(2, o) for o in range(990, 1000)]


def test_where_nothing_is_there_are_no_rows(spark: SparkSession, bootstrap: str) -> None:
    assert table(spark, bootstrap, startingOffsets="latest").collect() == []
    assert table(spark, bootstrap, startingOffsets="latest", mode="batches").count() == 0


def test_a_stream_reads_all_that_is_there_in_steps(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format("shoal")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "t")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "1100")
        .load()
    )
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    assert [progress["numInputRows"] for progress in query.recentProgress] == [1100, 1100, 800]
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert rows.select("partition", "offset").distinct().count() == COUNT


def test_what_cannot_be_read_is_said(spark: SparkSession, bootstrap: str) -> None:
    with pytest.raises(PySparkException, match="not on this cluster: nowhere"):
        spark.read.format("shoal").option("kafka.bootstrap.servers", bootstrap).option(
            "subscribe", "nowhere"
        ).load().count()
    with pytest.raises(PySparkException, match="offsets by partition must name each"):
        table(spark, bootstrap, startingOffsets='{"t":{"0":5}}').count()
