"""The faults of a run as windows of time, from the lines of its commit log.

A fault without a recorded end lasts to the end of the run. Inconsistent lines (an end without a
begin, a number used twice, an invalid time) are a `LedgerError` that names the line: a window in
the wrong place would attribute its messages to the wrong fault.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.model.errors import LedgerError
from shoal.model.ledger import FAULT_PHASES

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """One fault: [began_us, ended_us), or open where `ended_us` is None."""

    number: int
    name: str
    target: str
    began_us: int
    ended_us: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        times = {"began_us": self.began_us, "ended_us": self.ended_us}
        identity = {"fault": self.number, "name": self.name, "target": self.target}
        return {**identity, **times, "detail": dict(self.detail)}


def all_faults(logs: Iterable[Iterable[Json]]) -> tuple[FaultWindow, ...]:
    """Return the faults of several commit logs; if more than one has faults, renumber them."""
    found = [fault_windows(line for line in log if line["kind"] == "fault") for log in logs]
    several = sorted((w for own in found for w in own), key=lambda w: (w.began_us, w.number))
    if sum(map(bool, found)) < 2:
        return tuple(sorted(several, key=lambda window: window.number))
    return tuple(replace(window, number=n) for n, window in enumerate(several, 1))


def fault_windows(lines: Iterable[Json]) -> tuple[FaultWindow, ...]:
    """Return the windows of commit lines of kind `fault`, in order of their numbers."""
    begins: dict[int, Json] = {}
    ends: dict[int, Json] = {}
    for line in lines:
        number, phase = _whole(line, "fault"), line.get("phase")
        _whole(line, "at_us")
        if phase not in FAULT_PHASES:
            raise LedgerError(
                f"the commit log has a fault line with an unknown phase: {line!r:.200}"
            )
        if number in (begins if phase == "begin" else ends):
            raise LedgerError(f"the commit log has two {phase} lines of fault {number}")
        if phase == "begin":
            begins[number] = line
        else:
            ends[number] = line
    if strays := sorted(ends.keys() - begins.keys()):
        raise LedgerError(f"the commit log has an end of fault {strays[0]} but no begin")
    return tuple(_window(number, begins[number], ends.get(number)) for number in sorted(begins))


def _window(number: int, begin: Json, end: Json | None) -> FaultWindow:
    # The end line says why a fault could not be injected.
    details = [line.get("detail") or {} for line in (begin, end or {})]
    if not all(isinstance(detail, dict) for detail in details):
        raise LedgerError(f"the detail of fault {number} in the commit log is not an object")
    name, target = str(begin.get("name", "")), str(begin.get("target", ""))
    began_us = int(begin["at_us"])
    # The clock may have been set back during the fault.
    ended_us = None if end is None else max(int(end["at_us"]), began_us)
    return FaultWindow(number, name, target, began_us, ended_us, details[0] | details[1])


def _whole(line: Json, name: str) -> int:
    value = line.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise LedgerError(
            f"{name} is not a whole number in a fault line of the commit log: {line!r:.200}"
        )
    return value
