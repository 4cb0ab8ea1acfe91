"""What a task returns: named arrays of integers that fit into an Arrow table.

A part has a kind, a label (plain JSON: names and the like) and one flat array of 64-bit integers.
The kind fixes the columns of its rows. Nothing else travels from a task to the driver, so a result
cannot depend on floating point or on pickled code.

Streams are numbers: indices into the label of the part `STREAMS` of the same task. Topics are
indices into the list at the end of a part's own label.
"""

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple, Self

import numpy as np

from shoal.audit.arrays import Array, Ints
from shoal.audit.columns import BatchColumn, LatestColumn, OrderColumn, SlotColumn, StepColumn


class PartKind(StrEnum):
    """The kinds of parts, by the name in an Arrow table, with the columns of their rows."""

    columns: tuple[str, ...]

    def __new__(cls, name: str, *columns: str) -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.columns = columns
        return kind

    # Message cells: counts and findings. The label of the first three fixes the columns.
    STREAMS = "streams"
    TALLY = "tally"
    SEGMENTS = "segments"
    WITNESS = "witness", "sequence"
    MARKS = "marks", "stream", "stretch", "count"
    RANGE = "range", "low_us", "high_us"
    SECOND = "second", "second", "count"
    LATENCY = (
        "latency",
        *("segment", "count", "high", "low", "lowest_us", "highest_us", "negative"),
    )
    LATENCY_RUN = "latency run", "segment", "us", "count"
    LATENCY_FILE = "latency file", "rows"
    LATENCY_SECOND = "latency second", "second_and_bucket", "count"
    LATENCY_MAX = "latency max", "second", "us"
    SECOND_PERCENTILES = "second percentiles", "second", "p50", "p99"
    PACKED_SECONDS = "packed seconds", "counts"  # see `times.seconds`
    PACKED_LATENCIES = "packed latencies", "latencies"
    LATENCY_BUCKETS = "latency buckets", "bucket", "count"
    FAULT_TIMES = "fault times", "detect", "recover", "drain"
    SLOT_STATS = "slot stats", *SlotColumn.__members__
    BINS = "bins", "bin", "count"
    BIN_LATENCY = "bin latency", "bin_and_bucket", "count"
    STRETCHES = "stretches", "stream", "stretch", "due", "first_us", "last_us"
    REACHED = "reached", "count"
    TAIL = "tail", "stream", "low", "highest", "lost", "above", "first_lost", "first_above"
    BATCHES = "batches", *BatchColumn.__members__
    LOST_TRANSACTIONS = "lost transactions", "transaction", "stream", "sequence", "cause"
    UNREADABLE = "unreadable"  # one row: all records, then those of each stage in the label
    UNDECIDED = "undecided"
    UNSETTLED = "unsettled", "transaction"

    # Message cells: summaries that mean something only together with those of all other cells.
    ORDER = "order", "stream", *OrderColumn.__members__
    SPANS = "spans", "first_key", "last_key"
    LATE = "late", "stretch", "count"
    LATE_SEGMENTS = "late segments", "segment", "count"
    DOUBTFUL = "doubtful", "low", "high"
    UNPROVEN = "unproven", "stream", "sequence", "offset"
    MIRROR_REACH = "mirror reach", "topic", "partition", "reach"
    GROUP_REACH = "group reach", "topic", "partition", "reach"
    BEGAN = "began", "topic", "partition", "negative_offset"
    LAST_IN_TARGET = "last in target", "stream", "low", "partition", "offset"
    DELIVERED_UNTIL = "delivered until", "stream", "sequence"
    PLACED_SINCE = "placed since", "stream", "sequence"
    SEEN_TRANSACTIONS = "seen transactions", "transaction"
    SEEN_FILE = "seen file", "first", "last", "count"
    WANTED_TRANSACTIONS = "wanted transactions", "transaction"
    LATEST = "latest", *LatestColumn.__members__

    # Sums over streams that were settled. Lanes are (number of a topic in the label, lane).
    LANE_COUNTS = "lane counts"  # topic, lane, and the counts that the label names
    LANE_LENGTHS = "lane lengths", "topic", "lane", "longest"
    LANE_MARKS = "lane marks", "topic", "lane", "stretch", "count"
    LANE_ROWS = "lane rows"
    STREAM_COUNTS = "stream counts"  # how many streams have each count that the label names
    STREAM_FILE = "stream file", "rows"
    ANOMALY_FILE = "anomaly file", "rows"
    LATE_FILE = "late file", "rows"  # anomalies of order within a cell
    PRODUCERS = "producers"
    EXCESS = "excess", "count"
    BATCH_COUNT = "batch count", "count"

    # Order cells.
    ELEMENTS = "elements", "sequence", "time_us", "key", "segment"
    PIECES = (
        "pieces",
        "first_key",
        "last_key",
        "first_sequence",
        "last_sequence",
        "length",
        "segment",
    )

    # Walks and offset cells.
    WALK = "walk", *StepColumn.__members__
    JUMPS = "jumps", "reader", "origin", "landing"
    SKIPS = "skips", "jump", "offset"
    CONTESTED = "contested", "count", "offset"

    # What tasks wrote for other tasks.
    REGROUPED = "regrouped", "rows"
    ANSWER_FILE = "answer file", "bytes"

    # Counts of latency runs.
    RANK_COUNTS = "rank counts", "count"
    RANK_PLACES = "rank places", "place"


class TaskPart(NamedTuple):
    kind: PartKind
    label: Any  # plain JSON
    values: Ints

    @property
    def rows(self) -> Ints:
        """The values as rows with the columns of the kind."""
        return self.values.reshape(-1, len(self.kind.columns))


def make_part(kind: PartKind, label: Any, rows: Array | list[Any] = ()) -> TaskPart:  # type: ignore[assignment]
    return TaskPart(kind, label, np.asarray(rows, dtype=np.int64).reshape(-1))


def to_record_batch(task: int, parts: Iterable[TaskPart]) -> Any:
    """Return the parts of one task as one Arrow batch with the columns `ARROW_COLUMNS`."""
    import pyarrow as pa

    all_parts = list(parts)
    lengths = np.array([0, *(len(p.values) for p in all_parts)], dtype=np.int64)
    values = np.concatenate([p.values for p in all_parts]) if all_parts else np.empty(0, np.int64)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([task] * len(all_parts), pa.int32()),
            pa.array([p.kind for p in all_parts], pa.string()),
            pa.array([json.dumps(p.label) for p in all_parts], pa.string()),
            pa.ListArray.from_arrays(pa.array(np.cumsum(lengths), pa.int32()), pa.array(values)),
        ],
        names=list(ARROW_COLUMNS),
    )


ARROW_COLUMNS = ("task", "kind", "label", "values")


def from_table(table: Any) -> dict[int, list[TaskPart]]:
    """Return the parts of each task from an Arrow table with `ARROW_COLUMNS`."""
    parts: dict[int, list[TaskPart]] = {}
    for batch in table.to_batches():
        tasks, kinds, labels = (batch.column(i).to_pylist() for i in range(3))
        lists = batch.column(3)
        ends = lists.offsets.to_numpy()
        values = lists.values.to_numpy()
        for row, task in enumerate(tasks):
            own = values[ends[row] : ends[row + 1]].astype(np.int64, copy=True)
            part = TaskPart(PartKind(kinds[row]), json.loads(labels[row]), own)
            parts.setdefault(task, []).append(part)
    return parts
