"""What a report shows of the events of a run: states, faults and findings, CPU and memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from shoal.model import events
from shoal.model.errors import LedgerError
from shoal.model.serialised import to_plain
from shoal.telemetry.events import EventReader

# The folders of a run with events; "run" is the run itself.
PARTS: Final = {"run": ".", "source": "source", "target": "target", "mirror": "mirror"}
# Of each part: ticks for the charts of CPU and memory, and everything else.
MOST_TICKS: Final = 300
MOST_OTHERS: Final = 400

Json = dict[str, Any]
T = TypeVar("T")


def read_excerpt(run_dir: Path) -> dict[str, list[Json]]:
    """The events of a run and its parts, as JSON, thinned; parts without events are absent."""
    shown = {part: _read_part(run_dir / folder) for part, folder in PARTS.items()}
    return {part: found for part, found in shown.items() if found}


def _read_part(folder: Path) -> list[Json]:
    reader = EventReader(folder)
    found: list[events.Event] = []
    try:
        while new := reader.read().events:
            found += new
    except (OSError, LedgerError):
        return []  # of another version, or unreadable: the report has the verdict without it
    finally:
        reader.close()
    ticks = [event for event in found if isinstance(event, events.Tick) and event.processes]
    others = [
        e for e in found if isinstance(e, events.State | events.FaultSeen | events.FindingSeen)
    ]
    kept = sorted(
        (*_spread(ticks, MOST_TICKS), *_spread(others, MOST_OTHERS)), key=lambda event: event.t
    )
    return [_describe_event(event) for event in kept]


def _spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many of the items, at equal distances."""
    if len(items) <= most:
        return list(items)
    return [items[place * len(items) // most] for place in range(most)]


def _describe_event(event: events.Event) -> Json:
    if isinstance(event, events.Tick):
        return {"kind": "tick", "t": event.t, "processes": to_plain(event.processes)}
    kind = next(name for name, cls in events.KINDS.items() if isinstance(event, cls))
    return {"kind": kind, **to_plain(event)}
