"""Faults brought about at their times, and written down as they really happened.

Rules of this file:
- Every fault has a line when it begins and, once it is over, a line when it ended; numbers
  count from 1 in order of begin. A fault that could not be brought about ends at once, with
  the reason in the detail of its end.
- Each fault has a thread: one that takes long (a node that is slow to come back) makes no
  other late.
- `stop` ends everything that is still wrong: links are healed, what is paused goes on. Only
  what was killed with no `for` stays dead, and has no end.
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
END_PATIENCE_S: Final = 300.0

_log = logging.getLogger(__name__)

Record = Callable[[dict[str, Any]], None]
Undo = Callable[[], None]


@dataclass(eq=False)
class _Running:
    """A fault that has begun."""

    occurrence: Occurrence
    number: int
    target: str
    problem: Exception | None = None  # why its target was not found
    # Set when it is to end before its time.
    is_over: threading.Event = field(default_factory=threading.Event)
    # Somebody else has brought back what it killed.
    is_undone: bool = False

    @property
    def fault(self) -> Fault:
        return self.occurrence.fault


class FaultRunner:
    """Plays a timeline against targets."""

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
        self._running: set[_Running] = set()
        self._threads: list[threading.Thread] = []
        self._is_stopping = threading.Event()
        self._started_s = 0.0
        self.failures: list[str] = []

    def start(self, started_s: float | None = None) -> None:
        """Count times from now, or from that moment of the monotonic clock."""
        self._started_s = time.monotonic() if started_s is None else started_s
        self._spawn(self._play)

    def stop(self) -> None:
        """Begin nothing more, end what is wrong; returns when that is done."""
        self._is_stopping.set()
        with self._lock:
            for running in self._running:
                running.is_over.set()
        deadline = time.monotonic() + END_PATIENCE_S
        while self._threads:
            thread = self._threads.pop()
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.failures.append(f"{thread.name} did not end")

    def _spawn(self, work: Callable[[], None]) -> None:
        def on_failure(error: Exception) -> None:
            self.failures.append(f"a fault could not be played: {error!r}")

        name = f"fault-{len(self._threads)}"
        self._threads.append(start_thread(name, work, on_failure=on_failure))

    def _play(self) -> None:
        for occurrence in self._timeline.occurrences(self._until_s):
            left_s = self._started_s + occurrence.at_s - time.monotonic()
            if self._is_stopping.wait(max(0.0, left_s)):
                return
            self._spawn(lambda occurrence=occurrence: self._live(occurrence))  # type: ignore[misc]

    def _live(self, occurrence: Occurrence) -> None:
        """One fault from begin to end."""
        running = self._begun(occurrence)
        try:
            undo = self._act(running)
        except Exception as error:  # noqa: BLE001 - whatever it was, the run goes on without it
            self._failed(running, error)
            return
        if undo is None:
            self._ended(running)
            return
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
            self._failed(running, error)
        else:
            self._ended(running)

    # What is written down

    def _begun(self, occurrence: Occurrence) -> _Running:
        target, problem = occurrence.fault.described_target, None
        try:
            target = self._resolved(occurrence)
        except Exception as error:  # noqa: BLE001 - it is a fault that failed, and told as one
            problem = error
        # Numbers in the log must count in the order of its lines.
        with self._lock:
            self._count += 1
            running = _Running(occurrence, self._count, target, problem)
            self._running.add(running)
            if self._is_stopping.is_set():
                running.is_over.set()
            self._write(running, "begin", occurrence.fault.detail())
        return running

    def _resolved(self, occurrence: Occurrence) -> str:
        """Whom it hits, in the log's words: `source/2` where the file says `source/leader`."""
        fault, chance = occurrence.fault, occurrence.chance
        if fault.name in LINK_FAULTS:
            ends = [
                ",".join(name for place in places for name in self._places(place, occurrence))
                for places in (fault.sources, fault.targets)
            ]
            return f"{ends[0]}{'->' if fault.is_one_way else '<->'}{ends[1]}"
        if fault.target.partition("/")[0] in self._targets.nodes and "/" in fault.target:
            cluster, ids = self._targets.nodes_of(fault.target, fault, chance)
            return ",".join(f"{cluster}/{node_id}" for node_id in ids)
        if fault.name == "kill" and fault.target != MIRROR:
            return ",".join(self._targets.workers_of(fault.target, chance))
        return fault.target

    def _places(self, place: str, occurrence: Occurrence) -> list[str]:
        return self._targets.places_of(place, occurrence.fault, occurrence.chance)

    def _ended(self, running: _Running, **detail: Any) -> None:
        with self._lock:
            self._running.discard(running)
            self._write(running, "end", detail)

    def _failed(self, running: _Running, error: Exception) -> None:
        said = str(error) or repr(error)
        _log.warning("fault %d (%s) failed: %s", running.number, running.fault.name, said)
        self.failures.append(f"{running.fault.name} of {running.target} failed: {said}")
        self._ended(running, failed=said[:1000])

    def _write(self, running: _Running, phase: str, detail: dict[str, Any]) -> None:
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
            self.failures.append(f"fault {running.number} is not in the commit log: {error}")

    # What is done

    def _act(self, running: _Running) -> Undo | None:
        """Bring it about; how to undo it, or None if there is nothing to be undone."""
        fault = running.fault
        if running.problem is not None:
            raise running.problem
        if fault.name in LINK_FAULTS:
            return self._hinder(running)
        if fault.name == "heal":
            self._end_others(lambda other: other.fault.name in LINK_FAULTS)
            return None
        cluster = fault.target.partition("/")[0]
        if fault.name in {"recreate_topic", "grow", "purge"}:
            self._change_topic(fault)
            return None
        if cluster in self._targets.nodes:
            return self._harm_nodes(running)
        if fault.target == MIRROR:
            return self._harm_mirror(fault)
        return self._kill_workers(running)

    def _hinder(self, running: _Running) -> Undo | None:
        links, fault = self._targets.links, running.fault
        if links is None:
            raise UsageError("this run has no links that could be hindered")
        arrow = "->" if fault.is_one_way else "<->"
        sources, targets = (end.split(",") for end in running.target.split(arrow))
        if fault.name == "reset":
            links.reset(sources, targets)
            return None
        numbers = list(links.hinder(sources, targets, fault.effect))
        if not fault.is_one_way:
            numbers += links.hinder(targets, sources, fault.effect)
        return lambda: links.relieve(numbers)

    def _harm_nodes(self, running: _Running) -> Undo | None:
        fault = running.fault
        if "/" in running.target:
            cluster = running.target.partition("/")[0]
            ids = [int(name.partition("/")[2]) for name in running.target.split(",")]
        else:
            cluster, ids = self._targets.nodes_of(fault.target, fault, running.occurrence.chance)
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
            brought_back = f"{cluster}/{node_id}"
            self._end_others(
                lambda other, name=brought_back: (
                    other.fault.name == "kill"  # type: ignore[misc]
                    and other.target == name
                    and other.fault.lasts_s is None
                ),
                is_undone=True,
            )
        return None

    def _harm_mirror(self, fault: Fault) -> Undo:
        mirror = self._targets.mirror
        if mirror is None:
            raise UsageError("this run has no mirror of ours")
        if fault.name == "pause":
            mirror.pause()
            return mirror.resume
        mirror.kill()
        return mirror.start

    def _kill_workers(self, running: _Running) -> Undo | None:
        workers, names = self._targets.workers, running.target.split(",")
        if workers is None:
            raise UsageError("this run has no workers that could be killed")
        for name in names:
            workers.kill(name)
        if running.fault.lasts_s is None:
            return lambda: None
        # They come back by themselves; the fault is over when they have.
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

    def _end_others(self, concerns: Callable[[_Running], bool], *, is_undone: bool = False) -> None:
        with self._lock:
            for other in filter(concerns, self._running):
                other.is_undone = is_undone
                other.is_over.set()


def _each(action: Callable[[int], None], ids: list[int]) -> None:
    for node_id in ids:
        action(node_id)
