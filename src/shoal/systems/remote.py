"""A cluster of another process: seen, harmed and mended from this one.

Kafka Lite is asked through its supervisor, so all that its own Python class can do can be done
from another terminal. Other engines are reached by signals to the processes that the registry
names; what needs their owner is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from shoal.lite.cluster import LiteCluster, NodeStatus, QuorumStatus
from shoal.model.errors import UnreachableError, UsageError
from shoal.systems.registry import Entry

State = Literal["starting", "running", "paused", "down"]


@dataclass(frozen=True, slots=True)
class RemoteNode:
    """A node as it is now; one that is down has process id 0."""

    id: Annotated[int, "id"]
    host: Annotated[str, "host"]
    port: Annotated[int, "port"]
    pid: Annotated[int, "pid"]
    state: Annotated[State, "state"]
    role: Annotated[Literal["broker", "controller"], "role"] = "broker"
    # As in `NodeStatus`; only Kafka Lite reports these.
    failures: Annotated[Mapping[str, int], "failures"] = field(default_factory=dict)
    offline: Annotated[Mapping[str, str], "offline"] = field(default_factory=dict)
    offline_count: Annotated[int, "offline_count"] = 0


class Remote:
    """What can be done to every engine's clusters: by signals."""

    def __init__(self, entry: Entry) -> None:
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

    def stop(self, node_id: int) -> None:
        self.entry.stop(node_id)

    def pause(self, node_id: int) -> None:
        self.entry.pause(node_id)

    def resume(self, node_id: int) -> None:
        self.entry.resume(node_id)

    def restart(self, node_id: int) -> None:
        raise self._cannot(f"restart node {node_id}")

    def add(self) -> int:
        """The id of the new node."""
        raise self._cannot("add a node")

    def remove(self, node_id: int) -> None:
        raise self._cannot(f"remove node {node_id}")

    def quorum(self) -> QuorumStatus | None:
        """The controllers of a Kafka Lite; None if nobody is active, and for other engines."""
        return None

    def lite(self) -> LiteCluster:
        """The cluster itself, if it is a Kafka Lite: for its faults."""
        raise self._cannot("plant that fault")

    def _cannot(self, what: str) -> UsageError:
        return UsageError(
            f"{self.entry.name} runs on {self.entry.engine}: only its owner can {what}",
            remedy="use Kafka Lite (--engine lite), or the engine's Python class",
        )


class LiteRemote(Remote):
    """A Kafka Lite, through its supervisor."""

    def __init__(self, entry: Entry, folder: Path) -> None:
        super().__init__(entry)
        self._cluster = LiteCluster.attach(folder)

    def nodes(self) -> list[RemoteNode]:
        return [
            *(_seen(node, "broker") for node in self._cluster.status()),
            *(_seen(node, "controller") for node in self._cluster.controllers()),
        ]

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def kill(self, node_id: int) -> None:
        self._known(node_id)
        self._cluster.kill(node_id)

    def stop(self, node_id: int) -> None:
        self._known(node_id)
        self._cluster.stop_node(node_id)

    def pause(self, node_id: int) -> None:
        self._known(node_id)
        self._cluster.pause(node_id)

    def resume(self, node_id: int) -> None:
        self._known(node_id)
        self._cluster.resume(node_id)

    def restart(self, node_id: int) -> None:
        self._known(node_id)
        self._cluster.restart(node_id)

    def add(self) -> int:
        return self._cluster.add().id

    def remove(self, node_id: int) -> None:
        self._known(node_id)
        self._cluster.remove(node_id)

    def quorum(self) -> QuorumStatus | None:
        return self._cluster.quorum()

    def lite(self) -> LiteCluster:
        return self._cluster

    def _known(self, node_id: int) -> None:
        ids = [node.id for node in self.nodes()]
        if node_id not in ids:
            known = ", ".join(map(str, ids))
            raise UsageError(
                f"cluster {self.entry.name} has no node {node_id}", remedy=f"its nodes are {known}"
            )


def _seen(node: NodeStatus, role: Literal["broker", "controller"]) -> RemoteNode:
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


_STATES: dict[str, State] = {"running": "running", "paused": "paused", "dead": "down"}


def remote(entry: Entry) -> Remote:
    """What can be done to this cluster, from here."""
    if entry.engine == "lite" and entry.directory is not None:
        try:
            return LiteRemote(entry, Path(entry.directory))
        except UnreachableError:
            # It is about to end; what is known of its processes still holds.
            return Remote(entry)
    return Remote(entry)
