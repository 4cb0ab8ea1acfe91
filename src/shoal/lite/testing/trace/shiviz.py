"""The logs of all nodes as one file for ShiViz (https://bestchai.bitbucket.io/shiviz/).

Its first line tells ShiViz how to read the rest, the second is empty, then the logs follow.

Rules of this file:
- ShiViz refuses a clock that knows of an event that is not there. The logs of a running cluster
  are read one after the other, so some events know of others that came after their log was
  read: those are left out, and all that follow them on their node.
- A node without events is left out.
"""

from pathlib import Path
from typing import NamedTuple

from shoal.lite.base.hooks.tracer import FOLDER, SUFFIX, Clock, parse_clock
from shoal.model.errors import UsageError

PATTERN = r"(?<host>\S*) (?<clock>{.*})\n(?<event>.*)"


class Event(NamedTuple):
    """One event of one node."""

    host: str
    clock: Clock
    # Both lines, as the node wrote them.
    text: str


def merged_trace(cluster_folder: Path) -> str:
    """All that was traced in a cluster's folder; `UsageError` if nothing was."""
    paths = sorted((cluster_folder / FOLDER).glob(f"*{SUFFIX}"))
    if not paths:
        raise UsageError(
            f"{cluster_folder} has no trace", remedy="start the cluster with `--trace`"
        )
    return merged([events_of(path.read_text(encoding="utf-8")) for path in paths])


def events_of(log: str) -> list[Event]:
    """The events of one node's log; half an event at its end does not count."""
    lines = log.split("\n")[:-1]
    events = []
    for first, second in zip(lines[::2], lines[1::2], strict=False):
        host, _, clock = first.partition(" ")
        events.append(Event(host, parse_clock(clock), f"{first}\n{second}\n"))
    return events


def merged(logs: list[list[Event]]) -> str:
    """One file of the logs of all nodes."""
    whole = _without_loose_ends([log for log in logs if log])
    return f"{PATTERN}\n\n" + "".join(event.text for log in whole for event in log)


def _without_loose_ends(logs: list[list[Event]]) -> list[list[Event]]:
    while True:
        counts = {log[0].host: len(log) for log in logs if log}
        kept = [_known_part(log, counts) for log in logs]
        if kept == logs:
            return logs
        logs = kept


def _known_part(log: list[Event], counts: dict[str, int]) -> list[Event]:
    for place, event in enumerate(log):
        if any(count > counts.get(host, 0) for host, count in event.clock.items()):
            return log[:place]
    return log
