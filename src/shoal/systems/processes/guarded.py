"""A child process that dies with this process: the owner's side of `guardian.py`.

Rules: signals go to the process itself, never to its guardian. The process inherits no open files.
A process that has exited is never signalled, since its id may belong to another process by then.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from shoal.model.errors import SystemFailure
from shoal.runtime.processes import ProcessIdentity
from shoal.systems.processes import guardian

_GUARDIAN: Final = guardian.__file__  # run by path, in a process of its own
_EXCERPT_BYTES: Final = 4096


class GuardedProcess:
    """One running command, its output in a file."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        folder: Path,
        environment: dict[str, str] | None = None,
        scratch: Path | None = None,
    ) -> None:
        """Start `command` in `folder`; `scratch` is deleted if this process dies first."""
        self.log = log
        guarded = [sys.executable, "-I", "-S", _GUARDIAN, str(os.getpid())]
        with log.open("ab") as output:
            self._guardian = subprocess.Popen(
                [*guarded, "" if scratch is None else str(scratch), *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        self._identity: ProcessIdentity | None = None
        self.pid = self._read_pid()
        self._identity = ProcessIdentity.of(self.pid)

    def _read_pid(self) -> int:
        if self._guardian.stdout is None:
            raise AssertionError("the guardian was started without a pipe for its output")
        with self._guardian.stdout as announced:
            line = announced.readline()
        if not line:
            self.kill_and_wait()
            raise SystemFailure(f"cannot start a process: {log_excerpt(self.log)}")
        return int(line)

    def is_alive(self) -> bool:
        return self._guardian.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process; raise if it is not running."""
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
                return
            self._guardian.wait()  # the guardian exits as soon as its child has
        raise SystemFailure(f"process {self.pid} is not running: {self.exit_description()}")

    def pause(self) -> None:
        """Stop the process (SIGSTOP) and return when it no longer runs."""
        if self._identity is None or not self._identity.pause():
            raise SystemFailure(f"cannot pause process {self.pid}: {self.exit_description()}")

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has exited; False if it did not within `timeout_s`."""
        try:
            self._guardian.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._order_kill()
        return True

    def stop(self, patience_s: float) -> None:
        """Send SIGTERM, and SIGKILL if the process does not exit in time; also if it is paused."""
        with suppress(SystemFailure):  # it may have just exited
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
            self.wait(patience_s)
        self.kill_and_wait()

    def kill_and_wait(self) -> None:
        """Kill the process and return when it has exited."""
        self._order_kill()
        self._guardian.wait()
        if self._identity is not None and self._identity.is_alive():
            # The guardian itself was killed from outside, so it could not kill its child.
            self._identity.send(signal.SIGKILL)

    def exit_code(self) -> int | None:
        """None while it runs; 128 + N if signal N killed it."""
        return self._guardian.poll()

    def exit_description(self) -> str:
        """How it ended, as text for messages."""
        code = self.exit_code()
        if code is None:
            return "still running"
        return f"killed by signal {code - 128}" if code > 128 else f"exit code {code}"

    def _order_kill(self) -> None:
        control_pipe = self._guardian.stdin
        if control_pipe is not None and not control_pipe.closed:
            with suppress(BrokenPipeError):  # the guardian has already exited
                control_pipe.write(b".")
            control_pipe.close()


def log_excerpt(log: Path) -> str:
    """The most useful end of a log: from its first error on, else its last lines."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _EXCERPT_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "it has no log file"
    error_lines = [n for n, line in enumerate(lines) if "ERROR" in line or "Exception" in line]
    chosen = lines[error_lines[0] :][:5] if error_lines else lines[-3:]
    return " | ".join(line.strip() for line in chosen)[:1000] or "its log is empty"
