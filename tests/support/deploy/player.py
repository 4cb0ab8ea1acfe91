"""Plays generated deployments: starts what their files say, as processes of this machine.

A `Unit` is a pod, a service of a compose file, or a systemd unit: a command, an environment, ports,
folders and a probe, all taken from the files. The player changes only what the kernel would do in a
container: names of units become 127.0.0.1 with a free port for each of their ports, and mounted
folders become folders of the test.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.net.ports import free_ports

PATIENCE_S = 240.0
OWN_NAMES = ("0.0.0.0", "127.0.0.1")  # noqa: S104 - as files name them


@dataclass
class Unit:
    """One container or unit, as its file describes it."""

    name: str
    command: list[str]
    names: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    # By the path inside the container: the files in that folder at the start.
    folders: dict[str, dict[str, str]] = field(default_factory=dict)
    probe: list[str] = field(default_factory=list)
    probe_port: int | None = None


class Player:
    """Starts units, probes them, and ends all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._units: dict[str, Unit] = {}
        self._ports: dict[tuple[str, int], int] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, units: Sequence[Unit]) -> None:
        """Know these units: their names and ports."""
        wanted = [(unit.name, port) for unit in units for port in unit.ports]
        self._ports |= dict(zip(wanted, free_ports(len(wanted)), strict=True)) if wanted else {}
        for unit in units:
            assert unit.name not in self._units
            self._units[unit.name] = unit
        for unit in units:
            for path, files in unit.folders.items():
                place = self._place(unit, path)
                place.mkdir(parents=True)
                for name, text in files.items():
                    (place / name).write_text(self._translate(unit, text))

    def start(self, *names: str) -> None:
        for name in names or tuple(self._units):
            unit = self._units[name]
            with self.log_path(name).open("ab") as log:
                self.running[name] = subprocess.Popen(
                    self._command(unit, unit.command),
                    env=self._environment(unit),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                )

    def wait_until_ready(self, *names: str) -> None:
        """Probe each unit as its file says, until it is ready."""
        for name in names or tuple(self._units):
            deadline = time.monotonic() + PATIENCE_S
            while (reason := self.probe(name)) is not None:
                assert time.monotonic() < deadline, f"{name}: {reason}\n{self.log(name)}"
                # As Kubernetes, compose and systemd do: a mirror ends if its target is not up yet.
                if self.running[name].poll() is not None:
                    self.start(name)
                time.sleep(0.2)

    def probe(self, name: str) -> str | None:
        """Why a unit is not ready; None if it is."""
        unit = self._units[name]
        if unit.probe_port is not None:
            address = ("127.0.0.1", self._ports[name, unit.probe_port])
            try:
                socket.create_connection(address, timeout=10).close()
            except OSError as error:
                return str(error)
            return None
        assert unit.probe, f"{name} has no probe"
        done = subprocess.run(
            self._command(unit, unit.probe),
            env=self._environment(unit),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return None if done.returncode == 0 else f"exit {done.returncode}: {done.stderr}"

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def end(self) -> dict[str, int]:
        """End all units as a container is ended: SIGTERM, and SIGKILL if that does not help."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        codes = {}
        for name, process in self.running.items():
            try:
                codes[name] = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        self.running.clear()
        return codes

    def address(self, name: str, port: int) -> str:
        """Where a port of a unit is on this machine."""
        return f"127.0.0.1:{self._ports[name, port]}"

    def log_path(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def log(self, name: str) -> str:
        return self.log_path(name).read_text(errors="replace")

    def folder_of(self, name: str, path: str) -> Path:
        return self._place(self._units[name], path)

    # What the kernel would do

    def _place(self, unit: Unit, path: str) -> Path:
        return self._folder / unit.name / path.strip("/").replace("/", "-")

    def _command(self, unit: Unit, command: Sequence[str]) -> list[str]:
        # A unit may have the name of a command of the program: `shoal mirror`.
        translated = [self._translate(unit, command[0]), *command[1:2]]
        translated += [self._translate(unit, word) for word in command[2:]]
        program = Path(sys.executable).parent / translated[0]
        if program.exists():
            translated[0] = str(program)
        return translated

    def _environment(self, unit: Unit) -> dict[str, str]:
        """Only what the file says, and where programs are."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
        kept = {key: os.environ[key] for key in ("HOME", "JAVA_HOME") if key in os.environ}
        own = {key: self._translate(unit, value) for key, value in unit.environment.items()}
        state = {"XDG_STATE_HOME": str(self._folder / "state")}
        return {"PATH": path, "NO_COLOR": "1", "COLUMNS": "200"} | kept | state | own

    def _translate_paths(self, unit: Unit, text: str) -> str:
        for path in unit.folders:
            text = re.sub(rf"(?<![\w/]){re.escape(path)}\b", str(self._place(unit, path)), text)
        return text

    def _translate(self, unit: Unit, text: str) -> str:
        text = self._translate_paths(unit, text)
        text = re.sub(
            r"([\w.-]+):(\d+)", lambda found: self._address_of(unit, found[1], int(found[2])), text
        )
        known = {name for other in self._units.values() if other.ports for name in other.names}
        for name in sorted(known, key=len, reverse=True):
            text = re.sub(rf"(?<![\w./-]){re.escape(name)}(?![\w./:-])", "127.0.0.1", text)
        if text.isdecimal() and (unit.name, int(text)) in self._ports:
            return str(self._ports[unit.name, int(text)])
        return text

    def _address_of(self, unit: Unit, host: str, port: int) -> str:
        owners = [unit] if host in OWN_NAMES else self._units.values()
        for owner in owners:
            named = host in OWN_NAMES or host in owner.names
            if named and (owner.name, port) in self._ports:
                return self.address(owner.name, port)
        return f"{host}:{port}"
