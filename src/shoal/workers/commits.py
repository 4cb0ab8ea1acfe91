"""Which lines a worker may write to the commit log, checked by the driver before it does.

A worker names what it did; who it is, the driver knows better: worker and epoch come from the
lease, and a segment must be a file that this lease may have written.
"""

from pathlib import PurePosixPath
from typing import Any, Final

from shoal.model.ledger import TABLES
from shoal.net.messages import ControlError, Json

ENDINGS: Final = ("finished", "stopped", "failed")

_FIELDS: Final[dict[str, dict[str, type]]] = {
    "reserve": {"producer": str, "incarnation": int, "topic": str, "lane": int, "until": int},
    "segment": {"table": str, "number": int, "path": str, "rows": int},
    "drained": {"producer": str, "incarnation": int, "topic": str, "lane": int, "group": str},
    "foreign": {"cluster": str, "count": int},
    "ended": {"reason": str, "error": str, "retriable": bool},
}


def checked_line(line: Json, *, worker: str, epoch: int) -> Json:
    """The line as it goes to the commit log; raises `ControlError` if it may not."""
    kind = line.get("kind")
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise ControlError(f"worker {worker} may not commit a line of kind {kind!r:.40}")
    said = {name: value for name, value in line.items() if name in fields}
    for name, kind_of_value in fields.items():
        if type(said.get(name)) is not kind_of_value:
            raise ControlError(f"a {kind} line of worker {worker} has no proper {name!r}")
    _check_values(said, kind=str(kind), worker=worker, epoch=epoch)
    if kind == "drained":
        return {"kind": kind, **said}
    return {"kind": kind, "worker": worker, "epoch": epoch, **said}


def _check_values(said: dict[str, Any], *, kind: str, worker: str, epoch: int) -> None:
    for name, value in said.items():
        if type(value) is int and value < 0:
            raise ControlError(f"a {kind} line of worker {worker} has {name} {value}")
    if kind == "ended" and said["reason"] not in ENDINGS:
        raise ControlError(f"worker {worker} cannot end as {said['reason']!r:.40}")
    if kind == "segment":
        _check_segment(said, worker=worker, epoch=epoch)


def _check_segment(said: dict[str, Any], *, worker: str, epoch: int) -> None:
    path = PurePosixPath(said["path"])
    name = f"{worker}-{epoch}-{said['number']}.parquet"
    if said["table"] not in TABLES or path != PurePosixPath("ledger", said["table"], name):
        raise ControlError(f"worker {worker} of epoch {epoch} may not commit {said['path']!r:.200}")
