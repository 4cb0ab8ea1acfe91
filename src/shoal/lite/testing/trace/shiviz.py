"""The logs of all nodes as one file for ShiViz (https://bestchai.bitbucket.io/shiviz/).

Its first line is the pattern by which ShiViz parses the rest, the second is empty, then the logs
follow.

Rules of this file:
- ShiViz rejects a clock that refers to a missing event. The logs of a running cluster are read
  one after the other, so some events refer to others that were written after their log was read:
  those are left out, and all that follow them on their node.
- A node without events is left out.
"""

from pathlib import Path
from typing import NamedTuple

from shoal.lite.base.hooks.tracer import FOLDER, SUFFIX, Clock, parse_clock
from shoal.model.errors import UsageError

PATTERN = r"(?<host>\S*) (?<clock>{.*})\n(?<event>.*)"


class TraceEvent(NamedTuple):
    """One event of one node."""

    host: str
    clock: Clock
    # Both lines, as the node wrote them.
    text: str


def merge_trace(cluster_folder: Path) -> str:
    """Merge all traces of a cluster's folder; `UsageError` if it has none."""
    paths = sorted((cluster_folder / FOLDER).glob(f"*{SUFFIX}"))
    if not paths:
        raise UsageError(
            f"{cluster_folder} has no trace", remedy="start the cluster with `--trace`"
        )
    return merge_logs([events_of(path.read_text(encoding="utf-8")) for path in paths])


def events_of(log: str) -> list[TraceEvent]:
    """The events of one node's log; an incomplete event at its end is ignored."""
    lines = log.split("\n")[:-1]
    events = []
    for first, second in zip(lines[::2], lines[1::2], strict=False):
        host, _, clock = first.partition(" ")
        events.append(TraceEvent(host, parse_clock(clock), f"{first}\n{second}\n"))
    return events


def merge_logs(logs: list[list[TraceEvent]]) -> str:
    """Merge the logs of all nodes into one file."""
    whole = _drop_unknown_causes([log for log in logs if log])
    return f"{PATTERN}\n\n" + "".join(event.text for log in whole for event in log)


def _drop_unknown_causes(logs: list[list[TraceEvent]]) -> list[list[TraceEvent]]:
    while True:
        counts = {log[0].host: len(log) for log in logs if log}
        kept = [_events_with_known_causes(log, counts) for log in logs]
        if kept == logs:
            return logs
        logs = kept


def _events_with_known_causes(log: list[TraceEvent], counts: dict[str, int]) -> list[TraceEvent]:
    for index, event in enumerate(log):
        if any(count > counts.get(host, 0) for host, count in event.clock.items()):
            return log[:index]
    return log
