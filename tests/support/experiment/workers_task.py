"""A worker for tests, run as a script: what it does, its task's `mode` says.

attempts: reserve and record attempts until told to stop, or until `count` of them
hang:     never come back, and do not listen
fail:     raise an error of ours
crash:    end the process at once
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from shoal.model.errors import UsageError
from shoal.workers.control import WorkerControl
from shoal.workers.main import run_worker
from shoal.workers.roles import RoleWork
from shoal.workers.specs import Assignment


async def _work(assignment: Assignment, control: WorkerControl) -> None:
    mode = assignment.task["mode"]
    if mode == "attempts":
        await _attempt(assignment, control, assignment.task.get("count", 1 << 60))
    elif mode == "hang":
        control.progress({"hanging": True})
        await asyncio.sleep(0.1)
        while True:
            time.sleep(60)  # noqa: ASYNC251 - it blocks on purpose
    elif mode == "fail":
        raise UsageError("this task cannot be done", remedy="ask for another")
    elif mode == "crash":
        os._exit(9)


async def _attempt(assignment: Assignment, control: WorkerControl, count: int) -> None:
    from shoal.workload.record.recorder import Recorder

    recorder = Recorder(
        Path(assignment.run_dir),
        worker=assignment.worker,
        epoch=assignment.epoch,
        commit=control.commit,
    )
    await control.wait_start()
    sequence = 0
    while sequence < count and not control.is_finishing():
        await recorder.reserve(
            assignment.worker, "t", lanes=[0], until=sequence + 10, incarnation=1
        )
        for _ in range(10):
            recorder.append("attempts", **_row(assignment.worker, sequence))
            sequence += 1
        await recorder.seal()
        control.progress({"sent": sequence})
        await asyncio.sleep(0.01)
    if control.is_driver_gone:
        control.seal_locally()
    await recorder.seal()


def _row(producer: str, sequence: int) -> dict[str, object]:
    now_us = time.time_ns() // 1000
    return {
        "producer": producer,
        "incarnation": 1,
        "topic": "t",
        "lane": 0,
        "sequence": sequence,
        "outcome": 0,
        "error": 0,
        "offset": sequence,
        "intended_us": now_us,
        "sent_us": now_us,
        "acked_us": now_us,
    }


if __name__ == "__main__":
    asyncio.run(run_worker(Assignment.from_json(sys.stdin.read()), RoleWork(_work)))
