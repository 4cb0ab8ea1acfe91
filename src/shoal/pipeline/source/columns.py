"""From record batches to Arrow, column at a time.

Two shapes: records, with the columns of Spark's own Kafka connector, and batches, with the
fields of their headers and their bytes as they are.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shoal.model.topics import TopicPartition
from shoal.wire.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    LOG_APPEND_TIME,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Batch,
)
from shoal.wire.columns import ByteColumn, decode_columns, gather_columns, header_columns
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
_CODECS: Final = pa.array([Codec(number).name.lower() for number in sorted(Codec)], pa.string())


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


def batch_rows(log: TopicPartition, batches: Sequence[Batch], records: memoryview) -> Any:
    """One row for each batch. They lie behind each other in `records`, which is not copied."""
    heads = header_columns([batch.view for batch in batches])
    count = len(heads)
    attributes = heads["attributes"]
    columns = {
        "topic": pa.repeat(log.topic, count),
        "partition": pa.repeat(pa.scalar(log.partition, pa.int32()), count),
        "baseOffset": _whole(heads["base_offset"], np.int64),
        "lastOffset": _whole(heads["base_offset"] + heads["last_offset_delta"], np.int64),
        "records": _whole(heads["record_count"], np.int32),
        "leaderEpoch": _whole(heads["leader_epoch"], np.int32),
        "codec": _CODECS.take(_whole(attributes & CODEC_MASK, np.int32)),
        "timestampType": _whole(attributes & TIMESTAMP_TYPE_BIT != 0, np.int32),
        "baseTimestamp": _times(heads["base_timestamp"].astype(np.int64)),
        "maxTimestamp": _times(heads["max_timestamp"].astype(np.int64)),
        "producerId": _whole(heads["producer_id"], np.int64),
        "producerEpoch": _whole(heads["producer_epoch"], np.int32),
        "baseSequence": _whole(heads["base_sequence"], np.int32),
        "isTransactional": pa.array(attributes & TRANSACTIONAL_BIT != 0),
        "isControl": pa.array(attributes & CONTROL_BIT != 0),
        "crc": _whole(heads["crc"], np.int64),
        "bytes": _side_by_side([batch.size for batch in batches], records),
    }
    return pa.RecordBatch.from_pydict(columns)


def _whole(numbers: Any, kind: type[np.generic]) -> Any:
    return pa.array(numbers.astype(kind))


def _side_by_side(sizes: Sequence[int], data: memoryview) -> Any:
    """Byte strings that lie behind each other as an Arrow array over the same memory."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
