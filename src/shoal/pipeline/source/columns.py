"""Converts record batches to Arrow, column by column.

There are two forms: records, with the columns of Spark's own Kafka connector, and batches, with the
fields of their headers and their unchanged bytes.

Arrow arrays are made directly from numpy's memory (`_int_array`) and not by `pa.array`: that tries
to import pandas on each call, which takes longer than everything else if pandas is missing.
"""

from collections.abc import Sequence
from functools import lru_cache
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
from shoal.wire.records.columns import ByteColumn, decode_columns, gather_columns, header_columns
from shoal.wire.records.compression import Codec

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
    """Return the records of these batches with offsets from `start` up to `end`."""
    records = decode_columns(batches)
    counts = [batch.record_count for batch in batches]
    types = np.array([int(batch.timestamp_type == LOG_APPEND_TIME) for batch in batches], np.int32)
    wanted = (records.offset >= start) & (records.offset < end)
    rows = slice(None) if wanted.all() else np.flatnonzero(wanted)
    offsets = records.offset[rows]
    columns = {
        "key": _binary_array(records.keys(), rows),
        "value": _binary_array(records.values(), rows),
        "topic": pa.repeat(_text(log.topic), len(offsets)),
        "partition": pa.repeat(pa.scalar(log.partition, pa.int32()), len(offsets)),
        "offset": _int_array(offsets, np.int64),
        "timestamp": _timestamp_array(records.timestamp[rows]),
        "timestampType": _int_array(np.repeat(types, counts)[rows], np.int32),
    }
    if headers:
        places = range(len(records)) if isinstance(rows, slice) else rows.tolist()
        columns["headers"] = pa.array(
            [[{"key": k, "value": v} for k, v in records.headers(i)] or None for i in places],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        )
    return pa.RecordBatch.from_pydict(columns)


@lru_cache(maxsize=1024)
def _text(value: str) -> Any:
    return pa.scalar(value, pa.string())


def _binary_array(column: ByteColumn, rows: Any) -> Any:
    """Return scattered byte strings as one Arrow array."""
    chosen = ByteColumn(column.data, column.start[rows], column.length[rows])
    data, offsets = gather_columns(chosen)
    buffers = [_validity_bitmap(chosen.length >= 0), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(chosen.length), buffers)


def _timestamp_array(milliseconds: Any) -> Any:
    """Convert Kafka's timestamps to Arrow's; a missing one (-1) is null."""
    microseconds = pa.py_buffer(milliseconds.astype(np.int64) * 1000)
    buffers = [_validity_bitmap(milliseconds >= 0), microseconds]
    return pa.Array.from_buffers(_TIME, len(milliseconds), buffers)


def _validity_bitmap(flags: Any) -> Any:
    """Return Arrow's validity bitmap; None if no value is null."""
    return None if flags.all() else pa.py_buffer(_bits(flags))


def _bits(flags: Any) -> Any:
    return np.packbits(flags, bitorder="little")


def batch_rows(log: TopicPartition, batches: Sequence[Batch], records: memoryview) -> Any:
    """Return one row for each batch. The batches are contiguous in `records`, without a copy."""
    heads = header_columns([batch.view for batch in batches])
    count = len(heads)
    attributes = heads["attributes"]
    columns = {
        "topic": pa.repeat(_text(log.topic), count),
        "partition": pa.repeat(pa.scalar(log.partition, pa.int32()), count),
        "baseOffset": _int_array(heads["base_offset"], np.int64),
        "lastOffset": _int_array(heads["base_offset"] + heads["last_offset_delta"], np.int64),
        "records": _int_array(heads["record_count"], np.int32),
        "leaderEpoch": _int_array(heads["leader_epoch"], np.int32),
        "codec": _CODECS.take(_int_array(attributes & CODEC_MASK, np.int32)),
        "timestampType": _int_array(attributes & TIMESTAMP_TYPE_BIT != 0, np.int32),
        "baseTimestamp": _timestamp_array(heads["base_timestamp"]),
        "maxTimestamp": _timestamp_array(heads["max_timestamp"]),
        "producerId": _int_array(heads["producer_id"], np.int64),
        "producerEpoch": _int_array(heads["producer_epoch"], np.int32),
        "baseSequence": _int_array(heads["base_sequence"], np.int32),
        "isTransactional": _bool_array(attributes & TRANSACTIONAL_BIT != 0),
        "isControl": _bool_array(attributes & CONTROL_BIT != 0),
        "crc": _int_array(heads["crc"], np.int64),
        "bytes": _contiguous_binary_array([batch.size for batch in batches], records),
    }
    return pa.RecordBatch.from_pydict(columns)


def _int_array(numbers: Any, kind: type[np.generic]) -> Any:
    """Return an array of whole numbers without nulls."""
    memory = pa.py_buffer(np.ascontiguousarray(numbers, dtype=kind))
    return pa.Array.from_buffers(pa.from_numpy_dtype(kind), len(numbers), [None, memory])


def _bool_array(flags: Any) -> Any:
    buffers = [None, pa.py_buffer(_bits(flags))]
    return pa.Array.from_buffers(pa.bool_(), len(flags), buffers)


def _contiguous_binary_array(sizes: Sequence[int], data: memoryview) -> Any:
    """Return contiguous byte strings as an Arrow array over the same memory."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
