"""The sink of the data source `shoal` on a real cluster: what Spark writes is what others read."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from shoal.client.produce.partitioner import partition_for_key
from shoal.lite.cluster import LiteCluster
from support.lite.clusters import count_partitions, create_topic

pytestmark = pytest.mark.spark

COUNT = 2000
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster() as running:
        yield running


def read(cluster: LiteCluster, topic: str, count: int) -> list[Message]:
    """That many messages of a topic, and no more, as librdkafka reads them."""
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "reader",
        "isolation.level": "read_committed",
    }
    consumer = Consumer(settings)
    try:
        partitions = range(count_partitions(cluster, topic))
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
        messages: list[Message] = []
        while len(messages) < count:
            found = consumer.consume(count, 30)
            assert found, f"{len(messages)} of {count} messages"
            messages += found
        assert consumer.consume(1, 1) == []
        return messages
    finally:
        consumer.close()


def rows_of(spark: SparkSession, count: int = COUNT) -> DataFrame:
    return spark.range(count).selectExpr(
        "if(id % 5 = 0, null, concat('k', id)) as key",
        "if(id % 7 = 0, null, concat('v', id)) as value",
        "id as unused",
    )


def options_of(cluster: LiteCluster, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap} | more


def test_every_row_is_a_message(spark: SparkSession, cluster: LiteCluster) -> None:
    create_topic(cluster, "rows", PARTITIONS, 1)
    frame = rows_of(spark).withColumnRenamed("key", "KEY")
    options = options_of(cluster, topic="rows", **{"kafka.compression.type": "zstd"})
    frame.write.format("shoal").mode("append").options(**options).save()
    messages = read(cluster, "rows", COUNT)
    found = sorted((m.key() or b"", m.value() or b"") for m in messages)
    assert found == sorted(
        (b"k%d" % i if i % 5 else b"", b"v%d" % i if i % 7 else b"") for i in range(COUNT)
    )
    keyed = [(key, message.partition()) for message in messages if (key := message.key())]
    assert all(partition == partition_for_key(key, PARTITIONS) for key, partition in keyed)


def test_columns_name_topic_partition_and_headers(
    spark: SparkSession, cluster: LiteCluster
) -> None:
    for topic in ("even", "odd"):
        create_topic(cluster, topic, PARTITIONS, 1)
    headers = "array(named_struct('key', 'n', 'value', cast('h' as binary)))"
    frame = spark.range(60).selectExpr(
        "if(id % 2 = 0, 'even', 'odd') as topic",
        "cast(id % 3 as int) as partition",
        "cast(id as string) as value",
        f"if(id < 3, null, {headers}) as headers",
    )
    frame.write.format("shoal").mode("append").options(**options_of(cluster)).save()
    for parity, topic in enumerate(("even", "odd")):
        messages = read(cluster, topic, 30)
        numbers = sorted(int(message.value() or b"") for message in messages)
        assert numbers == list(range(parity, 60, 2))
        for message in messages:
            number = int(message.value() or b"")
            assert message.partition() == number % 3
            assert message.headers() == (None if number < 3 else [("n", b"h")])


def test_a_stream_writes_every_micro_batch(
    spark: SparkSession, cluster: LiteCluster, tmp_path: Path
) -> None:
    for topic in ("in", "out"):
        create_topic(cluster, topic, PARTITIONS, 1)
    options = options_of(cluster, topic="in")
    rows_of(spark, 500).write.format("shoal").mode("append").options(**options).save()
    stream = spark.readStream.format("shoal").options(
        **options_of(
            cluster, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="200"
        )
    )
    query = (
        stream.load()
        .select("key", "value", "partition")
        .writeStream.format("shoal")
        .options(**options_of(cluster, topic="out"), checkpointLocation=str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    there, here = (read(cluster, topic, 500) for topic in ("in", "out"))
    assert len(query.recentProgress) == 3
    key = lambda m: (m.partition(), m.key() or b"", m.value() or b"")  # noqa: E731
    assert sorted(map(key, there)) == sorted(map(key, here))


def test_an_atomic_write_is_visible_when_it_is_committed(
    spark: SparkSession, cluster: LiteCluster
) -> None:
    create_topic(cluster, "atomic", PARTITIONS, 1)
    options = options_of(cluster, topic="atomic", atomic="true", name="job")
    frame = rows_of(spark, 300)
    failing = frame.selectExpr("if(unused = 299, raise_error('too old'), value) as value")
    with pytest.raises(PySparkException, match="too old"):
        failing.write.format("shoal").mode("append").options(**options).save()
    frame.where("unused >= 100").write.format("shoal").mode("append").options(**options).save()
    assert len(read(cluster, "atomic", 200)) == 200


def test_what_cannot_be_written_is_refused(spark: SparkSession, cluster: LiteCluster) -> None:
    write = rows_of(spark, 3).write.format("shoal").options(**options_of(cluster, topic="rows"))
    with pytest.raises(PySparkException, match="topics cannot be overwritten"):
        write.mode("overwrite").save()
    with pytest.raises(PySparkException, match="atomic write needs the option name"):
        write.mode("append").option("atomic", "true").save()
    create_topic(cluster, "small", 1, 1, max_message_bytes="500")
    wide = spark.range(50).selectExpr("repeat('x', 400) as value")
    options = options_of(cluster, topic="small")
    with pytest.raises(PySparkException, match="too large"):
        wide.write.format("shoal").mode("append").options(**options).save()
