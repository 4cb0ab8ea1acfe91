"""Runs the workload of an experiment on running clusters: workers, drain, scans; no verdict.

Rules:
- `run.json` always has the state of the run: `running`, then `finished` or `interrupted`.
- Ctrl-C or SIGTERM once while messages are sent: producers send nothing new, messages on the way
  are drained, and the run is judged as far as it went. Again, or once at any other time: the run
  ends at once; its ledgers stay and can be judged later (`shoal.runtime.interrupts`).
- A worker that dies is not restarted, and its death is not hidden: messages whose outcome it did
  not record are judged as unknown.
- Everything that the run creates on a cluster is in its manifest before it is created.
"""

import asyncio
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from shoal import __version__
from shoal.experiment import plan
from shoal.experiment.faults.growth import ARRIVAL_LIMIT_S, Growth
from shoal.experiment.plan import Addresses, StartOffsets
from shoal.experiment.runs import driver_identity
from shoal.experiment.spec import ExperimentSpec
from shoal.experiment.topics import prepare_topics, resolve_existing_topics
from shoal.mirror.offsets.positions import read_positions, read_rebatched
from shoal.mirror.offsets.re_encoded import read_re_encoded
from shoal.model.errors import ShoalError, SystemFailure
from shoal.model.run_folder import read_plan, read_url
from shoal.runtime.interrupts import drain_first, explain_interrupt
from shoal.runtime.processes import machine_clock
from shoal.systems.metadata_events import MetadataEvents
from shoal.systems.mirror_kinds import RE_ENCODED_FILE, MirrorOptions, MirrorRoute, make_mirror
from shoal.systems.mirrors import Mirror
from shoal.telemetry.run_events import Outcome, ProcessEvents, RunEvents
from shoal.workers.placement import Placement
from shoal.workers.processes import ProcessPlacement
from shoal.workers.specs import WorkerSpec
from shoal.workers.supervision import WorkerPhase
from shoal.workers.supervisor import RunState, WorkerSupervisor
from shoal.workload.record.ledger import LedgerWriter, close_run, create_run, update_run
from shoal.workload.specs import ProducerSpec

# Long, because loading compiled code takes long on a busy machine.
START_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 30.0
WATCH_EVERY_S: Final = 0.2
# Time for the workers to get ready, so that all start at the same agreed time.
LEAD_TIME_S: Final = 0.5
# What the first Ctrl-C says, by phase.
NOTHING_SENT: Final = "nothing was sent yet; stopping what was started (again: at once)"
CUT_SHORT: Final = "the run ends; judge what it has recorded with: shoal audit {}"
DRAINING: Final = (
    "nothing new is sent; messages on the way are drained, and the run is judged as far as it went"
    " (again: end at once, and judge later with: shoal audit {})"
)

Json = dict[str, Any]


