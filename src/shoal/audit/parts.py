"""What a task returns: named arrays of integers that fit into an Arrow table.

A part has a kind, a label (plain JSON: names and the like) and one flat array of 64-bit integers.
The kind fixes the width of its rows. Nothing else travels from a task to the driver, so a result
cannot depend on floating point or on pickled code.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from shoal.audit.arrays import Array, Ints


class TaskPart(NamedTuple):
    kind: str
    label: Any  # plain JSON
    values: Ints


def make_part(kind: str, label: Any, rows: Array | list[Any] = ()) -> TaskPart:  # type: ignore[assignment]
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
            parts.setdefault(task, []).append(TaskPart(kinds[row], json.loads(labels[row]), own))
    return parts
