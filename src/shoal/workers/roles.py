"""The work of each role: connects an assignment to `workload` and `mirror`.

Rules:
- The task of a producer, consumer or scan is `{"client": properties, "spec": …}` with the JSON of
  the spec. The task of a mirror is the JSON of its configuration, or, for one of several workers
  of a mirror, `{"team": true, "config": …}`.
- Slow imports happen before the worker says hello (`prepare`), so that a worker with a lease is
  ready, and all can begin at one agreed time.
- A restarted producer keeps its incarnation, and continues above all sequence numbers that were
  reserved before.
- When the driver is gone, unsealed segments are sealed without a commit: they do not count, but can
  be inspected.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.model.errors import ConfigError
from shoal.model.run_folder import read_commits
from shoal.model.serialised import to_plain
from shoal.net.control import DriverGoneError
from shoal.workers.control import WorkerControl
from shoal.workers.specs import Assignment, Json, Role

if TYPE_CHECKING:
    from shoal.mirror.status import MirrorStatus
    from shoal.workload.record.recorder import Recorder

# The work of a worker between its lease and its end.
Work = Callable[[Assignment, WorkerControl], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RoleWork:
    """The work of a role, and its preparation before the lease."""

    work: Work
    prepare: Callable[[], None] = lambda: None


def work_of(role: Role) -> RoleWork:
    return _WORK[role]


async def _produce(assignment: Assignment, control: WorkerControl) -> None:
    from shoal.client.client import Client
    from shoal.workload.record.ledger import earlier_incarnation, first_free_numbers
    from shoal.workload.send.producer import produce
    from shoal.workload.specs import ProducerSpec

    spec = ProducerSpec.from_json(_part(assignment, "spec"))
    if not spec.start_us:
        start_us = await control.wait_start()
        if start_us is None:
            return
        spec = replace(spec, start_us=start_us)
    if assignment.epoch > 1:
        lanes = {topic.name: topic.lanes for topic in spec.topics}
        commits = read_commits(Path(assignment.run_dir))
        first_numbers = first_free_numbers(commits, spec.producer, lanes)
        incarnation = earlier_incarnation(commits, spec.producer)
        spec = replace(spec, incarnation=incarnation, first_numbers=first_numbers)
    properties = {**_part(assignment, "client"), **spec.client_properties()}
    async with _open_recorder(assignment, control) as recorder, Client(properties) as client:
        await produce(spec, client, recorder, control)


async def _consume(assignment: Assignment, control: WorkerControl) -> None:
    from shoal.client.client import Client
    from shoal.workload.receive.consumer import consume
    from shoal.workload.specs import ConsumerSpec

    spec = ConsumerSpec.from_json(_part(assignment, "spec"))
    properties = {**_part(assignment, "client"), **spec.client_properties()}
    async with _open_recorder(assignment, control) as recorder, Client(properties) as client:
        await consume(spec, client, recorder, control)


async def _scan(assignment: Assignment, control: WorkerControl) -> None:
    from shoal.client.client import Client
    from shoal.workload.receive.scan import scan
    from shoal.workload.specs import ScanSpec

    spec = ScanSpec.from_json(_part(assignment, "spec"))
    async with (
        _open_recorder(assignment, control) as recorder,
        Client(_part(assignment, "client")) as client,
    ):

        def report(done: int, whole: int) -> None:
            control.progress({"role": "scan", "records_read": done, "records_to_read": whole})

        summary = await scan(spec, client, recorder, report)
        control.progress({"role": "scan", **summary.to_json()})


async def _mirror(assignment: Assignment, control: WorkerControl) -> None:
    if assignment.task.get("team"):
        from shoal.workers.mirror_team import run_team_worker

        await run_team_worker(assignment, control)
        return
    from shoal.mirror.command import mirror_until
    from shoal.mirror.config import MirrorConfig

    def report(status: "MirrorStatus") -> None:
        control.progress({"role": "mirror", "lag": status.lag, **to_plain(status.counts)})

    config = MirrorConfig.from_json(assignment.task)
    status = await mirror_until(control.wait_stop, config, on_status=report)
    if problems := status.parked + status.refused:
        raise problems[0]


@asynccontextmanager
async def _open_recorder(
    assignment: Assignment, control: WorkerControl
) -> "AsyncIterator[Recorder]":
    from shoal.workload.record.recorder import Recorder

    recorder = Recorder(
        assignment.ledgers or assignment.run_dir,
        worker=assignment.worker,
        epoch=assignment.epoch,
        commit=control.commit,
    )
    try:
        yield recorder
    except DriverGoneError:
        control.seal_locally()
        await recorder.seal()
        raise


def _part(assignment: Assignment, name: str) -> Json:
    part = assignment.task.get(name)
    if not isinstance(part, dict):
        raise ConfigError(f"the task of worker {assignment.worker} has no {name!r}")
    return part


def _load_workload() -> None:
    from shoal.workers.warm_up import write_and_read_a_message

    for name in ("send.producer", "receive.consumer", "record.rows"):
        import_module(f"shoal.workload.{name}")
    write_and_read_a_message()


_WORK: dict[Role, RoleWork] = {
    Role.PRODUCE: RoleWork(_produce, _load_workload),
    Role.CONSUME: RoleWork(_consume, _load_workload),
    Role.SCAN: RoleWork(_scan, _load_workload),
    Role.MIRROR: RoleWork(_mirror),
}