class LatencyExample(NamedTuple):
    """One message and its end-to-end latency."""

    topic: str
    producer: str
    lane: int
    sequence: int
    latency_us: int
    received_us: int


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run, reported several times a second."""

    doing: str
    sent: int = 0
    received: int = 0
    total: int = 0
    acked: int = 0
    failed: int = 0
    unknown: int = 0
    # Acknowledged messages that a group has not received yet, an estimate; of the worst group.
    missing: int = 0
    # Of a step other than sending and receiving.
    done: int = 0
    to_do: int = 0
    unit: str = ""
    # By kind: counts of the buckets of the metric, then the sum in microseconds.
    latencies: dict[str, list[int]] = field(default_factory=dict)
    # A message for each bucket of the end-to-end latencies.
    examples: dict[int, "LatencyExample"] = field(default_factory=dict)


Watch = Callable[[RunProgress], None]


def no_watch(_step: RunProgress) -> None:
    """Reports to nobody."""


class LogScanner(Protocol):
    """Runs scans elsewhere than in workers."""

    def scan(
        self,
        run_dir: Path,
        scans: Sequence[WorkerSpec],
        *,
        commit: Callable[[Json], None],
        report: Callable[[int, int], None],
    ) -> None:
        """Run these scans to their ends; `commit` gets their lines of the commit log, `report` how
        many tasks have ended, and of how many."""


class FaultHooks(Protocol):
    """Injects the faults of a run while messages are sent."""

    def begin(self, started_us: int, workers: WorkerSupervisor, mirror: Mirror | None) -> None:
        """Called once the workers have their start time; must not block."""

    def check(self) -> None:
        """Raise if a fault failed and the run must end: it would prove less than it claims."""

    def end(self) -> None:
        """Heal all faults that are still active, and return when they are healed."""


@dataclass(frozen=True, slots=True)
class WorkerLocation:
    """Where workers run, and the address at which they reach this driver."""

    placement: Placement = field(default_factory=ProcessPlacement)
    host: str = "127.0.0.1"
    port: int = 0  # 0: any
    scanner: LogScanner | None = None  # None: scans are workers


def run_workload(
    spec: ExperimentSpec,
    *,
    addresses: Addresses,
    run_dir: Path,
    watch: Watch,
    location: WorkerLocation | None = None,
    faults: FaultHooks | None = None,
) -> None:
    """Run an experiment without judging it; its ledgers are then in `run_dir`."""
    run, location = run_dir.name, location or WorkerLocation()
    spec = asyncio.run(resolve_existing_topics(spec, addresses))
    described = plan.description(run, spec, addresses) | describe_invocation()
    create_run(run_dir, described | {"state": "running"})
    state, failure = "interrupted", ""
    events = RunEvents(run_dir, addresses.events)
    watch = _write_progress(events, watch)
    try:
        with explain_interrupt(NOTHING_SENT):
            start_offsets = asyncio.run(prepare_topics(run_dir, spec, addresses))
        _watch_clusters(events, spec, addresses, run_dir)
        with (
            explain_interrupt(CUT_SHORT.format(run_dir)),
            _mirror(spec, addresses, run_dir, watch) as mirror,
            WorkerSupervisor(
                run,
                run_dir,
                location.placement,
                groups=spec.consumers.groups,
                address=(location.host, location.port),
            ) as workers,
        ):
            _watch_processes(events, workers, mirror, run_dir)
            transfer = _Transfer(spec, addresses, start_offsets, run_dir=run_dir, watch=watch)
            is_cut_short = transfer.send_and_receive(workers, mirror, faults)
            if mirror is not None:
                mirror.stop()
                _record_mirror(workers, run_dir, mirror)
                _record_re_encoded(workers, run_dir, spec)
            scans = plan.scan_workers(run, spec, addresses, start_offsets)
            if growth := transfer.growth_spec():
                scans += plan.scan_workers(run, growth, addresses, {})
            _read_logs(scans, workers, location, run_dir=run_dir, watch=watch)
        state = "interrupted" if is_cut_short else "finished"
    except ShoalError as error:
        failure = error.message
        raise
    finally:
        close_run(run_dir, state)
        outcome: Outcome = "finished" if state == "finished" else "interrupted"
        events.close("failed" if failure else outcome, failure)


def _watch_clusters(
    events: RunEvents, spec: ExperimentSpec, addresses: Addresses, run_dir: Path
) -> None:
    """Write the events of clusters that write none: what their metadata shows."""
    topics = {"source": _topics_to_copy(spec)}
    topics["target"] = tuple(plan.target_topic(spec.mirror, topic) for topic in topics["source"])
    for role in addresses.clusters:
        if role in addresses.events:
            continue
        part = MetadataEvents(
            run_dir / role,
            f"{run_dir.name}/{role}",
            addresses.client_of(role),
            engine=spec.clusters[role].engine,
            topics=topics[role],
            list_nodes=addresses.nodes.get(role, tuple),
        )
        events.add_part(part)


def _watch_processes(
    events: RunEvents, workers: WorkerSupervisor, mirror: Mirror | None, run_dir: Path
) -> None:
    """Write what the workers use, and the events of a mirror that writes none."""

    def list_workers() -> list[tuple[str, int]]:
        found = workers.state().workers.values()
        return [(each.name, each.pid) for each in found if each.pid]

    events.watch_processes(list_workers)
    if mirror is not None and mirror.kind != "shoal" and mirror.log_file is not None:
        details = {"kind": mirror.kind}
        name = f"{run_dir.name}/mirror"
        events.add_part(ProcessEvents(run_dir / "mirror", name, details, mirror.pids))


def _write_progress(events: RunEvents, watch: Watch) -> Watch:
    """Write progress to the event stream of the run, too."""

    def on_progress(step: RunProgress) -> None:
        watch(step)
        if step.total:
            counters = {"sent": step.sent, "acknowledged": step.acked, "received": step.received}
            counters |= {"failed": step.failed, "unknown": step.unknown}
            events.on_progress(counters, step.latencies)

    return on_progress


def _read_logs(
    scans: Sequence[WorkerSpec],
    workers: WorkerSupervisor,
    location: WorkerLocation,
    *,
    run_dir: Path,
    watch: Watch,
) -> None:
    """Read all logs to their ends; as long as something arrives there is no time limit."""

    def report(done: int, to_do: int, unit: str = "parts") -> None:
        watch(RunProgress("reading the logs", done=done, to_do=to_do, unit=unit))

    if location.scanner is not None:
        location.scanner.scan(run_dir, scans, commit=workers.commit, report=report)
        return
    workers.launch(scans)
    names = [scan.name for scan in scans]
    while not workers.wait(_all_ended(*names), WATCH_EVERY_S):
        reports = [workers.state().workers[name].progress for name in names]
        read = sum(int(each.get("records_read", 0)) for each in reports)
        report(read, sum(int(each.get("records_to_read", 0)) for each in reports), "records")


@contextmanager
def _mirror(
    spec: ExperimentSpec, addresses: Addresses, run_dir: Path, watch: Watch
) -> Iterator[Mirror | None]:
    """Start the mirror of a run; kill it at the end if it still runs."""
    mirror = _make_planned_mirror(spec, addresses, run_dir) if addresses.target else None
    if mirror is None:
        yield None
        return
    watch(RunProgress(f"starting the mirror ({mirror.kind})"))
    try:
        with explain_interrupt(NOTHING_SENT):
            mirror.start()
            mirror.wait_until_ready()
        yield mirror
    finally:
        mirror.close()


def _make_planned_mirror(
    spec: ExperimentSpec, addresses: Addresses, run_dir: Path
) -> Mirror | None:
    wanted = spec.mirror
    route = MirrorRoute(
        source=addresses.client_of("source", "mirror"),
        target=addresses.client_of("target", "mirror"),
        topics=_topics_to_copy(spec),
        folder=run_dir.absolute(),
        leave_configs=spec.target is not None and spec.target.engine == "external",
        copies=spec.topics.target_replication_factor,
    )
    options = MirrorOptions(
        mode=plan.mirror_mode(spec),
        delivery=wanted.delivery,
        version=wanted.version,
        handler=wanted.handler,
        properties=wanted.properties,
        arguments=wanted.arguments,
        prefix=plan.prefix_of(wanted),
        start=wanted.start,
        stop=wanted.stop,
    )
    return make_mirror(wanted.kind, route, options)


def _topics_to_copy(spec: ExperimentSpec) -> tuple[str, ...]:
    growth = plan.growth_spec(spec)
    return tuple(dict.fromkeys((*spec.topics.names, *(growth.topics.names if growth else ()))))


def describe_invocation() -> Json:
    """Time, command, versions and machine, for readers of the report."""
    return {
        "started_us": time.time_ns() // 1000,
        "driver": driver_identity(),
        "command": ["shoal", *sys.argv[1:]],
        "versions": {"shoal": __version__, "python": platform.python_version()},
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "host": machine_clock(),
        },
    }


class _Transfer:
    """The part of a run in which messages are sent, copied and received."""

    def __init__(
        self,
        spec: ExperimentSpec,
        addresses: Addresses,
        start_offsets: StartOffsets,
        *,
        run_dir: Path,
        watch: Watch,
    ) -> None:
        self._spec = spec
        self._run_dir = run_dir
        self._specs = plan.workload_workers(run_dir.name, spec, addresses, start_offsets)
        self._producers = plan.producer_names(spec)
        self._consumers = plan.consumer_names(spec)
        self._watch = watch
        self._total = plan.total_messages(spec)
        self._growth = Growth(spec, addresses, run=run_dir.name)

    def send_and_receive(
        self, workers: WorkerSupervisor, mirror: Mirror | None, faults: FaultHooks | None
    ) -> bool:
        """Send, copy, receive and drain all messages; True if the user interrupted it."""
        names = [*self._producers, *self._consumers]
        self._watch(RunProgress("starting the workers"))
        with explain_interrupt(NOTHING_SENT):
            workers.launch(self._specs)
            is_begun = workers.wait(_all_started(*names), START_TIMEOUT_S)
            _require(is_begun, workers, "the workers did not start")
        start_us = time.time_ns() // 1000 + int(LEAD_TIME_S * 1e6)
        workers.start_at(start_us)
        if self._spec.warm_up_s:
            self._record_measure_start(start_us)
        if faults is not None:
            faults.begin(start_us, workers, mirror)
        try:
            is_cut_short = self._wait_until_drained(workers, mirror, faults)
        finally:
            if faults is not None:
                faults.end()
        names += [*self._growth.producers, *self._growth.consumers]
        workers.stop_workers(names)
        workers.wait(_all_ended(*names), STOP_TIMEOUT_S)
        self._watch(_progress(workers.state(), self._total))
        return is_cut_short

    def growth_spec(self) -> ExperimentSpec | None:
        """The workload on what grew during the run; None if nothing did."""
        return plan.growth_spec(self._spec) if self._growth.is_over else None

    def _record_measure_start(self, start_us: int) -> None:
        """Record from when messages are measured: those due in the warm-up are not."""
        from_us = start_us + int(self._spec.warm_up_s * 1e6)
        _update_run_file(self._run_dir, measure_from_us=from_us)

    def _wait_until_drained(
        self, workers: WorkerSupervisor, mirror: Mirror | None, faults: FaultHooks | None
    ) -> bool:
        is_cut_short = False
        settings = self._spec.producers.settings
        drain_s = settings.get("drain_timeout_s", ProducerSpec.drain_timeout_s)
        started_s = time.monotonic() + LEAD_TIME_S
        deadline = started_s + plan.send_duration_s(self._spec) * 3 + drain_s + 60
        if not self._growth.is_over:
            deadline += ARRIVAL_LIMIT_S
        with drain_first(DRAINING.format(self._run_dir)) as is_interrupted:
            # The loop also ends when producers or consumers die: a dead producer sends nothing
            # more, and a dead consumer receives no markers unless its group takes over.
            while time.monotonic() < deadline and not self._is_over(workers, is_cut_short):
                if not is_cut_short:
                    self._growth.step(time.monotonic() - started_s, workers)
                if mirror is not None:
                    mirror.check()
                if faults is not None:
                    faults.check()
                self._watch(_progress(workers.state(), self._total))
                if is_interrupted() and not is_cut_short:
                    is_cut_short = True
                    workers.finish([*self._producers, *self._growth.producers])
                    if faults is not None:
                        faults.end()  # so that messages on the way can arrive
        return is_cut_short

    def _is_over(self, workers: WorkerSupervisor, is_cut_short: bool) -> bool:
        """Whether all is sent and drained, or no longer can be; waits a little."""
        growth = self._growth
        producers = [*self._producers, *growth.producers]
        consumers = [*self._consumers, *growth.consumers]
        is_shared = bool(self._spec.consumers.settings.get("in_group"))
        is_done = workers.wait(_is_over(producers, consumers, is_shared=is_shared), WATCH_EVERY_S)
        return is_done and (growth.is_over or is_cut_short)


def _progress(state: RunState, total: int) -> RunProgress:
    def count(name: str) -> int:
        return sum(int(worker.progress.get(name, 0)) for worker in state.workers.values())

    received: Counter[str] = Counter()
    for report in (worker.progress for worker in state.workers.values()):
        if "group" in report:
            received[report["group"]] += report["received"] - report["duplicates"]
    acked = count("ok")
    return RunProgress(
        "sending and receiving",
        sent=count("attempts"),
        received=count("received"),
        total=total,
        acked=acked,
        failed=count("failed"),
        unknown=count("unknown"),
        missing=max((acked - each for each in received.values()), default=0),
        latencies=sum_latencies([worker.progress for worker in state.workers.values()]),
        examples=_newest_examples(worker.progress for worker in state.workers.values()),
    )


def _newest_examples(reports: Iterable[Json]) -> dict[int, LatencyExample]:
    newest: dict[int, LatencyExample] = {}
    for report in reports:
        for bucket, *fields in report.get("end_to_end_examples", ()):
            example = LatencyExample(*fields)
            if bucket not in newest or newest[bucket].received_us < example.received_us:
                newest[bucket] = example
    return newest


def sum_latencies(reports: Iterable[Json]) -> dict[str, list[int]]:
    """The latencies in the progress of workers, by kind: counts of buckets, then the sum in µs."""
    totals: dict[str, list[int]] = {}
    for report in reports:
        for kind in ("produce", "end_to_end"):
            found = report.get(f"{kind}_latency")
            if found is not None:
                known = totals.get(kind, [0] * len(found))
                totals[kind] = [a + int(b) for a, b in zip(known, found, strict=True)]
    return totals


def _all_started(*names: str) -> Callable[[RunState], bool]:
    done = {WorkerPhase.RUNNING, WorkerPhase.ENDED}
    return lambda state: all(state.workers[name].phase in done for name in names)


def _all_ended(*names: str) -> Callable[[RunState], bool]:
    return lambda state: all(state.workers[name].phase is WorkerPhase.ENDED for name in names)


def _is_over(
    producers: list[str], consumers: list[str], *, is_shared: bool
) -> Callable[[RunState], bool]:
    all_sent, enough = _all_ended(*producers), all if is_shared else any
    return lambda state: (
        all_sent(state)
        or enough(state.workers[name].phase is WorkerPhase.ENDED for name in consumers)
    )


def _require(condition: bool, workers: WorkerSupervisor, problem: str) -> None:
    failed = workers.state().find_failed()
    if failed:
        worker = failed[0]
        raise SystemFailure(f"worker {worker.name} {worker.reason}: {worker.error}")
    if not condition:
        raise SystemFailure(f"{problem} within {START_TIMEOUT_S:.0f} s")


def _update_run_file(run_dir: Path, **more: Any) -> None:
    """Add fields to `run.json`."""
    update_run(run_dir, read_plan(run_dir) | more)


def _record_mirror(workers: WorkerSupervisor, run_dir: Path, mirror: Mirror) -> None:
    """Write the mirror's usage to `run.json`, and its reported positions to the ledgers."""
    usage = mirror.usage()
    described = read_plan(run_dir)["mirror"]
    described["usage"] = usage.to_json() if usage else None
    file = mirror.positions_file
    if file is None or not file.exists():
        _update_run_file(run_dir, mirror=described)
        return
    _update_run_file(run_dir, mirror=described | {"rebatched": read_rebatched(file)})
    writer = _open_driver_ledger(workers, run_dir, "positions")
    for (topic, partition), offset in read_positions(file).items():
        writer.append(reader="mirror", topic=topic, partition=partition, offset=offset)
    asyncio.run(writer.seal())


def _record_re_encoded(workers: WorkerSupervisor, run_dir: Path, spec: ExperimentSpec) -> None:
    """Record the batches that shoal's mirror re-encoded, by the producers' names of topics."""
    file = run_dir / RE_ENCODED_FILE
    if not file.exists():
        return
    names = {plan.target_topic(spec.mirror, topic): topic for topic in _topics_to_copy(spec)}
    writer = _open_driver_ledger(workers, run_dir, "re_encoded")
    for (topic, partition), offset in sorted(read_re_encoded(file)):
        writer.append(topic=names.get(topic, topic), partition=partition, offset=offset)
    asyncio.run(writer.seal())


def _open_driver_ledger(workers: WorkerSupervisor, run_dir: Path, table: str) -> LedgerWriter:
    return LedgerWriter(
        read_url(run_dir) or run_dir,
        worker="driver",
        epoch=1,
        table=table,
        commit=lambda line: workers.commit({"worker": "driver", "epoch": 1, **line}),
    )
