"""ZooKeeper, for versions of Kafka that need it: one server or an ensemble, each in a JVM.

Rules: each server runs under a guardian and dies with this process. The ensemble is ready when
every server reports that it serves. What a server writes is in its folder.
"""

import re
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from shoal.model.errors import SystemFailure
from shoal.net.ports import HOST, free_ports
from shoal.systems.processes.guarded import GuardedProcess, log_excerpt

_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_READY_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 20.0
_POLL_EVERY_S: Final = 0.1
_HEAP: Final = ("-Xms32m", "-Xmx256m", "-XX:-UsePerfData")


class Ensemble:
    """One or more ZooKeeper servers."""

    def __init__(self, folder: Path, servers: int, *, is_temporary: bool) -> None:
        self._folders = [folder / f"zookeeper-{number}" for number in range(1, servers + 1)]
        ports = free_ports(3 * servers)
        self._ports = [tuple(ports[at : at + 3]) for at in range(0, len(ports), 3)]
        self._is_temporary = is_temporary
        self._processes: list[GuardedProcess] = []

    @property
    def connect(self) -> str:
        """Addresses for `zookeeper.connect`."""
        return ",".join(f"{HOST}:{client}" for client, _, _ in self._ports)

    def start(self, java: str, class_path: str, logging: Sequence[str]) -> None:
        """Start every server and return when all serve."""
        for number, folder in enumerate(self._folders, start=1):
            config = self._write_config(number, folder)
            command = [java, *_HEAP, *logging, "-cp", class_path, _MAIN, str(config)]
            scratch = folder if self._is_temporary else None
            log = folder / "server.log"
            self._processes.append(GuardedProcess(command, log=log, folder=folder, scratch=scratch))
        self._wait_until_ready()

    def stop(self, *, gently: bool) -> None:
        """Stop every server."""
        for process in self._processes:
            with suppress(SystemFailure):  # it may have exited already
                process.send(signal.SIGCONT)
                process.send(signal.SIGTERM if gently else signal.SIGKILL)
        for process in self._processes:
            process.wait(_STOP_TIMEOUT_S if gently else 0)
            process.kill_and_wait()
        self._processes.clear()

    def _write_config(self, number: int, folder: Path) -> Path:
        data = folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{number}\n")
        lines = [
            "tickTime=2000",
            "initLimit=10",
            "syncLimit=5",
            f"dataDir={data}",
            f"clientPort={self._ports[number - 1][0]}",
            f"clientPortAddress={HOST}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            "maxClientCnxns=0",
        ]
        if len(self._folders) > 1:
            lines += [
                f"server.{other}={HOST}:{peer}:{election}"
                for other, (_, peer, election) in enumerate(self._ports, start=1)
            ]
        config = folder / "zoo.cfg"
        config.write_text("\n".join(lines) + "\n")
        return config

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        for process, (client, _, _) in zip(self._processes, self._ports, strict=True):
            while not _is_serving(client):
                if not process.is_alive() or time.monotonic() > deadline:
                    raise SystemFailure(
                        f"ZooKeeper did not start ({process.exit_description()}): "
                        f"{log_excerpt(process.log)}"
                    )
                time.sleep(_POLL_EVERY_S)


def _is_serving(port: int) -> bool:
    """Whether the server at this port is part of the ensemble and answers."""
    try:
        with socket.create_connection((HOST, port), 2.0) as connection:
            connection.sendall(b"srvr")
            answer = connection.recv(4096)
    except OSError:
        return False
    return re.search(rb"^Mode: (standalone|leader|follower)", answer, re.MULTILINE) is not None
