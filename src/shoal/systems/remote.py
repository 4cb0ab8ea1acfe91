"""Controls a cluster that another process started: status, kills, pauses, faults.

A Kafka Lite is controlled through its supervisor, so everything that `LiteCluster` can do works
from another terminal too. For other engines, signals are sent to the processes in the registry;
operations that only the owner process can do are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from shoal.lite.cluster import LiteCluster, NodeStatus, QuorumStatus
from shoal.model.errors import UnreachableError, UsageError
from shoal.systems.registry import RegistryEntry

RemoteState = Literal["starting", "running", "paused", "down"]


@dataclass(frozen=True, slots=True)
class RemoteNode:
    """The current state of a node; the pid of a node that is down is 0."""

    id: Annotated[int, "id"]
    host: Annotated[str, "host"]
    port: Annotated[int, "port"]
    pid: Annotated[int, "pid"]
    state: Annotated[RemoteState, "state"]
    role: Annotated[Literal["broker", "controller"], "role"] = "broker"
    # As in `NodeStatus`; only Kafka Lite reports these.
    failures: Annotated[Mapping[str, int], "failures"] = field(default_factory=dict)
    offline: Annotated[Mapping[str, str], "offline"] = field(default_factory=dict)
    offline_count: Annotated[int, "offline_count"] = 0


class RemoteCluster:
    """A cluster of any engine, controlled by signals to its processes."""

    def __init__(self, entry: RegistryEntry) -> None:
        self.entry = entry

    def nodes(self) -> list[RemoteNode]:
        found = []
        for node in self.entry.nodes:
            state = self.entry.node_state(node.id)
            pid = 0 if state == "down" else node.pid
            found.append(RemoteNode(node.id, node.host, node.port, pid, state))
        return found

    @property
    def bootstrap(self) -> str:
        return self.entry.bootstrap

    def kill(self, node_id: int) -> None:
        self.entry.kill(node_id)

    def stop_node(self, node_id: int) -> None:
        self.entry.stop(node_id)

    def pause(self, node_id: int) -> None:
        self.entry.pause(node_id)

    def resume(self, node_id: int) -> None:
        self.entry.resume(node_id)

    def restart(self, node_id: int) -> None:
        raise self._owner_only_error(f"restart node {node_id}")

    def add(self) -> int:
        """Add a node, and return its id."""
        raise self._owner_only_error("add a node")

    def remove(self, node_id: int) -> None:
        raise self._owner_only_error(f"remove node {node_id}")

    def quorum(self) -> QuorumStatus | None:
        """The controller quorum; None without an active controller, and for other engines."""
        return None

    def lite(self) -> LiteCluster:
        """The `LiteCluster`, for fault injection; raises for other engines."""
        raise self._owner_only_error("inject that fault")

    def _owner_only_error(self, what: str) -> UsageError:
        return UsageError(
            f"only the owner of cluster {self.entry.name} ({self.entry.engine}) can {what}",
            remedy="use Kafka Lite (--engine lite), or the engine's Python class",
        )


class RemoteLiteCluster(RemoteCluster):
    """A Kafka Lite, controlled through its supervisor."""

    def __init__(self, entry: RegistryEntry, folder: Path) -> None:
        super().__init__(entry)
        self._cluster = LiteCluster.attach(folder)

    def nodes(self) -> list[RemoteNode]:
        return [
            *(_to_remote_node(node, "broker") for node in self._cluster.status()),
            *(_to_remote_node(node, "controller") for node in self._cluster.controllers()),
        ]

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def kill(self, node_id: int) -> None:
        self._require_node(node_id)
        self._cluster.kill(node_id)

    def stop_node(self, node_id: int) -> None:
        self._require_node(node_id)
        self._cluster.stop_node(node_id)

    def pause(self, node_id: int) -> None:
        self._require_node(node_id)
        self._cluster.pause(node_id)

    def resume(self, node_id: int) -> None:
        self._require_node(node_id)
        self._cluster.resume(node_id)

    def restart(self, node_id: int) -> None:
        self._require_node(node_id)
        self._cluster.restart(node_id)

    def add(self) -> int:
        return self._cluster.add().id

    def remove(self, node_id: int) -> None:
        self._require_node(node_id)
        self._cluster.remove(node_id)

    def quorum(self) -> QuorumStatus | None:
        return self._cluster.quorum()

    def lite(self) -> LiteCluster:
        return self._cluster

    def _require_node(self, node_id: int) -> None:
        ids = [node.id for node in self.nodes()]
        if node_id not in ids:
            known = ", ".join(map(str, ids))
            raise UsageError(
                f"cluster {self.entry.name} has no node {node_id}", remedy=f"its nodes are {known}"
            )


def _to_remote_node(node: NodeStatus, role: Literal["broker", "controller"]) -> RemoteNode:
    state = _STATES.get(node.state, "starting")
    return RemoteNode(
        node.id,
        node.host,
        node.port,
        node.pid,
        state,
        role,
        failures=node.failures,
        offline=node.offline,
        offline_count=node.offline_count,
    )


_STATES: dict[str, RemoteState] = {"running": "running", "paused": "paused", "dead": "down"}


def open_remote_cluster(entry: RegistryEntry) -> RemoteCluster:
    """Connect to a cluster of the registry."""
    if entry.engine == "lite" and entry.directory is not None:
        try:
            return RemoteLiteCluster(entry, Path(entry.directory))
        except UnreachableError:
            # It is shutting down; the process ids in the registry are still right.
            return RemoteCluster(entry)
    return RemoteCluster(entry)
