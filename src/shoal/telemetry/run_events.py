"""The event stream of a run, written by its driver, and those of its clusters and its mirror.

Rules:
- A tick is written at most once a second, when the driver reports progress, and at the end. Its
  counts and latencies are estimates: the audit judges.
- Workers count latencies by powers of two. A histogram of the event stream has 16 buckets for each;
  the counts are spread evenly over them.
- Faults are read from the commit log, into which they are written when they begin and end.
- A cluster may serve several runs: while a run goes, the events of its clusters are copied to the
  folder of the run, beginning with their last states, and ended with the run.
- A mirror that writes no events is known by its processes: whether they run, and what they use.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Protocol

from shoal.model.errors import LedgerError
from shoal.model.events import (
    BUCKETS_PER_OCTAVE,
    FILE_NAME,
    End,
    Event,
    FaultSeen,
    LatencyHistogram,
    State,
)
from shoal.telemetry.definitions import OCTAVE_BUCKETS_S
from shoal.telemetry.events import EventReader, EventWriter, now_us
from shoal.telemetry.lines import encode_event
from shoal.telemetry.processes import read_usages

TICK_EVERY_S: Final = 1.0
COMMITS_FILE: Final = "commits.jsonl"
_LONGEST_LINE_BYTES: Final = 1024 * 1024
_BOUNDS_US: Final = [bound * 1e6 for bound in OCTAVE_BUCKETS_S]

_log = logging.getLogger(__name__)

Outcome = Literal["finished", "interrupted", "failed"]
# Names and process ids.
ListProcesses = Callable[[], Iterable[tuple[str, int]]]


class PartOfRun(Protocol):
    """The events of a cluster or mirror of a run, in a folder below that of the run."""

    def look(self) -> None:
        """Write what is new; called before each tick of the run."""

    def close(self) -> None: ...


class RunEvents:
    """The event stream of one run."""

    def __init__(
        self, run_dir: Path, clusters: Mapping[str, Path] | None = None, *, name: str = "driver"
    ) -> None:
        """`clusters` are the folders of the event streams of its clusters, by role; `name` is that
        of this process."""
        self._writer = EventWriter(run_dir, "run", run_dir.name)
        self._name = name
        self._list_processes: ListProcesses = tuple
        self._commits = run_dir / COMMITS_FILE
        self._position = 0
        self._next_s = 0.0
        # What was reported since the last tick.
        self._last: tuple[Mapping[str, int], Mapping[str, Sequence[int]]] | None = None
        self._latencies: dict[str, Sequence[int]] = {}
        self._faults: dict[int, str] = {}
        self._parts: list[PartOfRun] = [
            ClusterCopy(folder, run_dir / role) for role, folder in (clusters or {}).items()
        ]

    def add_part(self, part: PartOfRun) -> None:
        """Let this part look before each tick, and close it with the run."""
        self._parts.append(part)

    def watch_processes(self, list_processes: ListProcesses) -> None:
        """Write what these processes of this machine use, too; they may change."""
        self._list_processes = list_processes

    def on_progress(
        self, counters: Mapping[str, int], latencies: Mapping[str, Sequence[int]]
    ) -> None:
        """Write a tick if it is time; `latencies` has counts by powers of two, then the sum."""
        self._last = counters, latencies
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + TICK_EVERY_S
            self._tick()

    def _tick(self) -> None:
        if self._last is None:
            return
        (counters, latencies), self._last = self._last, None
        self._write_faults()
        for part in self._parts:
            part.look()
        histograms = {
            kind: _subtract(found, self._latencies.get(kind)) for kind, found in latencies.items()
        }
        self._latencies = dict(latencies)
        self._writer.tick(
            counters=counters,
            histograms={kind: found for kind, found in histograms.items() if found is not None},
            processes=read_usages([(self._name, os.getpid()), *self._list_processes()]),
        )

    def close(self, outcome: Outcome, text: str = "") -> None:
        self._tick()  # the last counts
        self._write_faults()
        for part in self._parts:
            part.close()
        self._writer.close(outcome, text)

    def _write_faults(self) -> None:
        try:
            with self._commits.open("rb") as file:
                file.seek(self._position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._position += len(line)
                    if b'"fault"' in line and len(line) < _LONGEST_LINE_BYTES:
                        self._write_fault(json.loads(line))
        except (OSError, ValueError):
            return  # the audit reads it too, and reports what is wrong with it

    def _write_fault(self, line: dict[str, Any]) -> None:
        match line:
            case {"kind": "fault", "fault": int(number), "phase": "begin" | "end" as phase}:
                target = str(line.get("target", ""))
                what = self._faults.setdefault(number, f"{line.get('name')} {target}".strip())
                at_us = line.get("at_us")
                t = at_us if isinstance(at_us, int) else now_us()
                self._writer.append(FaultSeen(t, str(number), phase, what, target))


def _subtract(now: Sequence[int], before: Sequence[int] | None) -> LatencyHistogram | None:
    """What was counted since the last tick."""
    if before is None or len(before) != len(now):
        before = [0] * len(now)
    added = [new - old for new, old in zip(now, before, strict=True)]
    buckets: dict[str, int] = {}
    for place, count in enumerate(added[:-1]):
        for bucket, share in _spread(place, max(0, count)):
            buckets[str(bucket)] = buckets.get(str(bucket), 0) + share
    count = sum(buckets.values())
    return LatencyHistogram(count, max(0, added[-1]), buckets) if count else None


def _spread(place: int, count: int) -> list[tuple[int, int]]:
    """The counts of fine buckets for those of one power of two; the last has no upper bound."""
    upper = _BOUNDS_US[min(place, len(_BOUNDS_US) - 1)]
    lower = _BOUNDS_US[place - 1] if place else upper / 2
    first = max(0, round(BUCKETS_PER_OCTAVE * math.log2(max(1.0, lower))))
    last = max(first + 1, round(BUCKETS_PER_OCTAVE * math.log2(upper)))
    if place >= len(_BOUNDS_US):
        last = first + 1
    width = last - first
    shares = [count * (n + 1) // width - count * n // width for n in range(width)]
    return [(first + n, share) for n, share in enumerate(shares) if share]


class ClusterCopy:
    """Copies the events of a cluster to the folder of a run."""

    def __init__(self, source: Path, target: Path) -> None:
        self._reader = EventReader(source)
        self._target = target
        self._file: BinaryIO | None = None
        self._has_failed = False

    def look(self) -> None:
        """Copy what was written since the last call."""
        if self._has_failed:
            return
        try:
            self._copy()
        except (OSError, LedgerError) as error:
            self._has_failed = True
            _log.warning("the events of a cluster are not copied to %s: %s", self._target, error)

    def close(self) -> None:
        self.look()
        self._reader.close()
        if self._file is not None:
            self._file.write(encode_event(End(now_us(), "finished", "the run has ended")))
            self._file.close()

    def _copy(self) -> None:
        events = self._reader.read().events
        if self._file is None:
            meta = self._reader.meta
            if meta is None:
                return
            # Of what was before the run only the last states matter.
            while more := self._reader.read().events:
                events += more
            states = {event.object: event for event in events if isinstance(event, State)}
            events = [meta, *states.values()]
            self._target.mkdir(exist_ok=True)
            self._file = (self._target / FILE_NAME).open("wb")
        self._write(self._file, events)

    @staticmethod
    def _write(file: BinaryIO, events: Sequence[Event]) -> None:
        file.writelines(encode_event(event) for event in events)
        file.flush()


class ProcessEvents:
    """The events of a mirror that writes none, such as MirrorMaker 2: those of its processes."""

    def __init__(
        self,
        folder: Path,
        name: str,
        details: Mapping[str, Any],
        list_pids: Callable[[], Sequence[int]],
    ) -> None:
        self._writer = EventWriter(folder, "mirror", name, details=details)
        self._list_pids = list_pids

    def look(self) -> None:
        pids = self._list_pids()
        self._writer.set_state("mirror", "running" if pids else "dead")
        named = (("mirror" if n == 1 else f"mirror {n}", pid) for n, pid in enumerate(pids, 1))
        self._writer.tick(processes=read_usages(named))

    def close(self) -> None:
        self._writer.close("finished")
