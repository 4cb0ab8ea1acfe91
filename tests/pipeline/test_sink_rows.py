"""Rows to record batches, before anything is sent: partitions, order, sizes, bytes."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from shoal.client.produce.partitioner import murmur2, partition_for_key
from shoal.model.errors import ConfigError, UsageError
from shoal.model.topics import TopicPartition
from shoal.pipeline.sink.options import parse_write
from shoal.pipeline.sink.rows import SinkRows, StickyRows
from shoal.wire.batch import Batch
from shoal.wire.records.columns import ByteColumn, hash_keys
from shoal.wire.records.records import Record, decode_records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COUNTS = {"a": 3, "b": 7}
SERVERS = {"kafka.bootstrap.servers": "h:1"}


def schema(columns: str) -> StructType:
    found = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        found = found.add(name, kind)
    return found


rows_of_tables = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from(["a", "b"]),
            "key": st.none() | st.binary(max_size=9),
            "value": st.none() | st.binary(max_size=60),
            "partition": st.none() | st.integers(0, 2),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries(
                    {"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}
                ),
                max_size=2,
            ),
        }
    ),
    min_size=1,
    max_size=40,
)


def arrow(rows: list[dict[str, Any]], binary: Any) -> Any:
    types = {"topic": pa.string(), "key": binary, "value": binary}
    types |= {"partition": pa.int32(), "headers": HEADERS}
    return pa.table(
        {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
    )


def encode(
    rows: Any, topic: str | None = None, *, batch_bytes: int = 200
) -> dict[Any, list[Record]]:
    """What the batches of these rows contain, by partition."""
    columns = SinkRows(rows, topic)
    partitions = columns.choose_partitions(COUNTS, StickyRows(), batch_bytes)
    found: dict[TopicPartition, list[Record]] = {}
    for batch in columns.encode(partitions, codec=4, batch_bytes=batch_bytes, now_ms=77):
        records = decode_records(Batch(memoryview(batch.content)))
        assert len(records) == batch.records
        found.setdefault(batch.log, []).extend(records)
    return found


@given(rows_of_tables, st.sampled_from([pa.binary(), pa.large_binary()]), st.integers(0, 5))
def test_every_row_is_a_record_of_its_partition_in_order(
    rows: list[dict[str, Any]], binary: Any, skipped: int
) -> None:
    table = arrow(rows, binary).combine_chunks().to_batches()[0].slice(min(skipped, len(rows) - 1))
    rows = rows[min(skipped, len(rows) - 1) :]
    found = encode(table)
    for log, records in found.items():
        assert 0 <= log.partition < COUNTS[log.topic]
        assert {record.timestamp for record in records} == {77}
    expected: dict[TopicPartition, list[Any]] = {}
    free: dict[str, list[Any]] = {}
    for row in rows:
        headers = tuple((h["key"], h["value"]) for h in row["headers"] or ())
        content = (row["key"], row["value"], headers)
        partition = row["partition"]
        if partition is None and row["key"] is not None:
            partition = partition_for_key(row["key"], COUNTS[row["topic"]])
        if partition is None:
            free.setdefault(row["topic"], []).append(content)
        else:
            expected.setdefault(TopicPartition(row["topic"], partition), []).append(content)
    for log, records in found.items():
        left = [(r.key, r.value, r.headers) for r in records]
        for content in expected.pop(log, []):
            # In the order of the rows; those in between had no partition and no key.
            while left[0] != content:
                free[log.topic].remove(left.pop(0))
            left.pop(0)
        for content in left:
            free[log.topic].remove(content)
    assert not expected
    assert not any(free.values())


@given(st.lists(st.none() | st.binary(max_size=20)))
def test_keys_hash_as_in_kafka(keys: list[bytes | None]) -> None:
    expected = [-1 if key is None else murmur2(key) & 0x7FFFFFFF for key in keys]
    assert hash_keys(ByteColumn.of_list(keys)).tolist() == expected


def test_a_key_outside_of_its_data_is_refused() -> None:
    column = ByteColumn(np.zeros(3, np.uint8), np.array([1]), np.array([3]))
    with pytest.raises(UsageError, match="key 0"):
        hash_keys(column)


def test_batches_have_their_size_and_large_rows_are_alone() -> None:
    values = [b"x" * 50] * 10 + [b"y" * 5000] + [b"x" * 50] * 3
    rows = SinkRows(pa.table({"value": pa.array(values)}).to_batches()[0], "a")
    batches = list(rows.encode(np.zeros(len(values), int), codec=0, batch_bytes=200, now_ms=1))
    assert [batch.records for batch in batches] == [3, 2, 3, 2, 1, 2, 1]


def test_rows_without_a_key_fill_one_partition_after_the_other() -> None:
    sticky, seen = StickyRows(), []
    for _ in range(30):
        seen += sticky.take("a", np.full(10, 100), 3, 1000).tolist()
    changes = [b for a, b in itertools.pairwise(seen) if a != b]
    assert len(changes) in {29, 30}
    assert all(b == (a + 1) % 3 for a, b in itertools.pairwise(changes))


@pytest.mark.parametrize("partition", [3, -1])
def test_a_partition_that_does_not_exist_is_refused(partition: int) -> None:
    table = pa.table({"value": pa.array([b""]), "partition": pa.array([partition], pa.int32())})
    with pytest.raises(ConfigError, match="names partition"):
        encode(table.to_batches()[0], "a")


def test_a_row_without_a_topic_is_refused() -> None:
    table = pa.table({"value": pa.array([b""]), "topic": pa.array([None], pa.string())})
    with pytest.raises(ConfigError, match="no topic"):
        encode(table.to_batches()[0])
    assert set(encode(table.to_batches()[0], "a")) <= {TopicPartition("a", p) for p in range(3)}


@pytest.mark.parametrize(
    ("options", "columns", "named"),
    [
        ({}, "value binary", "column topic"),
        ({"topic": "t"}, "key binary", "column value"),
        ({"topic": "t"}, "value integer", "column value is int"),
        ({"topic": "t"}, "value binary, partition long", "column partition is bigint"),
        ({"topic": "t"}, "value binary, headers string", "column headers"),
        ({"topics": "t"}, "value binary", "option topics is unknown"),
        ({"topic": "t", "kafka.value.serializer": "x"}, "value binary", "value.serializer"),
        ({"topic": "t", "atomic": "true"}, "value binary", "option name"),
        ({"topic": "t", "atomic": "true", "name": "a/b"}, "value binary", "option name"),
        ({"topic": "t", "atomic": "perhaps"}, "value binary", "atomic must be"),
    ],
)
def test_a_bad_write_is_refused_before_it_begins(
    options: dict[str, str], columns: str, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_write(SERVERS | options, schema(columns))


def test_a_stream_is_not_atomic() -> None:
    options = SERVERS | {"topic": "t", "atomic": "true", "name": "n"}
    with pytest.raises(ConfigError, match="for tables only"):
        parse_write(options, schema("value binary"), is_stream=True)
    query = parse_write(options, schema("VALUE binary, more integer"))
    assert (query.name, query.properties["transaction.timeout.ms"]) == ("n", "900000")
