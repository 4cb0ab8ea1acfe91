"""The data source `shoal` on a real cluster: what librdkafka wrote is what Spark reads."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from shoal.lite.cluster import LiteCluster
from support.lite.clusters import eventually

pytestmark = pytest.mark.spark

COUNT = 3000
PARTITIONS = 3
Row = tuple[Any, ...]


def make_written(number: int) -> tuple[bytes | None, bytes | None, Any]:
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
                key, value, headers = make_written(number)
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
        assert (key, value, headers) == make_written(number)
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


def test_filters_leave_out_what_need_not_be_read(spark: SparkSession, bootstrap: str) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    wanted = "topic = 't' AND partition IN (0, 2) AND offset >= 100 AND offset < 130"
    time_ms = 3 * 120 + 1  # of the record with number 360: partition 0, offset 120
    late = f"{wanted} AND timestamp >= timestamp_millis({time_ms})"
    plain = {
        text: sorted(map(tuple, table(spark, bootstrap).where(text).collect()), key=str)
        for text in (wanted, late)
    }
    with pytest.raises(PySparkException, match="filterPushdown"):
        table(spark, bootstrap, pushFilters="true").where(wanted).count()
    spark.conf.set(setting, "true")
    try:
        for text, rows in plain.items():
            found = table(spark, bootstrap, pushFilters="true").where(text)
            assert sorted(map(tuple, found.collect()), key=str) == rows
            assert rows
            assert found.rdd.getNumPartitions() == 2
        nothing = table(spark, bootstrap, pushFilters="true").where("topic = 'u'")
        assert nothing.collect() == []
    finally:
        spark.conf.unset(setting)


def test_an_empty_range_has_no_rows(spark: SparkSession, bootstrap: str) -> None:
    ends = '{"t":{"0":1000,"1":1000,"2":1000}}'
    assert table(spark, bootstrap, startingOffsets=ends).collect() == []
    assert table(spark, bootstrap, startingOffsets=ends, mode="batches").count() == 0


def test_a_stream_reads_everything_available_in_micro_batches(
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


@pytest.mark.parametrize(("delay", "steps"), [("1h", [3, 250]), ("1", [3, 150, 100])])
def test_a_stream_waits_until_there_is_enough(
    spark: SparkSession, bootstrap: str, delay: str, steps: list[int]
) -> None:
    topic = f"waits-{delay}"
    producer = Producer({"bootstrap.servers": bootstrap})

    def write(count: int) -> None:
        for number in range(count):
            producer.produce(topic, b"%d" % number)
        assert producer.flush(30) == 0

    write(3)
    stream = spark.readStream.format("shoal").option("kafka.bootstrap.servers", bootstrap)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "200"}
    rows = stream.option("subscribe", topic).options(maxTriggerDelay=delay, **options).load()
    seen: list[int] = []
    query = rows.writeStream.foreachBatch(lambda frame, _: seen.append(frame.count())).start()
    try:
        # The first step waits for nothing.
        eventually(lambda: seen == [3])
        write(150)
        time.sleep(2)
        eventually(lambda: seen == steps[:-1])
        write(100)
        eventually(lambda: seen == steps)
    finally:
        query.stop()


def test_a_stream_continues_with_a_recreated_topic(spark: SparkSession, bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic, old = "recreated", 2000

    def write(*values: bytes) -> None:
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0

    admin.create_topics([NewTopic(topic, 1)])[topic].result()
    write(*[b"old"] * old)
    stream = spark.readStream.format("shoal").option("kafka.bootstrap.servers", bootstrap)
    options = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    rows = stream.option("subscribePattern", topic).options(**options).load()
    seen: list[bytes] = []

    def see(frame: DataFrame, _: int) -> None:
        seen.extend(bytes(row["value"]) for row in frame.collect())

    query = rows.writeStream.foreachBatch(see).start()
    try:
        eventually(lambda: len(seen) == old)
        admin.delete_topics([topic])[topic].result()
        eventually(lambda: topic not in admin.list_topics().topics)
        admin.create_topics([NewTopic(topic, 1)])[topic].result()
        make_written = 0

        def is_read() -> bool:
            nonlocal make_written
            write(b"new-%d" % make_written)
            make_written += 1
            return seen[-1].startswith(b"new")

        eventually(is_read)
        # Far below where the old one ended.
        assert make_written < old
        eventually(lambda: seen[-1] == b"new-%d" % (make_written - 1))
    finally:
        query.stop()
    news = seen[old:]
    start = int(news[0].removeprefix(b"new-"))
    assert news == [b"new-%d" % number for number in range(start, start + len(news))]


def test_errors_are_reported(spark: SparkSession, bootstrap: str) -> None:
    with pytest.raises(PySparkException, match="does not have the topics or partitions nowhere"):
        spark.read.format("shoal").option("kafka.bootstrap.servers", bootstrap).option(
            "subscribe", "nowhere"
        ).load().count()
    with pytest.raises(PySparkException, match="offsets by partition must name each"):
        table(spark, bootstrap, startingOffsets='{"t":{"0":5}}').count()
