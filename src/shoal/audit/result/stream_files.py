"""Files of the table `streams`: the counts of each stream, written where streams are settled."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.context import Stream
from shoal.audit.scratch import scratch_file

STREAMS_SCHEMA: Final = pa.schema(
    [
        pa.field("group", pa.string()),
        pa.field("producer", pa.string()),
        pa.field("incarnation", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("lane", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("count", pa.int64()),
    ]
)
_ROWS_PER_GROUP: Final = 1 << 18

_Counts = Mapping[str | None, Mapping[str, Mapping[Stream, int]]]


def write_stream_counts(counts: _Counts, scratch: str) -> tuple[str, int]:
    """Write the counts into a file of the scratch folder; return its path and its rows."""
    table = _table(counts)
    with scratch_file(scratch, "streams") as file:
        pq.write_table(table, file.sink, compression="zstd", row_group_size=_ROWS_PER_GROUP)
    return file.place, len(table)


def _table(counts: _Counts) -> pa.Table:
    """Return the rows of all groups and names, each ascending by stream, without counts of 0."""
    by_name = [own for group in counts.values() for own in group.values()]
    streams = sorted({stream for own in by_name for stream in own})
    places = {stream: place for place, stream in enumerate(streams)}
    kinds = {"producer": pa.string(), "topic": pa.string(), "lane": pa.int32()}
    kinds["incarnation"] = pa.int64()
    columns = {n: pa.array([getattr(s, n) for s in streams], kind) for n, kind in kinds.items()}
    tables = []
    for group in sorted(counts, key=lambda name: name or ""):
        for name, by_stream in sorted(counts[group].items()):
            at = np.array([places[stream] for stream in by_stream], dtype=np.int64)
            values = np.array(list(by_stream.values()), dtype=np.int64)
            order = np.argsort(at)
            order = order[values[order] != 0]
            own = {key: column.take(pa.array(at[order])) for key, column in columns.items()}
            own["group"] = pa.array([group] * len(order), pa.string())
            own["name"] = pa.array([str(name)] * len(order), pa.string())
            own["count"] = pa.array(values[order])
            tables.append(
                pa.Table.from_arrays([own[n] for n in STREAMS_SCHEMA.names], schema=STREAMS_SCHEMA)
            )
    return pa.concat_tables(tables) if tables else STREAMS_SCHEMA.empty_table()
