"""A mirror whose partitions are copied by several workers, processes or Spark tasks.

Rules:
- The driver handles topics, groups, configs and commands (`shoal.mirror.flow`); workers copy the
  partitions assigned to them (`shoal.workers.mirror_shares`).
- A worker that ends is restarted, elsewhere if needed, with a new lease. Its partitions wait for it
  for some time, and are then given to others. The delivery of each partition fences a process that
  is dead or suspended and may still write.
- The team ends when it is stopped, when all partitions are parked, or when no worker is left that
  could be restarted.
"""

import asyncio
import contextlib
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.mirror.config import MirrorConfig
from shoal.mirror.copy.intake import Counts
from shoal.mirror.copy.throttle import divide_limit
from shoal.mirror.flow import COMPARE_IDS_EVERY_S
from shoal.mirror.routes import Route
from shoal.mirror.run.clients import open_clients
from shoal.mirror.run.copier import Copier
from shoal.mirror.run.latencies import MirrorLatencies
from shoal.mirror.run.start import PartitionStarter
from shoal.mirror.status import MirrorStatus, total
from shoal.model.errors import ShoalError, SystemFailure
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited
from shoal.workers.control import WorkerControl
from shoal.workers.mirror_shares import MirrorShares
from shoal.workers.placement import Placement
from shoal.workers.specs import Assignment, Json, Role, WorkerSpec
from shoal.workers.supervision import WorkerPhase
from shoal.workers.supervisor import RunState, WorkerSupervisor

LOOK_EVERY_S: Final = 0.1
REPORT_EVERY_S: Final = 0.25
TEAM: Final = "team"

_log = logging.getLogger(__name__)


class MirrorTeam:
    """The copy backend with several workers."""

    def __init__(
        self,
        source: Client,
        target: Client,
        config: MirrorConfig,
        *,
        placement: Placement,
        workers: int,
        host: str = "127.0.0.1",
    ) -> None:
        self._config = config
        self._starter = PartitionStarter(source, target, config)
        self._names = [f"mirror-{number}" for number in range(workers)]
        self._shares = MirrorShares(self._names)
        self._folder = Path(tempfile.mkdtemp(prefix="shoal-mirror-"))
        self._supervisor = WorkerSupervisor(config.name, self._folder, placement, address=(host, 0))
        self._wanted: list[Route] = []
        self._orders: dict[str, tuple[int, list[Route]]] = {}
        self._paused = False
        self._ended = asyncio.Event()
        self._errors: dict[str, str] = {}
        self.refused: dict[str, ShoalError] = {}
        # Never set here: workers compare topic ids themselves, and the driver at every refresh.
        self.changed = asyncio.Event()

    @property
    def routes(self) -> list[Route]:
        return list(self._wanted)

    async def prepare(self) -> None:
        await self._starter.load_state(workers=range(len(self._names)))

    async def check(self, routes: list[Route]) -> bool:
        return await self._starter.check(routes)

    async def assign(self, routes: Iterable[Route]) -> None:
        """Copy these routes and no others."""
        self._wanted = list(routes)

    async def run(self) -> None:
        """Copy until `stop`, or until everything is parked."""
        try:
            await asyncio.to_thread(self._supervisor.start)
            await asyncio.to_thread(self._supervisor.launch, map(self._spec, self._names))
            while not self._ended.is_set():
                await asyncio.to_thread(self._supervise)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), LOOK_EVERY_S)
        finally:
            await asyncio.to_thread(self._supervisor.stop)
            shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self) -> None:
        self._ended.set()

    def pause(self) -> None:
        self._set_paused(paused=True)

    def resume(self) -> None:
        self._set_paused(paused=False)

    @property
    def latencies(self) -> MirrorLatencies | None:
        """None: each worker has its own."""
        return None

    async def refresh_log_ends(self) -> None:
        """Nothing to do: the reports of workers contain the log ends."""

    def status(self) -> MirrorStatus:
        state = self._supervisor.state()
        reports = [
            MirrorStatus.from_json(worker.progress["status"])
            for worker in state.workers.values()
            if "status" in worker.progress
        ]
        counts = Counts()
        for report in reports:
            counts += report.counts
        held = {each.route: each for report in reports for each in report.partitions}
        partitions = tuple(held[route] for route in self._wanted if route in held)
        return MirrorStatus(
            counts=counts,
            positions={each.route.source: each.position for each in partitions},
            lag=total(held[route].lag if route in held else -1 for route in self._wanted),
            parked=tuple(error for report in reports for error in report.parked),
            refused=tuple(error for report in reports for error in report.refused),
            deliveries={k: v for report in reports for k, v in report.deliveries.items()},
            partitions=partitions,
            paused=self._paused,
            notices=tuple(notice for report in reports for notice in report.notices),
        )

    def _spec(self, name: str) -> WorkerSpec:
        number = self._names.index(name)
        config = replace(self._config, worker=number, positions=None, stop_with_parent=False)
        return WorkerSpec(name, Role.MIRROR, {TEAM: True, "config": config.to_json()})

    def _set_paused(self, *, paused: bool) -> None:
        self._paused = paused
        for name in self._orders:
            self._send_order(name)

    def _supervise(self) -> None:
        """Update the state of workers, and send them new assignments."""
        now = time.monotonic()
        state = self._supervisor.state()
        if state.failure:
            raise SystemFailure(state.failure)
        for name, worker in state.workers.items():
            self._shares.update_worker(
                name,
                epoch=worker.epoch,
                is_live=worker.phase is WorkerPhase.RUNNING,
                number=int(worker.progress.get("number", -1)),
                now=now,
            )
        self._report_errors(state)
        for name, order in self._shares.share(self._wanted, now).items():
            self._orders[name] = order
            self._send_order(name)
        status = self.status()
        if self._wanted and len(status.parked) == len(self._wanted):
            self._ended.set()
        else:
            self._check_workers_left(state)

    def _send_order(self, name: str) -> None:
        number, routes = self._orders[name]
        limits = self._config.limits
        own, all_topics = (
            Counter(route.source.topic for route in some) for some in (routes, self._wanted)
        )
        values = {
            "number": number,
            "routes": [_plain(r) for r in routes],
            "paused": self._paused,
            "max_bytes_per_s": divide_limit(limits.max_bytes_per_s, len(routes), len(self._wanted)),
            "topic_max_bytes_per_s": {
                topic: divide_limit(limit, own[topic], all_topics[topic])
                for topic, limit in limits.topic_max_bytes_per_s.items()
            },
        }
        self._supervisor.update_role(name, values)

    def _report_errors(self, state: RunState) -> None:
        for name, worker in state.workers.items():
            said = f"{worker.reason}: {worker.error}" if worker.error else ""
            if said and self._errors.get(name) != said:
                what = "ended" if worker.phase is WorkerPhase.ENDED else "is restarted"
                _log.warning("worker %s %s after it was %s", name, what, said)
            self._errors[name] = said

    def _check_workers_left(self, state: RunState) -> None:
        errors = {worker.error for worker in state.workers.values() if worker.error}
        if errors and all(worker.phase is WorkerPhase.ENDED for worker in state.workers.values()):
            raise SystemFailure(
                f"all workers of the mirror have ended: {'; '.join(sorted(errors))}",
                remedy="fix these errors, then restart the mirror: it resumes where it ended",
            )


