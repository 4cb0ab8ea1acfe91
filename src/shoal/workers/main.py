"""A worker, from its assignment to its end: `python -m shoal.workers.main`, or a call in a task.

Rules:
- The assignment comes on standard input, as one JSON object.
- Nothing is done without a lease. What takes long to load is loaded before the worker asks for
  it, so that one that has its lease is ready.
- A worker ends by its own means when it is done, when it is told to, on SIGTERM, and when it
  has not heard of its driver for 10 s; 13 s after the driver's last word `Watchdog` ends it.
- Errors are told to the driver as one sentence; the log has the rest.
"""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Final

from shoal.model.errors import ShoalError
from shoal.net.control import DriverGoneError
from shoal.runtime.tasks import report_unhandled_errors
from shoal.workers.control import WorkerControl
from shoal.workers.roles import RoleWork, Work, work_of
from shoal.workers.specs import Assignment
from shoal.workers.watchdog import Watchdog

ASSIGNMENT_LIMIT_BYTES: Final = 16 << 20

_log = logging.getLogger(__name__)


async def run_worker(assignment: Assignment, role_work: RoleWork | None = None) -> None:
    """One try at an assignment. Returns when it has ended, however that was."""
    report_unhandled_errors(asyncio.get_running_loop())
    control = WorkerControl(assignment)
    watchdog = Watchdog(control.client, (assignment.driver_host, assignment.driver_port))
    watchdog.start()
    try:
        with _stopped_by_signals(control):
            work = _prepared(role_work or work_of(assignment.role))
            control.client.start()
            if await control.wait_lease():
                _log.info(
                    "worker %s has its lease of epoch %d", assignment.worker, assignment.epoch
                )
                await _work(assignment, control, work)
            _log.info("worker %s ends: %s", assignment.worker, control.stop_reason or "done")
    finally:
        watchdog.stop()
        await control.client.close()


def _prepared(role_work: RoleWork) -> Work:
    try:
        role_work.prepare()
    except Exception as error:  # noqa: BLE001 - the driver must hear of it, whatever it is
        problem = error

        async def fail(_assignment: Assignment, _control: WorkerControl) -> None:
            raise problem

        return fail
    return role_work.work


async def _work(assignment: Assignment, control: WorkerControl, work: Work) -> None:
    try:
        await work(assignment, control)
    except DriverGoneError as error:
        control.stop(str(error))
    except ShoalError as error:
        _log.exception("the work failed")
        await control.end("failed", _sentence(error), retriable=error.retriable)
    except Exception as error:  # noqa: BLE001 - the driver must hear of it, whatever it is
        _log.exception("the work failed")
        await control.end("failed", f"unexpected: {error!r}", retriable=True)
    else:
        await control.end("stopped" if control.stopping() else "finished")


def _sentence(error: ShoalError) -> str:
    return f"{error} ({error.remedy})" if error.remedy else str(error)


@contextlib.contextmanager
def _stopped_by_signals(control: WorkerControl) -> Iterator[None]:
    """SIGTERM and SIGINT stop the work in order; only the main thread can hear them."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    try:
        for number in numbers:
            loop.add_signal_handler(number, control.stop, f"{number.name} came")
    except (RuntimeError, ValueError):
        yield  # a task of Spark's may run in another thread: there the driver's word must do
        return
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def main() -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    assignment = Assignment.from_json(sys.stdin.read(ASSIGNMENT_LIMIT_BYTES))
    asyncio.run(run_worker(assignment))
    return 0


if __name__ == "__main__":
    sys.exit(main())
