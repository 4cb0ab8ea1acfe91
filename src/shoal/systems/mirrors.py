"""Mirrors under test behind one small interface, whoever wrote them.

Rules of every kind:
- A mirror is a process tree of its own, started by a command line and killed like any other
  process; it never outlives the process that started it.
- What the tree uses is sampled while it runs, over all its starts: CPU seconds, and memory
  at its peak. Nothing is known of a mirror that somebody else runs.
- Its own internal topics are its own business: nobody judges them.
"""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import psutil

from shoal.model.errors import SystemFailure, UsageError
from shoal.systems.processes.guarded import GuardedProcess, last_words
from shoal.systems.processes.meters import Meter, Usage, tree_of

KINDS: Final = ("shoal", "mm2", "mm1", "external", "none")
MODES: Final = ("shallow", "deep")
DELIVERIES: Final = ("idempotent", "at-least-once", "transactional", "compare-and-append", "auto")

STOP_TIMEOUT_S: Final = 30.0
READY_TIMEOUT_S: Final = 90.0
_POLL_EVERY_S: Final = 0.1
_LOG_READ_BYTES: Final = 1 << 22


class Mirror(Protocol):
    """What copies from source to target."""

    @property
    def kind(self) -> str: ...

    @property
    def log_file(self) -> Path | None:
        """What it writes about itself, if that is known."""

    @property
    def positions_file(self) -> Path | None:
        """Where it writes how far it has read each source partition, if it does."""

    def start(self) -> None:
        """Starts it; also again, after a kill or a stop."""

    def wait_until_ready(self) -> None:
        """Returns when it copies, as far as that can be seen from outside."""

    def stop(self) -> None:
        """Lets it finish what is in flight and end; calling it again does nothing."""

    def kill(self) -> None:
        """SIGKILL to every process of the tree."""

    def close(self) -> None:
        """Leaves nothing of it that is ours, in whatever way; does nothing if it has ended."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def is_running(self) -> bool: ...

    def pids(self) -> tuple[int, ...]:
        """The living processes of the tree, the first one that we started first."""

    def check(self) -> None:
        """Raises if it ended by itself: what it does not copy would look like loss."""

    def usage(self) -> Usage | None:
        """None if its processes are not ours to see."""


class ProcessMirror:
    """A mirror that is one command of ours; `ready` is what its log says once it copies."""

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
        """`command` is asked at each start, since finding what it needs may take long."""
        self.kind = kind
        self.log_file = folder / "logs" / "mirror.log"
        self.positions_file = positions_file
        self._command = command
        self._folder = folder
        self._environment = environment
        self._ready = ready
        self._process: GuardedProcess | None = None
        self._is_wanted = False
        self._meter = Meter()

    def start(self) -> None:
        if self.is_running():
            raise UsageError("the mirror runs already")
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._process = GuardedProcess(
            self._command(),
            log=self.log_file,
            folder=self._folder,
            environment=self._environment,
        )
        self._is_wanted = True
        self._meter.watch(self._process.pid)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self._ready and self._ready not in self._said() and time.monotonic() < deadline:
            self.check()
            time.sleep(_POLL_EVERY_S)

    def stop(self) -> None:
        self._is_wanted = False
        if self._process is not None:
            is_gentle = self._ended_gently(self._process)
            self._let_go()
            if not is_gentle:
                raise SystemFailure(
                    f"the mirror did not stop within {STOP_TIMEOUT_S:.0f} s and was killed",
                    remedy=f"its log is {self.log_file}",
                )

    def kill(self) -> None:
        self._is_wanted = False
        if self._process is not None:
            self._meter.sample()
            self._let_go()

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
        if self._is_wanted and not self.is_running():
            raise SystemFailure(
                f"the mirror ended early: {last_words(self.log_file)}",
                remedy=f"its log is {self.log_file}",
            )

    def usage(self) -> Usage | None:
        return self._meter.usage()

    def exit_code(self) -> int | None:
        """How it ended by itself; None if it runs, or did not run."""
        return None if self._process is None else self._process.exit_code()

    def _ended_gently(self, process: GuardedProcess) -> bool:
        for number in (signal.SIGCONT, signal.SIGTERM):
            try:
                process.send(number)
            except SystemFailure:
                return True  # it ended before
        return process.wait(STOP_TIMEOUT_S)

    def _let_go(self) -> None:
        if self._process is not None:
            self._meter.leave()
            self._process.let_go()
            self._process = None

    def _tree(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            return tree_of(psutil.Process(self._process.pid))
        except psutil.NoSuchProcess:
            return []

    def _said(self) -> str:
        with self.log_file.open("rb") as file:
            return file.read(_LOG_READ_BYTES).decode(errors="replace")
