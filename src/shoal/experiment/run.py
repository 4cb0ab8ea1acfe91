"""One experiment, from clusters that run to ledgers that can be judged: workers, drain, scans.

Rules:
- Whatever happens, `run.json` tells it: a run is `running`, then `finished` or `interrupted`.
- Ctrl-C once: producers send nothing new, what is on the way is drained, and the run is judged
  as far as it went. Ctrl-C again: it ends at once; the ledgers stay and can be judged later.
- A worker that dies is not restarted and not hidden: what it left unknown is judged as unknown.
"""

import asyncio
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from shoal import __version__
from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.experiment import plan
from shoal.experiment.mirror_process import MirrorProcess
from shoal.experiment.plan import Addresses, Experiment
from shoal.experiment.runs import driver_identity
from shoal.mirror.positions import read_positions
from shoal.model.errors import SystemFailure
from shoal.runtime.processes import machine_clock
from shoal.workers.placement import Placement
from shoal.workers.processes import ProcessPlacement
from shoal.workers.supervision import Phase
from shoal.workers.supervisor import RunState, Supervisor
from shoal.workload.ledger import LedgerWriter, create_run, open_run, update_run

# Generous: loading what is compiled takes a busy machine long.
START_TIMEOUT_S: Final = 180.0
SCAN_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 30.0
WATCH_EVERY_S: Final = 0.2
# Given to the workers to be ready, so that all begin at one agreed time.
LEAD_TIME_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """What a watcher is told, several times a second."""

    doing: str
    sent: int = 0
    received: int = 0
    total: int = 0


Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where workers run, and the address under which they reach this driver."""

    placement: Placement
    host: str = "127.0.0.1"

    def supervisor(self, run: str, run_dir: Path) -> Supervisor:
        return Supervisor(run, run_dir, self.placement, groups=[plan.GROUP], host=self.host)


def run_workload(
    experiment: Experiment,
    *,
    addresses: Addresses,
    run_dir: Path,
    watch: Watch,
    place: Place | None = None,
) -> None:
    """Everything but the judgement: the ledgers are in `run_dir` afterwards."""
    run = run_dir.name
    place = place or Place(ProcessPlacement())
    described = plan.description(run, experiment, addresses) | surroundings()
    create_run(run_dir, described | {"state": "running"})
    state = "interrupted"
    try:
        asyncio.run(_create_topics(experiment, addresses))
        with (
            _mirror(experiment, addresses, run_dir) as mirror,
            Supervisor(
                run, run_dir, place.placement, groups=[plan.GROUP], host=place.host
            ) as workers,
        ):
            interrupted = _send_and_receive(
                experiment, workers, mirror, run=run, addresses=addresses, watch=watch
            )
            if mirror is not None:
                mirror.stop()
                _record_positions(workers, run_dir, mirror)
            watch(Progress("reading the logs"))
            scans = plan.scan_workers(run, experiment, addresses)
            workers.launch(scans)
            workers.wait(_ended(*(scan.name for scan in scans)), SCAN_TIMEOUT_S)
        state = "interrupted" if interrupted else "finished"
    finally:
        update_run(run_dir, dict(open_run(run_dir).plan) | {"state": state})


def _mirror(
    experiment: Experiment, addresses: Addresses, run_dir: Path
) -> AbstractContextManager[MirrorProcess | None]:
    if addresses.target is None:
        return nullcontext()
    return MirrorProcess(experiment, addresses.source, addresses.target, run_dir=run_dir)


def surroundings() -> dict[str, Any]:
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


async def _create_topics(experiment: Experiment, addresses: Addresses) -> None:
    # Test data must not expire under the judge's eyes.
    kept_for_good = {"retention.ms": "-1", "retention.bytes": "-1"}
    configs = kept_for_good | dict(experiment.topic_configs)
    topic = NewTopic(
        experiment.topic, experiment.partitions, experiment.replication_factor, configs
    )
    for cluster in addresses.clusters:
        async with Client(addresses.client_of(cluster)) as client:
            await client.admin.create_topics([topic])


def _send_and_receive(
    experiment: Experiment,
    workers: Supervisor,
    mirror: MirrorProcess | None,
    *,
    run: str,
    addresses: Addresses,
    watch: Watch,
) -> bool:
    """Sends, copies, receives and drains everything; True if the user cut it short."""
    producers, consumers = plan.producer_names(experiment), plan.consumer_names(experiment)
    names = [*producers, *consumers]
    watch(Progress("starting the workers"))
    workers.launch(plan.workload_workers(run, experiment, addresses))
    _require(workers.wait(_begun(*names), START_TIMEOUT_S), workers, "the workers did not start")
    workers.start_at(time.time_ns() // 1000 + int(LEAD_TIME_S * 1e6))
    is_cut_short = False
    limit_s = experiment.messages / experiment.rate_per_s * 3 + experiment.drain_timeout_s + 60
    deadline = time.monotonic() + limit_s
    with _Interrupts() as interrupts:
        # Dead producers have sent their last, and a dead consumer will not see the markers.
        while time.monotonic() < deadline and not workers.wait(
            _is_over(producers, consumers), WATCH_EVERY_S
        ):
            if mirror is not None:
                mirror.check()
            watch(_progress(workers.state(), experiment.messages))
            if interrupts.count and not is_cut_short:
                is_cut_short = True
                workers.finish(producers)
    workers.stop_workers(names)
    workers.wait(_ended(*names), STOP_TIMEOUT_S)
    watch(_progress(workers.state(), experiment.messages))
    return is_cut_short


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


def _is_over(producers: list[str], consumers: list[str]) -> Callable[[RunState], bool]:
    all_sent = _ended(*producers)
    return lambda state: (
        all_sent(state) or any(state.workers[name].phase is Phase.ENDED for name in consumers)
    )


def _require(condition: bool, workers: Supervisor, problem: str) -> None:
    failed = workers.state().failed()
    if failed:
        worker = failed[0]
        raise SystemFailure(f"worker {worker.name} {worker.reason}: {worker.error}")
    if not condition:
        raise SystemFailure(f"{problem} within {START_TIMEOUT_S:.0f} s")


def _record_positions(workers: Supervisor, run_dir: Path, mirror: MirrorProcess) -> None:
    positions = read_positions(mirror.positions_file)
    writer = LedgerWriter(
        run_dir,
        worker="driver",
        epoch=1,
        table="positions",
        commit=lambda line: workers.commit({"worker": "driver", "epoch": 1, **line}),
    )
    for (topic, partition), offset in positions.items():
        writer.append(reader="mirror", topic=topic, partition=partition, offset=offset)
    asyncio.run(writer.seal())
