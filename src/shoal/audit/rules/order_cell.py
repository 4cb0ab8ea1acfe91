"""What a cell hands out of order units that interleave with other cells."""

import numpy as np

from shoal.audit.arrays import ends_of_groups
from shoal.audit.context import Setting
from shoal.audit.parts import Part, part
from shoal.audit.read.view import CellView
from shoal.audit.result.merge import unit_name
from shoal.audit.rules.order import Units, pieces_of
from shoal.audit.tasks import OrderCell, UnitName


def hand_out_order(task: OrderCell, setting: Setting) -> list[Part]:
    """Pieces of each unit asked for; of those in several partitions, every element."""
    view = CellView(task.cell, setting)
    parts = []
    for kind, group in sorted({(unit[0], unit[1]) for unit in task.units}):
        if kind == "consumers":
            deliveries = view.deliveries(group)
            units = view.arrival_units(deliveries)
            rows = deliveries.first[view.arrival_slots(deliveries)]
            times = view.receipts["received_us"][rows]
        else:
            units = view.log_units("source" if kind == "source" else "target")
            times = np.zeros(len(units.unit), dtype=np.int64)
        for low, high in zip(units.starts(), ends_of_groups(units.unit) + 1, strict=True):
            unit = units.slice(low, high)
            stream = view.index.streams[int(unit.stream[0])]
            name = unit_name(kind, group or None, stream, int(unit.partition[0]))
            if name in task.units:
                parts.append(
                    _hand_out(name, task, unit, times=times[low:high], stretch=setting.stretch)
                )
    return parts


def _hand_out(
    name: UnitName, task: OrderCell, unit: Units, *, times: np.ndarray, stretch: int
) -> Part:
    spans = task.units[name]
    if spans is None:
        columns = np.column_stack([unit.sequence, times, unit.key, unit.segment])
        return part("elements", list(name), columns)
    zones = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return part("pieces", list(name), np.column_stack(pieces_of(unit, zones, stretch)))
