"""One experiment, from clusters that run to ledgers that can be judged: workers, drain, scans.

Rules:
- Whatever happens, `run.json` tells it: a run is `running`, then `finished` or `interrupted`.
- Ctrl-C once: producers send nothing new, what is on the way is drained, and the run is judged
  as far as it went. Ctrl-C again: it ends at once; the ledgers stay and can be judged later.
- A worker that dies is not restarted and not hidden: what it left unknown is judged as unknown.
- Whatever the run makes on a cluster stands in its manifest before it is made.
"""

import asyncio
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

from shoal import __version__
from shoal.experiment import plan
from shoal.experiment.growth import ARRIVAL_LIMIT_S, Growth
from shoal.experiment.plan import Addresses, Beginnings
from shoal.experiment.runs import driver_identity, read_json
from shoal.experiment.spec import ExperimentSpec
from shoal.experiment.topics import prepare_topics, with_existing_topics
from shoal.mirror.offsets.positions import read_positions
from shoal.mirror.offsets.re_encoded import read_re_encoded
from shoal.model.errors import SystemFailure
from shoal.runtime.processes import machine_clock
from shoal.systems.mirror_kinds import RE_ENCODED_FILE, Route, Wishes, make_mirror
from shoal.systems.mirrors import Mirror
from shoal.workers.placement import Placement
from shoal.workers.processes import ProcessPlacement
from shoal.workers.supervision import Phase
from shoal.workers.supervisor import RunState, Supervisor
from shoal.workload.record.ledger import RUN_FILE, LedgerWriter, create_run, update_run
from shoal.workload.specs import ProducerSpec

# Generous: loading what is compiled takes a busy machine long.
START_TIMEOUT_S: Final = 180.0
SCAN_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 30.0
WATCH_EVERY_S: Final = 0.2
# Given to the workers to be ready, so that all begin at one agreed time.
LEAD_TIME_S: Final = 0.5

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """What a watcher is told, several times a second."""

    doing: str
    sent: int = 0
    received: int = 0
    total: int = 0


Watch = Callable[[Progress], None]


class Trouble(Protocol):
    """What goes wrong on purpose while messages are on their way."""

    def begin(self, started_us: int, workers: Supervisor, mirror: Mirror | None) -> None:
        """Called once the workers have their time to start; must not wait for anything."""

    def check(self) -> None:
        """Raises if a fault could not be done: the run would prove less than it says."""

    def end(self) -> None:
        """Mends whatever is still broken, and returns when it is."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where workers run, and the address under which they reach this driver."""

    placement: Placement = field(default_factory=ProcessPlacement)
    host: str = "127.0.0.1"
    port: int = 0  # 0: any


def run_workload(
    spec: ExperimentSpec,
    *,
    addresses: Addresses,
    run_dir: Path,
    watch: Watch,
    place: Place | None = None,
    trouble: Trouble | None = None,
) -> None:
    """Everything but the judgement: the ledgers are in `run_dir` afterwards."""
    run, place = run_dir.name, place or Place()
    spec = asyncio.run(with_existing_topics(spec, addresses))
    described = plan.description(run, spec, addresses) | surroundings()
    create_run(run_dir, described | {"state": "running"})
    state = "interrupted"
    try:
        beginnings = asyncio.run(prepare_topics(run_dir, spec, addresses))
        with (
            _mirror(spec, addresses, run_dir, watch) as mirror,
            Supervisor(
                run,
                run_dir,
                place.placement,
                groups=spec.consumers.groups,
                address=(place.host, place.port),
            ) as workers,
        ):
            course = _Course(spec, addresses, beginnings, run_dir=run_dir, watch=watch)
            is_cut_short = course.send_and_receive(workers, mirror, trouble)
            if mirror is not None:
                mirror.stop()
                _record_mirror(workers, run_dir, mirror)
                _record_re_encoded(workers, run_dir, spec)
            watch(Progress("reading the logs"))
            scans = plan.scan_workers(run, spec, addresses, beginnings)
            if newcomers := course.newcomers():
                scans += plan.scan_workers(run, newcomers, addresses, {})
            workers.launch(scans)
            workers.wait(_ended(*(scan.name for scan in scans)), SCAN_TIMEOUT_S)
        state = "interrupted" if is_cut_short else "finished"
    finally:
        _note(run_dir, state=state)


