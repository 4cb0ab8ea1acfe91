"""A driver for tests, run as a script, so that it can be killed: `workers_driver.py RUN_DIR MODES`.

It starts one worker for each mode, lets them begin, prints their process ids as JSON when all
that record attempts have made progress, and waits to be killed.
"""

import json
import sys
import time
from pathlib import Path

from shoal.workers.processes import ProcessPlacement
from shoal.workers.specs import Role, WorkerSpec
from shoal.workers.supervision import WorkerTimeouts
from shoal.workers.supervisor import RunState, WorkerSupervisor

TASK = Path(__file__).with_name("workers_task.py")


def task_placement() -> ProcessPlacement:
    return ProcessPlacement((sys.executable, str(TASK)))


def busy(state: RunState) -> bool:
    """Whether all workers have told of some progress."""
    return all(worker.progress for worker in state.workers.values())


def main() -> None:
    run_dir, modes = Path(sys.argv[1]), sys.argv[2].split(",")
    limits = WorkerTimeouts(stop_s=2.0)
    with WorkerSupervisor("r1", run_dir, task_placement(), limits=limits) as supervisor:
        supervisor.launch(
            WorkerSpec(f"w{number}", Role.PRODUCE, {"mode": mode})
            for number, mode in enumerate(modes)
        )
        supervisor.start_at(0)
        if not supervisor.wait(busy, 30):
            sys.exit(f"no progress: {supervisor.state()}")
        pids = [worker.pid for worker in supervisor.state().workers.values()]
        sys.stdout.write(json.dumps(pids) + "\n")
        sys.stdout.flush()
        time.sleep(600)


if __name__ == "__main__":
    main()
