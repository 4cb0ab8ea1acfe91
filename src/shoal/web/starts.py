"""Runs that the page starts: presets, and files of one folder, with listed settings only.

Rules: a name from a request is compared with the listed names and never becomes a path; a setting
must be listed and have one of the listed values or a number within bounds. One run at a time. The
child process gets a list of arguments, never a shell line. `shoal serve` interrupts it when it
ends.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shoal.experiment.presets import find, presets
from shoal.model.errors import ConfigError, ShoalError, UsageError
from shoal.model.tables import read_toml

Json = dict[str, Any]
MOST_FILES: Final = 200
_END_PATIENCE_S: Final = 30.0
_ERROR_BYTES: Final = 2000
LOG_FILE: Final = "started-by-page.log"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that the page may change: one of `choices`, or a whole number in a range."""

    key: str
    label: str
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = 0

    def to_json(self) -> Json:
        bounds = {} if self.choices else {"least": self.least, "most": self.most}
        return {"key": self.key, "label": self.label, "choices": list(self.choices), **bounds}

    def check(self, value: object) -> str:
        """The value as text for `--set`; refuses any other."""
        text = str(value) if isinstance(value, str | int) and value is not True else ""
        if text in self.choices:
            return text
        is_number = not self.choices and text.isascii() and text.isdecimal() and len(text) < 12
        if is_number and self.least <= int(text) <= self.most:
            return text
        allowed = ", ".join(self.choices) or f"{self.least:,} to {self.most:,}"
        raise UsageError(f"{self.key} is {text or value!r:.40}; it must be one of {allowed}")


SETTINGS: Final = (
    Setting("producer.acks", "acks", ("0", "1", "all")),
    Setting("producer.messages", "messages in all", least=1, most=1_000_000),
    Setting("producer.rate", "messages per second", least=1, most=100_000),
    Setting("producer.codec", "compression", ("none", "gzip", "lz4", "snappy", "zstd")),
    Setting("topics.partitions", "partitions", least=1, most=64),
)


class RunStarter:
    """Starts runs, one at a time."""

    def __init__(self, runs_dir: Path, experiments: Path | None) -> None:
        self._runs_dir = runs_dir
        self._experiments = experiments
        self._process: subprocess.Popen[bytes] | None = None

    def to_json(self, *, allow_actions: bool) -> Json:
        """What may be started, and whether something was."""
        return {
            "allow_actions": allow_actions,
            "experiments": self.list_experiments(),
            "settings": [setting.to_json() for setting in SETTINGS],
            "is_running": self.is_running,
            "error": self._read_error(),
        }

    def list_experiments(self) -> list[Json]:
        found = [
            {"name": name, "kind": "preset", "description": text}
            for name, text in presets().items()
        ]
        files = [
            {"name": path.name, "kind": "file", "description": _describe(path)}
            for path in self._files()
        ]
        return found + files

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, request: Mapping[str, Any]) -> Json:
        """Start an experiment as a child process."""
        command = self.build_command(request)
        if self.is_running:
            raise UsageError("a run that this page started is still running", remedy="stop it")
        self._runs_dir.mkdir(parents=True, exist_ok=True)
        with (self._runs_dir / LOG_FILE).open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return {"pid": self._process.pid, "command": ["shoal", *command[3:]]}

    def build_command(self, request: Mapping[str, Any]) -> list[str]:
        """The arguments for a request; refuses what is not listed."""
        unknown = set(request) - {"kind", "name", "settings"}
        settings = request.get("settings", {})
        if unknown or not isinstance(settings, dict):
            raise UsageError("a start has kind, name and settings")
        file = self._find(request.get("kind"), request.get("name"))
        known = {setting.key: setting for setting in SETTINGS}
        sets: list[str] = []
        for key, value in settings.items():
            if key not in known:
                raise UsageError(f"the page may not set {key:.40}")
            sets += ["--set", f"{key}={known[key].check(value)}"]
        program = [sys.executable, "-m", "shoal", "run", str(file)]
        return [*program, *sets, "--runs-dir", str(self._runs_dir)]

    def stop(self) -> Json:
        """Interrupt the run as Ctrl-C does: it drains, and is judged as far as it went."""
        if self._process is None or not self.is_running:
            raise UsageError("no run that this page started is running")
        self._process.send_signal(signal.SIGINT)
        return {"pid": self._process.pid}

    async def close(self) -> None:
        """Interrupt a running child, and wait for its end."""
        process = self._process
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            if process is None or process.poll() is not None:
                return
            process.send_signal(number)
            try:
                await asyncio.to_thread(process.wait, _END_PATIENCE_S)
            except subprocess.TimeoutExpired:
                continue

    def _find(self, kind: object, name: object) -> Path:
        if kind == "preset" and isinstance(name, str) and name in presets():
            return find(name)
        for path in self._files() if kind == "file" else ():
            if path.name == name:
                return path.resolve()
        raise UsageError(f"{name!r:.80} is not a listed experiment", remedy="choose a listed one")

    def _files(self) -> list[Path]:
        if self._experiments is None or not self._experiments.is_dir():
            return []
        folder = self._experiments.resolve()
        files = sorted(path for path in folder.glob("*.toml") if path.is_file())
        # A link could name any file of this machine.
        return [path for path in files if path.resolve().parent == folder][:MOST_FILES]

    def _read_error(self) -> str | None:
        """The end of the output of a child that failed without a verdict."""
        if self._process is None or self._process.poll() in (None, 0, 4, 5):
            return None
        try:
            text = (self._runs_dir / LOG_FILE).read_bytes()[-_ERROR_BYTES:].decode(errors="replace")
        except OSError:
            return "the run failed"
        return text.strip() or f"the run failed with exit code {self._process.returncode}"


def _describe(path: Path) -> str:
    try:
        return read_toml(path).text("description", "")
    except (ConfigError, ShoalError):
        return ""
