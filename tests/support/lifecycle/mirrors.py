"""One mirror of a play: the command `shoal mirror run` as a process, and what it says.

It is asked by the same way as `shoal mirror status` asks. A process that has ended says what its
last error was.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shoal.mirror.control import send_command
from shoal.model.errors import ShoalError
from support.lifecycle.judging import Said

TESTS: Final = Path(__file__).resolve().parents[2]
STOP_PATIENCE_S: Final = 60.0
_REMEDY: Final = "  what to do: "


@dataclass
class MirrorProcess:
    """A mirror under one name, started as often as a play needs."""

    name: str
    topics: Sequence[str]  # names and patterns
    options: Sequence[str]
    log: Path
    module: str = "shoal"  # or a wrapper around its command line
    environment: Mapping[str, str] = field(default_factory=dict)
    # How often a partition changed its depth while it ran, as far as its status showed it.
    depth_switches: int = 0
    _depths: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _log_start: int = 0

    def start(self, source: str, target: str) -> None:
        """From now on between these bootstrap servers."""
        command = [sys.executable, "-m", self.module, "mirror", "run", "--name", self.name]
        command += ["--source-bootstrap-server", source, "--target-bootstrap-server", target]
        command += ["--topics", ",".join(self.topics), "--stop-with-parent", *self.options]
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self._depths.clear()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment, "PYTHONPATH": path},
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> int:
        """Let it end in order; returns its exit code. One that does not end is killed."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._process = None
        return code

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def give(self, command: str) -> dict[str, Any] | None:
        """What it answers to an order; None if it does not."""
        try:
            answers = send_command(command, self.name)
        except ShoalError:
            return None
        bodies = [answer["flows"].get(self.name) for answer in answers]
        found = next((body for body in bodies if body is not None), None)
        if found is not None:
            self._note_depths(found)
        return found

    def _note_depths(self, body: Mapping[str, Any]) -> None:
        for each in body["partitions"]:
            if depth := each.get("depth"):
                source = str(each["source"])
                self.depth_switches += self._depths.get(source, depth) != depth
                self._depths[source] = depth

    def tell(self) -> str:
        """The log of the last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def last_error(self) -> tuple[str, str]:
        """The error with which the process ended, and its remedy."""
        lines = self.tell().splitlines()
        text = remedy = ""
        for line in lines:
            if line.startswith("error: "):
                text, remedy = line.removeprefix("error: "), ""
            elif line.startswith(_REMEDY):
                remedy = line.removeprefix(_REMEDY)
        return text or (lines[-1] if lines else ""), remedy


def what_is_said(body: Mapping[str, Any] | None, topic: str, number: int) -> Said:
    """What a status says about a partition."""
    if body is None:
        return Said()
    counts = body["counts"]
    for text, remedy in body["refused"]:
        if re.search(rf"(?<![\w.-]){re.escape(topic)}(?![\w.]|-\D)", text):
            return Said(refused=text, remedy=remedy or "", counts=counts)
    for each in body["partitions"]:
        if each["source"] == [topic, number]:
            return Said(
                lag=each["lag"],
                # What waits is tried again; its reason stands in the status as well.
                parked=each["parked"] or each.get("waiting", ""),
                remedy=each["remedy"],
                counts=counts,
            )
    return Said(counts=counts)
