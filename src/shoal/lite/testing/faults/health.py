"""Health reports of a node: failed background work, offline replicas, event loop stalls.

Rules of this file:
- A report has the whole state, not the changes, and is sent when it differs from the last one.
- Its size is limited: it names a few offline replicas and counts all.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shoal.runtime.tasks import failure_counts

# How often a node checks whether its health has changed.
REPORT_EVERY_S = 0.5
_MOST_NAMED = 20
_LONGEST_REASON = 300

# Offline replicas of this node, by partition, with the reason.
OfflineReplicas = Callable[[], Mapping[str, str]]


def describe_health(offline_replicas: OfflineReplicas, longest_hold_ms: int) -> dict[str, Any]:
    """A report of this process; `longest_hold_ms` is that of `LoopWatch`."""
    offline = offline_replicas()
    named = sorted(offline)[:_MOST_NAMED]
    return {
        "failures": {each.name: each.count for each in failure_counts()},
        "offline": {name: offline[name][:_LONGEST_REASON] for name in named},
        "offline_count": len(offline),
        "longest_hold_ms": longest_hold_ms,
    }


def empty_health() -> dict[str, Any]:
    return {"failures": {}, "offline": {}, "offline_count": 0, "longest_hold_ms": 0}
