"""Applies faults at their times and records what really happened.

Rules of this file:
- The commit log has a line when a fault begins and a line when it ends. Numbers start at 1, in
  order of begin. A fault that could not be applied ends at once, with the reason in the detail of
  its end.
- Each fault runs in its own thread: a slow one (a node that needs long to restart) does not delay
  the others.
- `stop` ends every active fault: links are healed, paused processes resume. Only a process that
  was killed without `for` stays down, and its fault has no end.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from shoal.faults.targets import MIRROR, Targets
from shoal.faults.timeline import LINK_FAULTS, Fault, Occurrence, Timeline
from shoal.model.errors import ShoalError, UsageError
from shoal.runtime.tasks import start_thread

# A node of Apache Kafka may need minutes on a busy machine.
END_TIMEOUT_S: Final = 300.0

_log = logging.getLogger(__name__)

Record = Callable[[dict[str, Any]], None]
Undo = Callable[[], None]


@dataclass(eq=False)
class _ActiveFault:
    """A fault that has begun and not ended."""

    occurrence: Occurrence
    number: int
    target: str
    problem: Exception | None = None  # why its target could not be resolved
    # Set to end the fault before its time.
    is_over: threading.Event = field(default_factory=threading.Event)
    # Another fault has restarted what this one killed.
    is_undone: bool = False

    @property
    def fault(self) -> Fault:
        return self.occurrence.fault


class FaultRunner:
    """Applies the faults of a timeline to the targets of a run."""

    def __init__(
        self,
        timeline: Timeline,
        targets: Targets,
        record: Record,
        *,
        until_s: float | None = None,
    ) -> None:
        """No fault begins at `until_s` or later; `record` writes a line to the commit log."""
        self._timeline = timeline
        self._targets = targets
        self._record = record
        self._until_s = until_s
        self._lock = threading.Lock()
        self._count = 0
        self._running: set[_ActiveFault] = set()
        self._threads: list[threading.Thread] = []
        self._is_stopping = threading.Event()
        self._started_s = 0.0
        self.failures: list[str] = []

    def start(self, started_s: float | None = None) -> None:
        """Start the timeline now, or as if at `started_s` of the monotonic clock."""
        self._started_s = time.monotonic() if started_s is None else started_s
        self._spawn(self._run_timeline)

    def stop(self) -> None:
        """Stop beginning faults, end the active ones, and wait for that."""
        self._is_stopping.set()
        with self._lock:
            for running in self._running:
                running.is_over.set()
        deadline = time.monotonic() + END_TIMEOUT_S
        while self._threads:
            thread = self._threads.pop()
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.failures.append(f"{thread.name} did not end within {END_TIMEOUT_S:g} s")

    def inject(self, fault: Fault) -> Callable[[], None]:
        """Apply a fault outside of the timeline; returns when it is in effect, or has failed.

        The result is a function that ends it before its time.
        """
        running = self._begin(Occurrence(0.0, fault, 0))
        self._carry_out(running, wait_for_end=self._spawn)
        return running.is_over.set

    def _spawn(self, work: Callable[[], None]) -> None:
        def on_failure(error: Exception) -> None:
            self.failures.append(f"internal error while applying a fault: {error!r}")

        name = f"fault-{len(self._threads)}"
        self._threads.append(start_thread(name, work, on_failure=on_failure))

    def _run_timeline(self) -> None:
        for occurrence in self._timeline.occurrences(self._until_s):
            left_s = self._started_s + occurrence.at_s - time.monotonic()
            if self._is_stopping.wait(max(0.0, left_s)):
                return
            self._spawn(lambda occurrence=occurrence: self._run_fault(occurrence))  # type: ignore[misc]

    def _run_fault(self, occurrence: Occurrence) -> None:
        """Run one fault from begin to end."""
        self._carry_out(self._begin(occurrence), wait_for_end=lambda wait: wait())

    def _carry_out(
        self, running: _ActiveFault, *, wait_for_end: Callable[[Callable[[], None]], None]
    ) -> None:
        """Apply a fault that has begun; `wait_for_end` calls what waits for its end."""
        try:
            undo = self._apply(running)
        except Exception as error:  # noqa: BLE001 - the run continues without this fault
            self._record_failure(running, error)
            return
        if undo is None:
            self._record_end(running)
        else:
            wait_for_end(lambda: self._end(running, undo))

    def _end(self, running: _ActiveFault, undo: Undo) -> None:
        """End a fault after its time, or when it is to end earlier."""
        occurrence = running.occurrence
        running.is_over.wait(occurrence.fault.lasts_s)
        stays_dead = occurrence.fault.name == "kill" and occurrence.fault.lasts_s is None
        if stays_dead and not running.is_undone:
            with self._lock:
                self._running.discard(running)
            return
        try:
            if not running.is_undone:
                undo()
        except Exception as error:  # noqa: BLE001 - as above
            self._record_failure(running, error)
        else:
            self._record_end(running)

    # The commit log

    def _begin(self, occurrence: Occurrence) -> _ActiveFault:
        target, problem = occurrence.fault.described_target, None
        try:
            target = self._resolve_target(occurrence)
        except Exception as error:  # noqa: BLE001 - recorded as a failed fault
            problem = error
        # Under the lock, so that numbers ascend in the order of the log's lines.
        with self._lock:
            self._count += 1
            running = _ActiveFault(occurrence, self._count, target, problem)
            self._running.add(running)
            if self._is_stopping.is_set():
                running.is_over.set()
            self._write(running, "begin", occurrence.fault.detail())
        return running

    def _resolve_target(self, occurrence: Occurrence) -> str:
        """The target as the log names it: `source/2` where the file says `source/leader`."""
        fault, choice_seed = occurrence.fault, occurrence.choice_seed
        if fault.name in LINK_FAULTS:
            ends = [
                ",".join(name for place in places for name in self._places(place, occurrence))
                for places in (fault.sources, fault.targets)
            ]
            return f"{ends[0]}{'->' if fault.is_one_way else '<->'}{ends[1]}"
        if fault.target.partition("/")[0] in self._targets.nodes and "/" in fault.target:
            cluster, ids = self._targets.nodes_of(fault.target, fault, choice_seed)
            return ",".join(f"{cluster}/{node_id}" for node_id in ids)
        if fault.name == "kill" and fault.target != MIRROR:
            return ",".join(self._targets.workers_of(fault.target, choice_seed))
        return fault.target

    def _places(self, place: str, occurrence: Occurrence) -> list[str]:
        return self._targets.places_of(place, occurrence.fault, occurrence.choice_seed)

    def _record_end(self, running: _ActiveFault, **detail: Any) -> None:
        with self._lock:
            self._running.discard(running)
            self._write(running, "end", detail)

    def _record_failure(self, running: _ActiveFault, error: Exception) -> None:
        reason = str(error) or repr(error)
        _log.warning("fault %d (%s) failed: %s", running.number, running.fault.name, reason)
        self.failures.append(f"{running.fault.name} of {running.target} failed: {reason}")
        self._record_end(running, failed=reason[:1000])

    def _write(self, running: _ActiveFault, phase: str, detail: dict[str, Any]) -> None:
        try:
            self._record(
                {
                    "kind": "fault",
                    "at_us": time.time_ns() // 1000,
                    "fault": running.number,
                    "phase": phase,
                    "name": running.fault.name,
                    "target": running.target,
                    "detail": detail,
                }
            )
        except ShoalError as error:
            self.failures.append(
                f"could not write fault {running.number} to the commit log: {error}"
            )

    # Applying faults

    def _apply(self, running: _ActiveFault) -> Undo | None:
        """Apply a fault; returns how to undo it, or None if there is nothing to undo."""
        fault = running.fault
        if running.problem is not None:
            raise running.problem
        if fault.name in LINK_FAULTS:
            return self._apply_link_fault(running)
        if fault.name == "heal":
            self._end_running_faults(lambda other: other.fault.name in LINK_FAULTS)
            return None
        cluster = fault.target.partition("/")[0]
        if fault.name in {"recreate_topic", "grow", "purge"}:
            self._change_topic(fault)
            return None
        if cluster in self._targets.nodes:
            return self._apply_node_fault(running)
        if fault.target == MIRROR:
            return self._apply_mirror_fault(fault)
        return self._kill_workers(running)

    def _apply_link_fault(self, running: _ActiveFault) -> Undo | None:
        links, fault = self._targets.links, running.fault
        if links is None:
            raise UsageError("this run has no proxied links to apply a fault to")
        arrow = "->" if fault.is_one_way else "<->"
        sources, targets = (end.split(",") for end in running.target.split(arrow))
        if fault.name == "reset":
            links.reset(sources, targets)
            return None
        numbers = list(links.add_fault(sources, targets, fault.effect))
        if not fault.is_one_way:
            numbers += links.add_fault(targets, sources, fault.effect)
        return lambda: links.remove_faults(numbers)

    def _apply_node_fault(self, running: _ActiveFault) -> Undo | None:
        fault = running.fault
        if "/" in running.target:
            cluster = running.target.partition("/")[0]
            ids = [int(name.partition("/")[2]) for name in running.target.split(",")]
        else:
            cluster, ids = self._targets.nodes_of(
                fault.target, fault, running.occurrence.choice_seed
            )
        nodes = self._targets.nodes[cluster]
        if fault.name == "kill":
            for node_id in ids:
                nodes.kill(node_id)
            return lambda: _each(nodes.restart, ids)
        if fault.name == "pause":
            for node_id in ids:
                nodes.pause(node_id)
            return lambda: _each(nodes.resume, ids)
        for place, node_id in enumerate(ids):
            if place and self._is_stopping.wait(fault.rest_s):
                break
            nodes.restart(node_id)
            restarted = f"{cluster}/{node_id}"
            self._end_running_faults(
                lambda other, name=restarted: (
                    other.fault.name == "kill"  # type: ignore[misc]
                    and other.target == name
                    and other.fault.lasts_s is None
                ),
                is_undone=True,
            )
        return None

    def _apply_mirror_fault(self, fault: Fault) -> Undo:
        mirror = self._targets.mirror
        if mirror is None:
            raise UsageError("this run has no mirror that it started itself")
        if fault.name == "pause":
            mirror.pause()
            return mirror.resume
        mirror.kill()
        return mirror.start

    def _kill_workers(self, running: _ActiveFault) -> Undo | None:
        workers, names = self._targets.workers, running.target.split(",")
        if workers is None:
            raise UsageError("this run has no workers to kill")
        for name in names:
            workers.kill(name)
        if running.fault.lasts_s is None:
            return lambda: None
        # The supervisor restarts them; the fault ends when they are back.
        for name in names:
            workers.wait_until_back(name)
        return None

    def _change_topic(self, fault: Fault) -> None:
        admin = self._targets.admins[fault.target]
        topic = self._targets.topic_of(fault, fault.target)
        if fault.name == "recreate_topic":
            admin.recreate(topic)
        elif fault.name == "grow":
            admin.grow(topic, fault.partitions)
        else:
            admin.purge(topic, fault.keep)

    def _end_running_faults(
        self, concerns: Callable[[_ActiveFault], bool], *, is_undone: bool = False
    ) -> None:
        """End earlier faults that the present one heals or replaces."""
        with self._lock:
            for other in filter(concerns, self._running):
                other.is_undone = is_undone
                other.is_over.set()


def _each(action: Callable[[int], None], ids: list[int]) -> None:
    for node_id in ids:
        action(node_id)
