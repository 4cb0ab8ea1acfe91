"""A process of ours that dies with us: the owner's side of `guardian.py`.

Rules: signals go to the process itself, never to its guardian; nothing that we have open
is open there too; a process that ended is never signalled, since its id may be another's.
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
_LAST_WORDS_BYTES: Final = 4096


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
        """Starts `command` in `folder`; `scratch` is deleted if we die before it."""
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
            raise AssertionError("standard output was asked for")
        with self._guardian.stdout as announced:
            line = announced.readline()
        if not line:
            self.let_go()
            raise SystemFailure(f"a process did not start: {last_words(self.log)}")
        return int(line)

    def is_alive(self) -> bool:
        return self._guardian.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Signals the process; says so if it is not there any more."""
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
                return
            self._guardian.wait()  # it follows its process at once
        raise SystemFailure(f"process {self.pid} is not running: {self.ending()}")

    def pause(self) -> None:
        """Stops the process where it is and returns when it stands still."""
        if self._identity is None or not self._identity.pause():
            raise SystemFailure(f"process {self.pid} cannot be paused: {self.ending()}")

    def wait(self, timeout_s: float) -> bool:
        """Waits for the end of the process; False if it did not come in time."""
        try:
            self._guardian.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._pull_leash()
        return True

    def stop(self, patience_s: float) -> None:
        """Asks the process to end, and makes it end if it does not, paused or not."""
        with suppress(SystemFailure):  # it may end by itself at this very moment
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
            self.wait(patience_s)
        self.let_go()

    def let_go(self) -> None:
        """Ends the process at once and returns when it has ended."""
        self._pull_leash()
        self._guardian.wait()
        if self._identity is not None and self._identity.is_alive():
            # The guardian itself was killed from outside: its work falls to us.
            self._identity.send(signal.SIGKILL)

    def exit_code(self) -> int | None:
        """None while it runs; 128 + N if signal N ended it."""
        return self._guardian.poll()

    def ending(self) -> str:
        """How it ended, for people."""
        code = self.exit_code()
        if code is None:
            return "still running"
        return f"killed by signal {code - 128}" if code > 128 else f"exit code {code}"

    def _pull_leash(self) -> None:
        leash = self._guardian.stdin
        if leash is not None and not leash.closed:
            with suppress(BrokenPipeError):  # the guardian has ended already
                leash.write(b".")
            leash.close()


def last_words(log: Path) -> str:
    """The end of a log that says most: from its last error on, else its last lines."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "it wrote no log"
    troubled = [n for n, line in enumerate(lines) if "ERROR" in line or "Exception" in line]
    chosen = lines[troubled[0] :][:5] if troubled else lines[-3:]
    return " | ".join(line.strip() for line in chosen)[:1000] or "it wrote nothing"
