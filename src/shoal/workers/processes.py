"""Workers as plain processes on this machine.

Rules:
- A worker is a new program (exec), not a fork of the driver: it inherits no locks, threads or
  sockets.
- It gets its assignment on standard input, so that the token is not visible in process lists.
- It has its own session: Ctrl-C reaches only the driver, which stops its workers in order. The
  worker itself ends when the driver dies (see `shoal.workers.main`).
- Its output goes to `logs/WORKER-EPOCH.log` in the run folder.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from shoal.model.errors import SystemFailure
from shoal.workers.placement import Handle, log_path
from shoal.workers.specs import Assignment


class ProcessPlacement:
    """Starts workers with this interpreter, or with the given command."""

    def __init__(self, command: tuple[str, ...] | None = None) -> None:
        self._command = command or (sys.executable, "-m", "shoal.workers.main")

    def start(self, assignment: Assignment) -> Handle:
        path = log_path(assignment)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as log, tempfile.TemporaryFile() as stdin:
                # A file, not a pipe: a write never blocks until the worker reads.
                stdin.write(assignment.to_json().encode())
                stdin.seek(0)
                process = subprocess.Popen(
                    self._command, stdin=stdin, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise SystemFailure(
                f"cannot start worker {assignment.worker}: {error}", remedy=f"check {path}"
            ) from error
        return ProcessHandle(process, path)

    def close(self) -> None:
        """No resources to release."""


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
                return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}; its log is {self._log_path}"

    def interrupt(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
