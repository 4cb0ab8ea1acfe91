"""Runs one worker, from its assignment to its end: `python -m shoal.workers.main`, or in a task.

Rules:
- The assignment is read from standard input, as one JSON object.
- Nothing is done without a lease. Slow imports happen before the worker requests the lease, so that
  a worker with a lease is ready.
- A worker ends when its work is done, when the driver says so, on SIGTERM, and when it has not
  heard from its driver for 10 s. `Watchdog` kills it 13 s after the last message of the driver.
- Errors are reported to the driver as one sentence; the log has the details.
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
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_log = logging.getLogger(__name__)


async def run_worker(assignment: Assignment, role_work: RoleWork | None = None) -> None:
    """Run one attempt at an assignment; returns when it has ended, successfully or not."""
    report_unhandled_errors(asyncio.get_running_loop())
    control = WorkerControl(assignment)
    watchdog = Watchdog(control.client, (assignment.driver_host, assignment.driver_port))
    watchdog.start()
    try:
        with _stop_on_signals(control):
            work = _prepare_work(role_work or work_of(assignment.role))
            control.client.start()
            if await control.wait_lease():
                _log.info(
                    "worker %s has the lease of epoch %d", assignment.worker, assignment.epoch
                )
                await _work(assignment, control, work)
            _log.info("worker %s ends: %s", assignment.worker, control.stop_reason or "done")
    finally:
        watchdog.stop()
        await control.client.close()


def _prepare_work(role_work: RoleWork) -> Work:
    try:
        role_work.prepare()
    except Exception as error:  # noqa: BLE001 - any error must be reported to the driver
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
        await control.end("failed", str(error), retriable=error.retriable)
    except Exception as error:  # noqa: BLE001 - any error must be reported to the driver
        _log.exception("the work failed")
        await control.end("failed", f"unexpected error: {error!r}", retriable=True)
    else:
        await control.end("stopped" if control.is_stopping() else "finished")


@contextlib.contextmanager
def _stop_on_signals(control: WorkerControl) -> Iterator[None]:
    """Stop the work on SIGTERM and SIGINT; only the main thread receives signals."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    try:
        for number in numbers:
            loop.add_signal_handler(number, control.stop, f"received {number.name}")
    except (RuntimeError, ValueError):
        yield  # a Spark task may run in another thread: only the driver can stop it
        return
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    assignment = Assignment.from_json(sys.stdin.read(ASSIGNMENT_LIMIT_BYTES))
    asyncio.run(run_worker(assignment))
    return 0


if __name__ == "__main__":
    sys.exit(main())
