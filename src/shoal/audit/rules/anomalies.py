"""Rows of the table `anomalies`: every message with a finding, written beside the task.

A file has the rows of one finding in one cell. Findings that are not about messages (offsets, jumps
of consumers, whole transactions) have no rows, and a tail loss has none of its own: its messages
are among the lost ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.arrays import NONE, Array, Ints, counts_of_values, full_ints
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.read.evidence import NEVER, Deliveries, offset_or_none, partition_of
from shoal.audit.read.view import CellView
from shoal.audit.scratch import scratch_file
from shoal.model.findings import Finding
from shoal.model.ledger import OUTCOMES

# The folder of a file names the finding: `finding=lost`, with the cause `not-mirrored` as a column.
SCHEMA: Final = pa.schema(
    [
        ("group", pa.string()),
        ("cause", pa.string()),
        ("topic", pa.string()),
        ("producer", pa.string()),
        ("incarnation", pa.int64()),
        ("lane", pa.int32()),
        ("sequence", pa.int64()),
        ("count", pa.int64()),
        ("outcome", pa.string()),
        ("source_partition", pa.int64()),
        ("source_offset", pa.int64()),
        ("target_partition", pa.int64()),
        ("target_offset", pa.int64()),
        ("intended_us", pa.int64()),
        ("sent_us", pa.int64()),
        ("acked_us", pa.int64()),
        ("received_us", pa.int64()),
    ]
)
_CAUSE_MARK: Final = ": "


class _ListedFinding(NamedTuple):
    group: str | None
    finding: Finding
    slots: Ints  # a slot may occur several times
    deliveries: Deliveries | None


@dataclass
class AnomalyRows:
    """The messages with findings of one cell."""

    _found: list[_ListedFinding] = field(default_factory=list)

    def add(
        self,
        group: str | None,
        finding: Finding,
        slots: Ints,
        deliveries: Deliveries | None = None,
    ) -> None:
        self._found.append(_ListedFinding(group, finding, slots, deliveries))

    def write(
        self, view: CellView, outcome: Array, kind: PartKind = PartKind.ANOMALY_FILE
    ) -> Iterator[TaskPart]:
        """Write a file for each finding; return their names, and the first sequence of the cell."""
        scratch = view.context.scratch
        if scratch is None:
            return
        by_name: dict[str, list[pa.Table]] = {}
        for found in self._found:
            name, _, cause = found.finding.partition(_CAUSE_MARK)
            table = _Columns(view, outcome).table(found, cause or None)
            by_name.setdefault(name, []).append(table)
        for name, tables in by_name.items():
            whole = pa.concat_tables(tables)
            with scratch_file(scratch, "anomalies") as file:
                pq.write_table(whole, file.sink, compression="zstd")
            yield make_part(kind, [name, file.place, view.cell.low], [len(whole)])


def _find_receive_times(view: CellView, deliveries: Deliveries | None, slots: Ints) -> Ints:
    """Return when each of the slots was first received; NONE if never."""
    times_us = full_ints(len(slots))
    if deliveries is not None:
        first = deliveries.first[slots]
        was_received = np.flatnonzero(first != NONE)
        times_us[was_received] = view.receipts["received_us"][first[was_received]]
    return times_us


@dataclass(frozen=True)
class _Columns:
    """Builds the rows of some slots of a cell."""

    view: CellView
    outcome: Array

    def table(self, found: _ListedFinding, cause: str | None) -> pa.Table:
        view = self.view
        slots, counts = counts_of_values(found.slots)
        streams = [view.index.streams[n] for n in view.index.stream_of(slots).tolist()]
        source = view.source_places.first(view.size)[slots]
        target = full_ints(len(slots))
        if view.context.has_mirror:
            target = view.target_places.first(view.size)[slots]
        outcomes = self.outcome[slots].tolist()
        times = view.attempts
        received = _find_receive_times(view, found.deliveries, slots)
        size = len(slots)
        arrays = [
            pa.array([found.group] * size, pa.string()),
            pa.array([cause] * size, pa.string()),
            pa.array([stream.topic for stream in streams], pa.string()),
            pa.array([stream.producer for stream in streams], pa.string()),
            pa.array([stream.incarnation for stream in streams], pa.int64()),
            pa.array([stream.lane for stream in streams], pa.int32()),
            pa.array(view.index.sequence_of(slots)),
            pa.array(counts),
            pa.array([None if n == NEVER else OUTCOMES[n] for n in outcomes], pa.string()),
            *(_to_nullable(column) for place in (source, target) for column in _place(place)),
            *map(
                _to_nullable,
                (times.intended_us[slots], times.sent_us[slots], times.acked_us[slots]),
            ),
            _to_nullable(received),
        ]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _place(places: Ints) -> tuple[Ints, Ints]:
    return np.where(places == NONE, NONE, partition_of(places)), offset_or_none(places)


def _to_nullable(values: Ints) -> pa.Array:
    """Return the values; NONE becomes null."""
    return pa.array(values, pa.int64(), mask=values == NONE)