@contextmanager
def _mirror(
    spec: ExperimentSpec, addresses: Addresses, run_dir: Path, watch: Watch
) -> Iterator[Mirror | None]:
    """The mirror of a run, copying; killed at the end if nobody stopped it."""
    mirror = _planned_mirror(spec, addresses, run_dir) if addresses.target else None
    if mirror is None:
        yield None
        return
    watch(Progress(f"starting the mirror ({mirror.kind})"))
    try:
        mirror.start()
        mirror.wait_until_ready()
        yield mirror
    finally:
        mirror.close()


def _planned_mirror(spec: ExperimentSpec, addresses: Addresses, run_dir: Path) -> Mirror | None:
    wanted = spec.mirror
    route = Route(
        source=addresses.client_of("source", "mirror"),
        target=addresses.client_of("target", "mirror"),
        topics=_copied(spec),
        folder=run_dir.absolute(),
        leave_configs=spec.target is not None and spec.target.engine == "external",
        copies=spec.topics.target_replication_factor,
    )
    wishes = Wishes(
        mode=wanted.mode,
        delivery=wanted.delivery,
        version=wanted.version,
        handler=wanted.handler,
        properties=wanted.properties,
        arguments=wanted.arguments,
        prefix=plan.prefix_of(wanted),
        start=wanted.start,
        stop=wanted.stop,
    )
    return make_mirror(wanted.kind, route, wishes)


def _copied(spec: ExperimentSpec) -> tuple[str, ...]:
    newcomers = plan.later(spec)
    return tuple(
        dict.fromkeys((*spec.topics.names, *(newcomers.topics.names if newcomers else ())))
    )


def surroundings() -> Json:
    """Everything about this moment and machine that a reader of the report may ask for."""
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


class _Course:
    """The part of a run in which messages are on their way."""

    def __init__(
        self,
        spec: ExperimentSpec,
        addresses: Addresses,
        beginnings: Beginnings,
        *,
        run_dir: Path,
        watch: Watch,
    ) -> None:
        self._spec = spec
        self._run_dir = run_dir
        self._specs = plan.workload_workers(run_dir.name, spec, addresses, beginnings)
        self._producers = plan.producer_names(spec)
        self._consumers = plan.consumer_names(spec)
        self._watch = watch
        self._total = plan.messages_in_all(spec)
        self._growth = Growth(spec, addresses, run=run_dir.name)

    def send_and_receive(
        self, workers: Supervisor, mirror: Mirror | None, trouble: Trouble | None
    ) -> bool:
        """Sends, copies, receives and drains everything; True if the user cut it short."""
        names = [*self._producers, *self._consumers]
        self._watch(Progress("starting the workers"))
        workers.launch(self._specs)
        is_begun = workers.wait(_begun(*names), START_TIMEOUT_S)
        _require(is_begun, workers, "the workers did not start")
        start_us = time.time_ns() // 1000 + int(LEAD_TIME_S * 1e6)
        workers.start_at(start_us)
        if self._spec.warm_up_s:
            self._told_from(start_us)
        if trouble is not None:
            trouble.begin(start_us, workers, mirror)
        try:
            is_cut_short = self._follow(workers, mirror, trouble)
        finally:
            if trouble is not None:
                trouble.end()
        names += [*self._growth.producers, *self._growth.consumers]
        workers.stop_workers(names)
        workers.wait(_ended(*names), STOP_TIMEOUT_S)
        self._watch(_progress(workers.state(), self._total))
        return is_cut_short

    def newcomers(self) -> ExperimentSpec | None:
        """What grew, if it did before the end."""
        return plan.later(self._spec) if self._growth.is_over else None

    def _told_from(self, start_us: int) -> None:
        """What is due in the warm-up is not measured, however long the start took."""
        from_us = start_us + int(self._spec.warm_up_s * 1e6)
        _note(self._run_dir, measure_from_us=from_us)

    def _follow(self, workers: Supervisor, mirror: Mirror | None, trouble: Trouble | None) -> bool:
        is_cut_short = False
        settings = self._spec.producers.settings
        drain_s = settings.get("drain_timeout_s", ProducerSpec.drain_timeout_s)
        started_s = time.monotonic() + LEAD_TIME_S
        deadline = started_s + plan.planned_s(self._spec) * 3 + drain_s + 60
        if not self._growth.is_over:
            deadline += ARRIVAL_LIMIT_S
        with _Interrupts() as interrupts:
            # Dead producers have sent their last, and a dead consumer will not see the markers,
            # unless others of its group read on for it.
            while time.monotonic() < deadline and not self._is_over(workers, is_cut_short):
                if not is_cut_short:
                    self._growth.step(time.monotonic() - started_s, workers)
                if mirror is not None:
                    mirror.check()
                if trouble is not None:
                    trouble.check()
                self._watch(_progress(workers.state(), self._total))
                if interrupts.count and not is_cut_short:
                    is_cut_short = True
                    workers.finish([*self._producers, *self._growth.producers])
                    if trouble is not None:
                        trouble.end()  # what is on the way must be able to arrive
        return is_cut_short

    def _is_over(self, workers: Supervisor, is_cut_short: bool) -> bool:
        """Whether all is sent and drained, or can be no more; waits a little."""
        growth = self._growth
        producers = [*self._producers, *growth.producers]
        consumers = [*self._consumers, *growth.consumers]
        is_shared = bool(self._spec.consumers.settings.get("in_group"))
        is_done = workers.wait(_is_over(producers, consumers, is_shared=is_shared), WATCH_EVERY_S)
        return is_done and (growth.is_over or is_cut_short)


