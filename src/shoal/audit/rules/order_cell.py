"""Order units that interleave with other cells: their pieces, and their messages that came late."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from shoal.audit.arrays import Bools, Ints, ends_of_groups
from shoal.audit.context import AuditContext
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.read.evidence import Deliveries
from shoal.audit.read.view import CellView
from shoal.audit.rules.anomalies import AnomalyRows
from shoal.audit.rules.order import Units, late_elements, pieces_of
from shoal.audit.rules.tally import ORDER_FINDINGS
from shoal.audit.tasks import LateCell, OrderCell, UnitKind, UnitName

Spans = tuple[tuple[int, int], ...]


def collect_order_pieces(task: OrderCell, context: AuditContext) -> list[TaskPart]:
    """Return the pieces of each requested unit; every element, if it is in several partitions."""
    view = CellView(task.cell, context)
    return [
        _collect_unit(found, task.units[found.name], stretch=context.stretch)
        for found in _find_units(view, task.units)
    ]


def list_late_messages(task: LateCell, context: AuditContext) -> list[TaskPart]:
    """List the messages of a cell that came late: of the units of the task, what the task says."""
    view = CellView(task.cell, context)
    rows = AnomalyRows()
    for name, unit, _, deliveries in _find_units(view):
        if name in task.units:
            spans = np.array(task.units[name], dtype=np.int64).reshape(-1, 2)
            slots = unit.slot[_is_within(spans, unit.sequence)]
        else:
            by_key = np.argsort(unit.key, kind="stable")
            slots = unit.slot[by_key][late_elements(unit.sequence[by_key])]
        if len(slots):
            group = name.group if name.kind == "consumers" else None
            rows.add(group, ORDER_FINDINGS[name.kind], slots, deliveries)
    return list(rows.write(view, view.outcome))


def _is_within(spans: Ints, values: Ints) -> Bools:
    """Which values are in one of the disjoint spans (first, last)."""
    if not len(spans):
        return np.zeros(len(values), dtype=np.bool_)
    spans = spans[np.argsort(spans[:, 0])]
    place = np.searchsorted(spans[:, 0], values, side="right") - 1
    found: Bools = (place >= 0) & (values <= spans[np.maximum(place, 0), 1])
    return found


class _FoundUnit(NamedTuple):
    name: UnitName
    unit: Units
    times_us: Ints  # when its elements were received; 0 for logs
    deliveries: Deliveries | None


def _find_units(view: CellView, wanted: Collection[UnitName] | None = None) -> Iterator[_FoundUnit]:
    """Return the wanted units of a cell, or all."""
    logs: list[tuple[UnitKind, str]] = [("source", "")]
    if view.context.has_mirror:
        logs.append(("target", ""))
    every = [*logs, *(("consumers", group) for group in view.context.groups)]
    some = None if wanted is None else {(unit.kind, unit.group) for unit in wanted}
    for kind, group in every:
        if some is not None and (kind, group) not in some:
            continue
        deliveries = None
        if kind == "consumers":
            deliveries = view.deliveries(group)
            units = view.arrival_units(deliveries)
            rows = deliveries.first[view.arrival_slots(deliveries)]
            times = view.receipts["received_us"][rows]
        else:
            units = view.log_units(kind)
            times = np.zeros(len(units.unit), dtype=np.int64)
        for low, high in zip(units.starts(), ends_of_groups(units.unit) + 1, strict=True):
            unit = units.slice(low, high)
            stream = view.index.streams[int(unit.stream[0])]
            name = UnitName.of(kind, group, stream, int(unit.partition[0]))
            if wanted is None or name in wanted:
                yield _FoundUnit(name, unit, times[low:high], deliveries)


def _collect_unit(found: _FoundUnit, spans: Spans | None, *, stretch: int) -> TaskPart:
    name, unit = found.name, found.unit
    if spans is None:
        columns = np.column_stack([unit.sequence, found.times_us, unit.key, unit.segment])
        return make_part(PartKind.ELEMENTS, list(name), columns)
    zones = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return make_part(PartKind.PIECES, list(name), np.column_stack(pieces_of(unit, zones, stretch)))
