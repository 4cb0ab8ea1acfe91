"""Returns the pieces of order units that interleave with other cells."""

import numpy as np

from shoal.audit.arrays import ends_of_groups
from shoal.audit.context import AuditContext
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.read.view import CellView
from shoal.audit.rules.order import Units, pieces_of
from shoal.audit.tasks import OrderCell, UnitName


def collect_order_pieces(task: OrderCell, context: AuditContext) -> list[TaskPart]:
    """Return the pieces of each requested unit; every element, if it is in several partitions."""
    view = CellView(task.cell, context)
    parts = []
    for kind, group in sorted({(unit.kind, unit.group) for unit in task.units}):
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
            if name in task.units:
                parts.append(
                    _collect_unit(name, task, unit, times=times[low:high], stretch=context.stretch)
                )
    return parts


def _collect_unit(
    name: UnitName, task: OrderCell, unit: Units, *, times: np.ndarray, stretch: int
) -> TaskPart:
    spans = task.units[name]
    if spans is None:
        columns = np.column_stack([unit.sequence, times, unit.key, unit.segment])
        return make_part(PartKind.ELEMENTS, list(name), columns)
    zones = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return make_part(PartKind.PIECES, list(name), np.column_stack(pieces_of(unit, zones, stretch)))
