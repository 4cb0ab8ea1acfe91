"""Workers as plain processes of this machine.

Rules:
- A worker is exec'd, never forked off the driver: no locks, threads or sockets come along.
- It gets its assignment on standard input, so that the token shows in no process list.
- It stands in a session of its own: Ctrl-C reaches the driver, which stops its workers in
  order. Dying with the driver is the worker's own duty (see `shoal.workers.main`).
- What it prints goes to `logs/WORKER-EPOCH.log` in the run folder.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from shoal.model.errors import SystemFailure
from shoal.workers.placement import Handle
from shoal.workers.specs import Assignment


class ProcessPlacement:
    """Starts workers with this interpreter, or with the command given."""

    def __init__(self, command: tuple[str, ...] | None = None) -> None:
        self._command = command or (sys.executable, "-m", "shoal.workers.main")

    def start(self, assignment: Assignment) -> Handle:
        log_path = Path(assignment.run_dir, "logs", f"{assignment.worker}-{assignment.epoch}.log")
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            with log_path.open("ab") as log, tempfile.TemporaryFile() as told:
                # A file and not a pipe: writing to it never waits for the worker to read.
                told.write(assignment.to_json().encode())
                told.seek(0)
                process = subprocess.Popen(
                    self._command, stdin=told, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise SystemFailure(
                f"cannot start worker {assignment.worker}: {error}", remedy=f"look at {log_path}"
            ) from error
        return ProcessHandle(process, log_path)

    def close(self) -> None:
        """Nothing is held."""


class ProcessHandle:
    """A worker process."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self._process = process
        self._log_path = log_path

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with code {code}; its log is {self._log_path}"

    def interrupt(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
