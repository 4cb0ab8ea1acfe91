"""The interface of every mirror under test, and the mirrors that are a process tree.

Rules for every kind of mirror:
- A mirror is a process tree of its own. A command line starts it, and it can be killed like any
  other process. It never outlives the process that started it.
- CPU seconds and peak memory of the tree are sampled while it runs, over all its starts. An
  external mirror that the user runs is not measured.
- The mirror's internal topics are not part of the verdict.
"""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import psutil

from shoal.model.errors import SystemFailure, UsageError
from shoal.systems.processes.guarded import GuardedProcess, log_excerpt
from shoal.systems.processes.meters import Meter, Usage, tree_of

KINDS: Final = ("shoal", "mm2", "mm1", "external", "none")
# Of shoal's own mirror: what is cheaper for the batches that arrive, raw, or deep.
MODES: Final = ("auto", "shallow", "deep")
DELIVERIES: Final = ("idempotent", "at-least-once", "transactional", "compare-and-append", "auto")

STOP_TIMEOUT_S: Final = 30.0
READY_TIMEOUT_S: Final = 90.0
_POLL_EVERY_S: Final = 0.1
_LOG_READ_BYTES: Final = 1 << 22


class Mirror(Protocol):
    """A process that copies topics from the source cluster to the target cluster."""

    @property
    def kind(self) -> str: ...

    @property
    def log_file(self) -> Path | None:
        """Its log file; None if it is not known."""

    @property
    def positions_file(self) -> Path | None:
        """The file with its position in each source partition; None if it writes none."""

    def start(self) -> None:
        """Start the mirror; also again, after a kill or a stop."""

    def wait_until_ready(self) -> None:
        """Return when it copies, as far as that can be seen from outside."""

    def stop(self) -> None:
        """Let it finish what is in flight and exit; calling it again does nothing."""

    def kill(self) -> None:
        """Send SIGKILL to every process of the tree."""

    def close(self) -> None:
        """Make sure that no process started by `start` is left; never raises for a dead mirror."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def is_running(self) -> bool: ...

    def pids(self) -> tuple[int, ...]:
        """The running processes of the tree; the one that `start` launched comes first."""

    def check(self) -> None:
        """Raise if it exited unasked: what it does not copy would look like loss."""

    def usage(self) -> Usage | None:
        """CPU and memory used so far; None if its processes are not visible from here."""


class ProcessMirror:
    """A mirror that is one command; `ready` is the text in its log that shows that it copies."""

    def __init__(
        self,
        kind: str,
        command: Callable[[], Sequence[str]],
        *,
        folder: Path,
        environment: dict[str, str] | None = None,
        ready: str | None = None,
        positions_file: Path | None = None,
    ) -> None:
        """`command` is called at each start, not here: finding what it needs may take long."""
        self.kind = kind
        self.log_file = folder / "logs" / "mirror.log"
        self.positions_file = positions_file
        self._command = command
        self._folder = folder
        self._environment = environment
        self._ready = ready
        self._process: GuardedProcess | None = None
        self._should_run = False
        self._meter = Meter()

    def start(self) -> None:
        if self.is_running():
            raise UsageError("the mirror is already running", remedy="stop it before starting it")
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._process = GuardedProcess(
            self._command(),
            log=self.log_file,
            folder=self._folder,
            environment=self._environment,
        )
        self._should_run = True
        self._meter.watch(self._process.pid)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self._ready and self._ready not in self._read_log() and time.monotonic() < deadline:
            self.check()
            time.sleep(_POLL_EVERY_S)

    def stop(self) -> None:
        self._should_run = False
        if self._process is not None:
            has_stopped = self._stop_gracefully(self._process)
            self._kill_process()
            if not has_stopped:
                raise SystemFailure(
                    f"the mirror did not stop within {STOP_TIMEOUT_S:.0f} s and was killed",
                    remedy=f"its log is {self.log_file}",
                )

    def kill(self) -> None:
        self._should_run = False
        if self._process is not None:
            self._meter.sample()
            self._kill_process()

    def close(self) -> None:
        self.kill()

    def pause(self) -> None:
        for process in self._tree():
            process.suspend()

    def resume(self) -> None:
        for process in self._tree():
            process.resume()

    def is_running(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._tree())

    def check(self) -> None:
        if self._should_run and not self.is_running():
            how = "not started" if self._process is None else self._process.exit_description()
            raise SystemFailure(
                f"the mirror exited before the run ended ({how}); its"
                f" log ends with: {log_excerpt(self.log_file)}",
                remedy=f"its log is {self.log_file}; judge what the run has recorded with: shoal"
                f" audit {self._folder}",
            )

    def usage(self) -> Usage | None:
        return self._meter.usage()

    def exit_code(self) -> int | None:
        """The exit code if the process exited unasked; None while it runs, and before a start."""
        return None if self._process is None else self._process.exit_code()

    def _stop_gracefully(self, process: GuardedProcess) -> bool:
        # A paused process would not see SIGTERM.
        for number in (signal.SIGCONT, signal.SIGTERM):
            try:
                process.send(number)
            except SystemFailure:
                return True  # it has already exited
        return process.wait(STOP_TIMEOUT_S)

    def _kill_process(self) -> None:
        if self._process is not None:
            self._meter.stop_watching()
            self._process.kill_and_wait()
            self._process = None

    def _tree(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            return tree_of(psutil.Process(self._process.pid))
        except psutil.NoSuchProcess:
            return []

    def _read_log(self) -> str:
        with self.log_file.open("rb") as file:
            return file.read(_LOG_READ_BYTES).decode(errors="replace")
