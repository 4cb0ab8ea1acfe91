"""Records as columns, by way of a real batch: what a reader of messages is given."""

from collections.abc import Sequence

from shoal.wire.batch import Batch
from shoal.wire.records.columns import ByteColumn, RecordArrays, decode_columns
from shoal.wire.records.records import Record, encode_batch
from shoal.workload.envelope import Headers


def at(column: ByteColumn, row: int) -> bytes:
    """One string of a column that has no nulls."""
    value = column.at(row)
    assert value is not None
    return value


def columns_of(records: Sequence[tuple[bytes | None, bytes | None, Headers]]) -> RecordArrays:
    """Key, value and headers of each record, packed into a batch and taken apart again."""
    rows = [
        Record(offset=offset, timestamp=0, key=key, value=value, headers=tuple(headers))
        for offset, (key, value, headers) in enumerate(records)
    ]
    batches = [Batch(memoryview(encode_batch(rows)))] if rows else []
    return decode_columns(batches)
