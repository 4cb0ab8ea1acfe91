"""Plays units in network namespaces: each has its own address, and every port and name is real.

Nothing of a command, an environment or a probe is translated but the paths of volumes. Names are
resolved by a file of hosts for each unit, as the DNS of Kubernetes would: short names within a
namespace, and names that end in `.svc` from everywhere. The network of this machine is not
touched: the bridge is in a namespace of its own, too, and everything ends with its processes.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.deploy.player import Player, Unit

TOOLS = ("ip", "nsenter", "unshare", "mount")
_NETWORK = "10.77.0.{}"
_BRIDGE = "pods"
_EXCHANGE = Path(__file__).with_name("exchange.py")


def find_obstacle() -> str:
    """Why there can be no network namespaces here; empty if there can be."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    if os.geteuid() != 0:
        return "needs root"
    made = subprocess.run(["unshare", "--net", "--mount", "true"], check=False)  # noqa: S607
    return "" if made.returncode == 0 else "this machine forbids network namespaces"


class NamespacePlayer(Player):
    """Starts units in namespaces; `exchange` is a client in the same network."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._hosts: dict[str, str] = {}  # by unit: its address
        self._node = self._hold("the node")
        self._ip(self._node, "link", "add", _BRIDGE, "type", "bridge")
        self._ip(self._node, "addr", "add", f"{_NETWORK.format(1)}/24", "dev", _BRIDGE)
        self._ip(self._node, "link", "set", _BRIDGE, "up")

    def add(self, units: Sequence[Unit]) -> None:
        for unit in units:
            number = len(self._hosts) + 2
            self._hosts[unit.name] = _NETWORK.format(number)
            pid, cable = self._hold(unit.name), f"pod{number}"
            ends = ("type", "veth", "peer", "name", "eth0", "netns", str(pid))
            self._ip(self._node, "link", "add", cable, *ends)
            self._ip(self._node, "link", "set", cable, "master", _BRIDGE, "up")
            self._ip(pid, "addr", "add", f"{self._hosts[unit.name]}/24", "dev", "eth0")
            self._ip(pid, "link", "set", "eth0", "up")
        super().add(units)
        for name in (*self._units, ""):
            lines = ["127.0.0.1 localhost", *self._list_hosts(name.partition(".")[0])]
            self._hosts_file(name).write_text("\n".join(lines) + "\n")

    def address(self, name: str, port: int) -> str:
        """As clients in the network name it."""
        return f"{self._units[name].names[-1]}:{port}"

    def exchange(self, *arguments: str) -> str:
        """Run a client (`exchange.py`) in the network, outside of all units."""
        command = [sys.executable, str(_EXCHANGE), *arguments]
        done = subprocess.run(
            self._enter(self._node, "", command),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def _command(self, unit: Unit, command: Sequence[str]) -> list[str]:
        pid = self._holders[unit.name].pid
        return self._enter(pid, unit.name, super()._command(unit, command))

    def _translate(self, unit: Unit, text: str) -> str:
        return self._translate_paths(unit, text)

    def _list_hosts(self, namespace: str) -> list[str]:
        """The names that a unit of a namespace of Kubernetes can resolve."""
        return [
            f"{self._hosts[unit.name]} {host}"
            for unit in self._units.values()
            for host in unit.names
            if host.endswith(".svc") or unit.name.partition(".")[0] == namespace
        ]

    def _hosts_file(self, name: str) -> Path:
        return self._folder / f"hosts-{name}"

    def _hold(self, name: str) -> int:
        """A process that keeps a new namespace until it ends."""
        command = ["unshare", "--net", "--kill-child", "sh", "-c", "echo; exec sleep infinity"]
        holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._holders[name] = holder
        assert holder.stdout
        holder.stdout.readline()  # it is in its namespace
        holder.stdout.close()
        self._ip(holder.pid, "link", "set", "lo", "up")
        return holder.pid

    @staticmethod
    def _ip(pid: int, *arguments: str) -> None:
        subprocess.run(["nsenter", "--net", "-t", str(pid), "ip", *arguments], check=True)  # noqa: S607

    def _enter(self, pid: int, name: str, command: Sequence[str]) -> list[str]:
        """The command in a namespace, with its own file of hosts; it keeps the process id."""
        bind = f'mount --bind {self._hosts_file(name)} /etc/hosts && exec "$@"'
        inside = ["nsenter", "--net", "-t", str(pid), "unshare", "--mount"]
        return [*inside, "sh", "-c", bind, "sh", *command]
