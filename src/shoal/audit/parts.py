"""What a task hands back: named arrays of integers, fit for an Arrow table.

A part has a kind, a label (names and such, as JSON) and one flat array of 64-bit integers
that is read as rows of a width that the kind fixes. Nothing else crosses from a task to
the driver, so nothing can depend on floating point or on pickled code.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from shoal.audit.arrays import Array, Ints


class Part(NamedTuple):
    kind: str
    label: Any  # plain JSON
    values: Ints


def part(kind: str, label: Any, rows: Array | list[Any] = ()) -> Part:  # type: ignore[assignment]
    return Part(kind, label, np.asarray(rows, dtype=np.int64).reshape(-1))


def to_record_batch(task: int, parts: Iterable[Part]) -> Any:
    """One Arrow batch for the parts of one task; `ARROW_COLUMNS` is its schema."""
    import pyarrow as pa

    listed = list(parts)
    lengths = np.array([0, *(len(p.values) for p in listed)], dtype=np.int64)
    values = np.concatenate([p.values for p in listed]) if listed else np.empty(0, np.int64)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([task] * len(listed), pa.int32()),
            pa.array([p.kind for p in listed], pa.string()),
            pa.array([json.dumps(p.label) for p in listed], pa.string()),
            pa.ListArray.from_arrays(pa.array(np.cumsum(lengths), pa.int32()), pa.array(values)),
        ],
        names=list(ARROW_COLUMNS),
    )


ARROW_COLUMNS = ("task", "kind", "label", "values")


def from_table(table: Any) -> dict[int, list[Part]]:
    """The parts of each task, out of an Arrow table with `ARROW_COLUMNS`."""
    parts: dict[int, list[Part]] = {}
    for batch in table.to_batches():
        tasks, kinds, labels = (batch.column(i).to_pylist() for i in range(3))
        lists = batch.column(3)
        ends = lists.offsets.to_numpy()
        values = lists.values.to_numpy()
        for row, task in enumerate(tasks):
            own = values[ends[row] : ends[row + 1]].astype(np.int64, copy=True)
            parts.setdefault(task, []).append(Part(kinds[row], json.loads(labels[row]), own))
    return parts