class _Interrupts:
    """Counts the first Ctrl-C, and raises the second.

    A `KeyboardInterrupt` would come at any line, and some lines swallow it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._is_heard = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._is_heard:
            self._before = signal.signal(signal.SIGINT, self._heard)
        return self

    def _heard(self, _number: int, _frame: object) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt

    def __exit__(self, *_error: object) -> None:
        if self._is_heard:
            signal.signal(signal.SIGINT, self._before)


def _progress(state: RunState, total: int) -> Progress:
    def count(name: str) -> int:
        return sum(int(worker.progress.get(name, 0)) for worker in state.workers.values())

    return Progress(
        "sending and receiving", sent=count("attempts"), received=count("received"), total=total
    )


def _begun(*names: str) -> Callable[[RunState], bool]:
    done = {Phase.RUNNING, Phase.ENDED}
    return lambda state: all(state.workers[name].phase in done for name in names)


def _ended(*names: str) -> Callable[[RunState], bool]:
    return lambda state: all(state.workers[name].phase is Phase.ENDED for name in names)


def _is_over(
    producers: list[str], consumers: list[str], *, is_shared: bool
) -> Callable[[RunState], bool]:
    all_sent, enough = _ended(*producers), all if is_shared else any
    return lambda state: (
        all_sent(state) or enough(state.workers[name].phase is Phase.ENDED for name in consumers)
    )


def _require(condition: bool, workers: Supervisor, problem: str) -> None:
    failed = workers.state().failed()
    if failed:
        worker = failed[0]
        raise SystemFailure(f"worker {worker.name} {worker.reason}: {worker.error}")
    if not condition:
        raise SystemFailure(f"{problem} within {START_TIMEOUT_S:.0f} s")


def _note(run_dir: Path, **more: Any) -> None:
    """Adds to `run.json`, whatever else of the run there is."""
    update_run(run_dir, read_json(run_dir / RUN_FILE) | more)


def _record_mirror(workers: Supervisor, run_dir: Path, mirror: Mirror) -> None:
    """What the mirror used goes to `run.json`, and how far it says it came to the ledgers."""
    usage = mirror.usage()
    described = read_json(run_dir / RUN_FILE)["mirror"]
    _note(run_dir, mirror=described | {"usage": usage.to_json() if usage else None})
    file = mirror.positions_file
    if file is None or not file.exists():
        return
    writer = _drivers_ledger(workers, run_dir, "positions")
    for (topic, partition), offset in read_positions(file).items():
        writer.append(reader="mirror", topic=topic, partition=partition, offset=offset)
    asyncio.run(writer.seal())


def _record_re_encoded(workers: Supervisor, run_dir: Path, spec: ExperimentSpec) -> None:
    """Which batches our mirror says that it packed anew, under the producers' names of topics."""
    file = run_dir / RE_ENCODED_FILE
    if not file.exists():
        return
    names = {plan.target_topic(spec.mirror, topic): topic for topic in _copied(spec)}
    writer = _drivers_ledger(workers, run_dir, "re_encoded")
    for (topic, partition), offset in sorted(read_re_encoded(file)):
        writer.append(topic=names.get(topic, topic), partition=partition, offset=offset)
    asyncio.run(writer.seal())


def _drivers_ledger(workers: Supervisor, run_dir: Path, table: str) -> LedgerWriter:
    return LedgerWriter(
        run_dir,
        worker="driver",
        epoch=1,
        table=table,
        commit=lambda line: workers.commit({"worker": "driver", "epoch": 1, **line}),
    )