async def run_team_worker(assignment: Assignment, control: WorkerControl) -> None:
    """Run one worker of a team."""
    config = MirrorConfig.from_json(assignment.task["config"])
    async with open_clients(config) as (source, target):
        copier = Copier(source, target, config, is_of_team=True)
        await copier.prepare()
        running = run_awaited("copying", copier.run())
        obeying = run_awaited("orders of the driver", _follow_orders(copier, control))
        try:
            await asyncio.wait([running, obeying], return_when=asyncio.FIRST_COMPLETED)
            if obeying.done():
                obeying.result()
            copier.stop()
            await running
        finally:
            for task in (running, obeying):
                task.cancel()
            await asyncio.gather(running, obeying, return_exceptions=True)


async def _follow_orders(copier: Copier, control: WorkerControl) -> None:
    """Carry out the driver's orders until it says stop; report the status in between."""
    number = 0
    look_at_s = 0.0
    while not control.is_stopping():
        order = control.role_update
        control.role_updated.clear()
        if order is not None:
            now_s = time.monotonic()
            if order["number"] != number:
                copier.limit_rate(order["max_bytes_per_s"], order["topic_max_bytes_per_s"])
                await copier.assign(_route(each) for each in order["routes"])
                number, look_at_s = order["number"], now_s + COMPARE_IDS_EVERY_S
            elif copier.changed.is_set() or now_s >= look_at_s:
                await _assign_again(copier, [_route(each) for each in order["routes"]])
                look_at_s = time.monotonic() + COMPARE_IDS_EVERY_S
            (copier.pause if order["paused"] else copier.resume)()
            if order["paused"]:
                await copier.refresh_log_ends()
        _report(copier, control, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(control.role_updated.wait(), REPORT_EVERY_S)


async def _assign_again(copier: Copier, routes: list[Route]) -> None:
    """Restart partitions whose topic was recreated or that were refused; errors are retried."""
    copier.changed.clear()
    try:
        await copier.compare_ids()
        await copier.assign(routes)
    except ClientError as error:
        _log.warning("cannot read the metadata of topics, retrying: %s", error)
        await asyncio.sleep(REPORT_EVERY_S)


def _report(copier: Copier, control: WorkerControl, number: int) -> None:
    status = replace(copier.status(), refused=tuple(copier.refused.values()))
    body: Json = {"role": "mirror", "lag": status.lag, "number": number}
    control.progress({**body, "status": status.to_json()})


def _plain(route: Route) -> list[list[str | int]]:
    return [list(route.source), list(route.target)]


def _route(plain: list[list[str | int]]) -> Route:
    (source, number), (target, target_number) = plain
    return Route(
        TopicPartition(str(source), int(number)), TopicPartition(str(target), int(target_number))
    )
