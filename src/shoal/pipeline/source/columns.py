"""From record batches to Arrow, column at a time.

Two shapes: records, with the columns of Spark's own Kafka connector, and batches, with the
fields of their headers and their bytes as they are.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shoal.model.topics import TopicPartition
from shoal.wire.batch import LOG_APPEND_TIME, Batch
from shoal.wire.columns import ByteColumn, decode_columns, gather_columns
from shoal.wire.compression import Codec

RECORD_SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint,"
    " timestamp timestamp, timestampType int"
)
HEADERS_SCHEMA: Final = ", headers array<struct<key: string, value: binary>>"
BATCH_SCHEMA: Final = (
    "topic string, partition int, baseOffset bigint, lastOffset bigint, records int,"
    " leaderEpoch int, codec string, timestampType int, baseTimestamp timestamp,"
    " maxTimestamp timestamp, producerId bigint, producerEpoch int, baseSequence int,"
    " isTransactional boolean, isControl boolean, crc bigint, bytes binary"
)
_TIME: Final = pa.timestamp("us", "UTC")


def record_rows(
    log: TopicPartition, batches: Sequence[Batch], *, start: int, end: int, headers: bool
) -> Any:
    """The records of these batches with offsets from `start` up to `end`."""
    records = decode_columns(batches)
    counts = [batch.record_count for batch in batches]
    types = np.array([int(batch.timestamp_type == LOG_APPEND_TIME) for batch in batches], np.int32)
    wanted = (records.offset >= start) & (records.offset < end)
    rows = slice(None) if wanted.all() else np.flatnonzero(wanted)
    offsets = records.offset[rows]
    columns = {
        "key": _binary(records.keys(), rows),
        "value": _binary(records.values(), rows),
        "topic": pa.repeat(log.topic, len(offsets)),
        "partition": pa.repeat(pa.scalar(log.partition, pa.int32()), len(offsets)),
        "offset": pa.array(offsets),
        "timestamp": _times(records.timestamp[rows]),
        "timestampType": pa.array(np.repeat(types, counts)[rows]),
    }
    if headers:
        places = range(len(records)) if isinstance(rows, slice) else rows.tolist()
        columns["headers"] = pa.array(
            [[{"key": k, "value": v} for k, v in records.headers(i)] or None for i in places],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        )
    return pa.RecordBatch.from_pydict(columns)


def _binary(column: ByteColumn, rows: Any) -> Any:
    """Byte strings that lie apart as one Arrow array."""
    chosen = ByteColumn(column.data, column.start[rows], column.length[rows])
    data, offsets = gather_columns(chosen)
    is_null = chosen.length < 0
    bits = np.packbits(~is_null, bitorder="little") if is_null.any() else None
    buffers = [None if bits is None else pa.py_buffer(bits)]
    buffers += [pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(chosen.length), buffers)


def _times(milliseconds: Any) -> Any:
    """Kafka's times as Arrow's; a record without one has none."""
    return pa.array(milliseconds * 1000, _TIME, mask=milliseconds < 0)


def batch_rows(log: TopicPartition, batches: Sequence[Batch]) -> Any:
    """One row for each batch."""

    def column(name: str, kind: Any) -> Any:
        return pa.array([getattr(batch, name) for batch in batches], kind)

    count = len(batches)
    times = {name: column(name, pa.int64()) for name in ("base_timestamp", "max_timestamp")}
    columns = {
        "topic": pa.repeat(log.topic, count),
        "partition": pa.repeat(pa.scalar(log.partition, pa.int32()), count),
        "baseOffset": column("base_offset", pa.int64()),
        "lastOffset": column("last_offset", pa.int64()),
        "records": column("record_count", pa.int32()),
        "leaderEpoch": column("leader_epoch", pa.int32()),
        "codec": pa.array([Codec(batch.codec).name.lower() for batch in batches], pa.string()),
        "timestampType": column("timestamp_type", pa.int32()),
        "baseTimestamp": _times(times["base_timestamp"].to_numpy()),
        "maxTimestamp": _times(times["max_timestamp"].to_numpy()),
        "producerId": column("producer_id", pa.int64()),
        "producerEpoch": column("producer_epoch", pa.int32()),
        "baseSequence": column("base_sequence", pa.int32()),
        "isTransactional": column("is_transactional", pa.bool_()),
        "isControl": column("is_control", pa.bool_()),
        "crc": column("crc", pa.int64()),
        "bytes": pa.array([batch.view for batch in batches], pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)
