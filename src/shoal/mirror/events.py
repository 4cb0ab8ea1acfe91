"""What a mirror writes to its event stream, from its status of each second.

Rules:
- A tick names the partitions that have changed since the last one, the worst first: parked, then
  waiting, then by their lag. The age of records alone is not a change.
- A partition that waits or is parked gets a state event with the reason, and one when it is copied
  again. Partitions that are just copied get none.
- Gauges whose value is unknown are left out.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

from shoal.mirror.config import BOOTSTRAP, MirrorConfig
from shoal.mirror.routes import Route
from shoal.mirror.status import MirrorStatus, PartitionStatus
from shoal.model.serialised import to_plain
from shoal.telemetry.events import EventWriter
from shoal.telemetry.processes import read_usages

ALWAYS_COUNTED: Final = ("records", "bytes", "batches")
COPYING: Final = "copying"
_RANKS: Final = {"parked": 0, "waiting": 1, COPYING: 2}


class MirrorEvents:
    """The event stream of one flow."""

    def __init__(self, config: MirrorConfig, folder: Path) -> None:
        details = {
            "source": config.source[BOOTSTRAP],
            "target": config.target[BOOTSTRAP],
            "topics": list(config.topics),
            "delivery": config.delivery,
        }
        self._writer = EventWriter(folder, "mirror", config.name, details=details)
        self._known: dict[Route, PartitionStatus] = {}
        # Partitions whose last state event was not `copying`.
        self._held_up: set[str] = set()
        self._logged: set[str] = set()

    def on_status(self, status: MirrorStatus) -> None:
        self._writer.set_state("mirror", "paused" if status.paused else "running")
        changed = [each for each in status.partitions if self._has_changed(each)]
        self._write_states(changed)
        for level, texts in _remarks(status):
            self._say(level, texts)
        states = [state_of(each) for each in status.partitions]
        gauges = {
            "lag": status.lag,
            "lag_s": status.lag_s,
            "lag_bytes": status.lag_bytes,
            "partitions": len(states),
            "waiting": states.count("waiting"),
            "parked": states.count("parked"),
            "paused": int(status.paused),
        }
        counts = to_plain(status.counts)
        self._writer.tick(
            counters={n: count for n, count in counts.items() if count or n in ALWAYS_COUNTED},
            gauges={name: value for name, value in gauges.items() if value >= 0},
            partitions=[describe(each) for each in sorted(changed, key=_badness)],
            processes=read_usages([("mirror", os.getpid())]),
        )

    def close(self, outcome: Literal["finished", "failed"], text: str = "") -> None:
        self._writer.close(outcome, text)

    def _has_changed(self, status: PartitionStatus) -> bool:
        known = self._known.get(status.route)
        if known is status:
            return False
        self._known[status.route] = status
        return known is None or _essence(known) != _essence(status)

    def _write_states(self, changed: Iterable[PartitionStatus]) -> None:
        for each in changed:
            state, reason = _condition(each)
            name = str(each.route.source)
            if state != COPYING:
                self._held_up.add(name)
            elif name in self._held_up:
                self._held_up.remove(name)
            else:
                continue
            details = {"remedy": each.remedy} if each.remedy else None
            self._writer.set_state(f"partition {name}", state, reason, details)

    def _say(self, level: Literal["info", "warning", "error"], texts: Iterable[str]) -> None:
        """Write each text once."""
        for text in texts:
            if text not in self._logged:
                self._logged.add(text)
                self._writer.log(level, text)


def _remarks(
    status: MirrorStatus,
) -> list[tuple[Literal["info", "warning", "error"], list[str]]]:
    deliveries = [
        f"topic {topic} uses the delivery {chosen[0]}: {chosen[1]}"
        for topic, chosen in status.deliveries.items()
        if chosen[1] is not None
    ]
    return [
        ("info", deliveries),
        ("warning", list(status.notices)),
        ("error", [str(error) for error in status.refused]),
    ]


def state_of(status: PartitionStatus) -> str:
    """parked, waiting or copying."""
    return _condition(status)[0]


def _condition(status: PartitionStatus) -> tuple[str, str]:
    """The state of a partition, and its reason."""
    if status.parked:
        return "parked", status.parked
    return ("waiting", status.waiting) if status.waiting else (COPYING, "")


def _essence(status: PartitionStatus) -> tuple[Any, ...]:
    """What is a change if it differs."""
    return (status.position, status.last_stable_offset, status.lag, *_condition(status))


def _badness(status: PartitionStatus) -> tuple[int, int]:
    return _RANKS[state_of(status)], -status.lag


def describe(status: PartitionStatus) -> dict[str, Any]:
    """The entry of a partition in a tick."""
    state, reason = _condition(status)
    return {
        "partition": str(status.route.source),
        "target": str(status.route.target),
        "state": state,
        "reason": reason,
        "position": status.position,
        "end": status.last_stable_offset,
        "lag": status.lag,
        "lag_s": status.lag_s,
    }
