"""Our mirror as a system under test: a process of its own, started by its command line."""

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from shoal.experiment.plan import Experiment
from shoal.model.errors import SystemFailure

STOP_TIMEOUT_S: Final = 30.0


class MirrorProcess:
    """A mirror between the two clusters of a run; it ends with this process at the latest."""

    def __init__(self, experiment: Experiment, source: str, target: str, *, run_dir: Path) -> None:
        self.positions_file = run_dir / "mirror-positions.json"
        self.log_file = run_dir / "logs" / "mirror.log"
        self._command = [sys.executable, "-m", "shoal", "mirror", "run", "--stop-with-parent"]
        self._command += ["--source-bootstrap-server", source]
        self._command += ["--target-bootstrap-server", target]
        self._command += ["--topics", experiment.topic, "--positions", str(self.positions_file)]
        if experiment.handler:
            self._command += ["--handler", experiment.handler]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the driver, which then stops it in order
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def check(self) -> None:
        """Raises if the mirror has ended by itself: what it cannot copy would look like loss."""
        if self._process is not None and self._process.poll() is not None:
            said = self.log_file.read_text(errors="replace").strip().splitlines()
            raise SystemFailure(
                f"the mirror ended early: {said[-1] if said else 'it said nothing'}",
                remedy=f"its log is {self.log_file}",
            )

    def stop(self) -> None:
        """Lets it finish what is in flight and write down how far it came."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise SystemFailure(
                f"the mirror did not stop within {STOP_TIMEOUT_S:.0f} s",
                remedy=f"its log is {self.log_file}",
            ) from error
