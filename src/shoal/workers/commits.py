"""Validates the lines that a worker sends for the commit log, before the driver writes them.

A worker only says what it did; its identity comes from the driver: worker and epoch are taken from
the lease, and a segment must be a file that this lease can have written.
"""

from pathlib import PurePosixPath
from typing import Any, Final

from shoal.model.ledger import TABLES
from shoal.model.segment_footer import is_footer_check
from shoal.net.control_port import ControlError, Json

ENDINGS: Final = ("finished", "stopped", "failed")

_FIELDS: Final[dict[str, dict[str, type]]] = {
    "reserve": {"producer": str, "incarnation": int, "topic": str, "lane": int, "until": int},
    "segment": {"table": str, "number": int, "path": str, "rows": int, "footer": str},
    "drained": {"producer": str, "incarnation": int, "topic": str, "lane": int, "group": str},
    "foreign": {"cluster": str, "count": int},
    "ended": {"reason": str, "error": str, "retriable": bool},
}


def check_line(line: Json, *, worker: str, epoch: int) -> Json:
    """Return the line to write to the commit log; raises `ControlError` if it is not allowed."""
    kind = line.get("kind")
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise ControlError(f"worker {worker} may not commit a line of kind {kind!r:.40}")
    values = {name: value for name, value in line.items() if name in fields}
    for name, kind_of_value in fields.items():
        if type(values.get(name)) is not kind_of_value:
            raise ControlError(f"a {kind} line of worker {worker} has no valid {name!r}")
    _check_values(values, kind=str(kind), worker=worker, epoch=epoch)
    if kind == "drained":
        return {"kind": kind, **values}
    return {"kind": kind, "worker": worker, "epoch": epoch, **values}


def _check_values(values: dict[str, Any], *, kind: str, worker: str, epoch: int) -> None:
    for name, value in values.items():
        if type(value) is int and value < 0:
            raise ControlError(f"a {kind} line of worker {worker} has {name} {value}")
    if kind == "ended" and values["reason"] not in ENDINGS:
        raise ControlError(f"worker {worker} cannot end as {values['reason']!r:.40}")
    if kind == "segment":
        _check_segment(values, worker=worker, epoch=epoch)


def _check_segment(values: dict[str, Any], *, worker: str, epoch: int) -> None:
    if not is_footer_check(values["footer"]):
        raise ControlError(f"worker {worker} has the footer {values['footer']!r:.40}")
    path = PurePosixPath(values["path"])
    name = f"{worker}-{epoch}-{values['number']}.parquet"
    if values["table"] not in TABLES or path != PurePosixPath("ledger", values["table"], name):
        raise ControlError(
            f"worker {worker} of epoch {epoch} may not commit {values['path']!r:.200}"
        )
