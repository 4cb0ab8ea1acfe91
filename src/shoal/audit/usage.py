"""What the driver of an audit receives from tasks, by kind, and what each kind grows with.

The sum is the bound on the driver's memory. Nothing in it grows with the number of messages alone:
a cell has up to half a million of them, and returns what is listed here.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from shoal.audit.parts import PartKind, TaskPart

_Task = TypeVar("_Task")

_CELLS: Final = "cells"
_STREAMS: Final = "cells * streams"
_LOGS: Final = "cells * partitions"
_LANES: Final = "tasks * lanes"
_FINDINGS: Final = "cells * findings"
_FAULTS: Final = "cells * faults"
_UNKNOWN: Final = "transactions with an unknown attempt"
_SECONDS: Final = "cells * seconds of a cell"
_DISORDER: Final = "messages out of order across cells"

GROWS_WITH: Final[Mapping[PartKind, str]] = {
    PartKind.STREAMS: _STREAMS,
    PartKind.TALLY: _STREAMS,
    PartKind.SEGMENTS: _FAULTS,
    PartKind.WITNESS: _FINDINGS,
    PartKind.MARKS: "cells * findings * 256",
    PartKind.RANGE: _CELLS,
    PartKind.SECOND: _SECONDS,
    PartKind.LATENCY: _FAULTS,
    PartKind.LATENCY_RUN: "distinct latencies (only without a scratch folder)",
    PartKind.LATENCY_FILE: _CELLS,
    PartKind.LATENCY_SECOND: "cells * seconds of a cell * buckets of latency",
    PartKind.LATENCY_MAX: _SECONDS,
    PartKind.SECOND_PERCENTILES: "seconds",
    PartKind.PACKED_SECONDS: "seconds",
    PartKind.PACKED_LATENCIES: "seconds",
    PartKind.LATENCY_BUCKETS: "buckets of latency",
    PartKind.FAULT_TIMES: "faults",
    PartKind.REGROUPED: "tasks",
    PartKind.ANSWER_FILE: "tasks",
    PartKind.BINS: "cells * 400",
    PartKind.BIN_LATENCY: "cells * 400 * buckets of latency",
    PartKind.STRETCHES: "cells * streams * 256",
    PartKind.REACHED: _CELLS,
    PartKind.SLOT_STATS: "cells * slots of 10 ms around faults",
    PartKind.TAIL: _STREAMS,
    PartKind.BATCHES: _STREAMS,
    PartKind.LOST_TRANSACTIONS: "transactions that lost a message",
    PartKind.UNREADABLE: "logs with unreadable records",
    PartKind.UNDECIDED: _CELLS,
    PartKind.UNSETTLED: _UNKNOWN,
    PartKind.ORDER: _STREAMS,
    PartKind.SPANS: "cells * streams in disorder * 4096",
    PartKind.LATE: "cells * streams in disorder * 256",
    PartKind.LATE_SEGMENTS: "cells * streams in disorder * faults",
    PartKind.DOUBTFUL: "ranges of offsets in doubt",
    PartKind.UNPROVEN: "attempts whose offset is no evidence",
    PartKind.MIRROR_REACH: _LOGS,
    PartKind.GROUP_REACH: _LOGS,
    PartKind.BEGAN: _LOGS,
    PartKind.LANE_COUNTS: _LANES,
    PartKind.LANE_LENGTHS: _LANES,
    PartKind.LANE_MARKS: "lanes * findings * 256",
    PartKind.LANE_ROWS: "tasks * groups * 20 lanes * 256",
    PartKind.STREAM_COUNTS: "tasks * findings",
    PartKind.STREAM_FILE: "tasks",
    PartKind.ANOMALY_FILE: _FINDINGS,
    PartKind.LATE_FILE: _FINDINGS,
    PartKind.PRODUCERS: "producers",
    PartKind.EXCESS: "tasks * groups",
    PartKind.BATCH_COUNT: "tasks * groups",
    PartKind.LAST_IN_TARGET: _STREAMS,
    PartKind.DELIVERED_UNTIL: _STREAMS,
    PartKind.PLACED_SINCE: _STREAMS,
    PartKind.SEEN_TRANSACTIONS: "transactions that lost a message or have an unknown attempt",
    PartKind.SEEN_FILE: "cells * groups",
    PartKind.WANTED_TRANSACTIONS: _UNKNOWN,
    PartKind.LATEST: "keys of compacted topics",
    PartKind.ELEMENTS: _DISORDER,
    PartKind.PIECES: _DISORDER,
    PartKind.WALK: "walks * consumers * partitions",
    PartKind.JUMPS: "jumps of consumers, without those over control records",
    PartKind.SKIPS: "skips of consumers",
    PartKind.CONTESTED: "logs with contested offsets",
    PartKind.RANK_COUNTS: "percentiles * 255 * tasks",
    PartKind.RANK_PLACES: "percentiles",
}


@dataclass
class DriverUsage:
    """Counts the bytes of all parts that a runner returns."""

    received: Counter[PartKind] = field(default_factory=Counter)
    tasks: int = 0

    def watch(
        self, runner: Callable[[Sequence[_Task], Any], list[list[TaskPart]]]
    ) -> Callable[[Sequence[_Task], Any], list[list[TaskPart]]]:
        """Return a runner that does the same and counts."""

        def run(tasks: Sequence[_Task], context: Any) -> list[list[TaskPart]]:
            answers = runner(tasks, context)
            self.tasks += len(tasks)
            self._add(part for parts in answers for part in parts)
            return answers

        return run

    def _add(self, parts: Iterable[TaskPart]) -> None:
        for part in parts:
            self.received[part.kind] += part.values.nbytes + len(json.dumps(part.label))

    def lines(self) -> list[str]:
        """Return one line for each kind, the largest first, and the sum."""
        kinds = self.received.most_common()
        return [
            f"{sum(self.received.values()):,} bytes came to the driver from {self.tasks:,} tasks",
            *(f"{size:>14,}  {kind}: grows with {GROWS_WITH[kind]}" for kind, size in kinds),
        ]
