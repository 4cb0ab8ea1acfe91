"""The registry of running clusters, so that commands in another terminal find them.

Rules:
- One file for each cluster, in the state folder, named after it. The owner (the process that
  started the cluster) writes it and deletes it; any process may read it.
- Processes are identified by id and start time, so that a recycled process id is never signalled.
  An entry without a running process is stale: the next reader deletes it.
- Stopping the owner stops the cluster, since the nodes of every engine end with it.
"""

import itertools
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from shoal.model.errors import SystemFailure, UsageError
from shoal.model.nodes import Node
from shoal.model.serialised import from_plain, to_plain
from shoal.runtime import paths
from shoal.runtime.processes import ProcessIdentity

FORMAT: Final = 1
DOWN_TIMEOUT_S: Final = 60.0
_NODES_END_WITHIN_S: Final = 5.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

NodeState = Literal["running", "paused", "down"]


class Publishable(Protocol):
    """What the registry needs of a cluster."""

    @property
    def engine(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def bootstrap(self) -> str: ...

    def nodes(self) -> list[Node]: ...


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A cluster, as its owner last wrote it."""

    name: str
    engine: str
    bootstrap: str
    started_us: int
    owner: ProcessIdentity
    nodes: tuple[Node, ...]
    identities: dict[int, ProcessIdentity]  # of the nodes that were running
    directory: str | None = None  # of a Kafka Lite, to reach its supervisor

    def node_state(self, node_id: int) -> NodeState:
        """Whether the node runs, is paused or is down now."""
        identity = self.identities.get(node_id)
        if identity is None or not identity.is_alive():
            return "down"
        return "paused" if identity.is_paused() else "running"

    def is_alive(self) -> bool:
        return self.owner.is_alive() or any(map(ProcessIdentity.is_alive, self._processes()))

    def kill(self, node_id: int) -> None:
        if not self._identity(node_id).send(signal.SIGKILL):
            raise self._node_down_error(node_id)

    def stop(self, node_id: int) -> None:
        if not self._identity(node_id).send(signal.SIGTERM):
            raise self._node_down_error(node_id)

    def pause(self, node_id: int) -> None:
        if not self._identity(node_id).pause():
            raise self._node_down_error(node_id)

    def resume(self, node_id: int) -> None:
        if not self._identity(node_id).send(signal.SIGCONT):
            raise self._node_down_error(node_id)

    def down(self, *, timeout_s: float = DOWN_TIMEOUT_S) -> None:
        """Stop the cluster: SIGTERM to its owner, then SIGKILL to what is left."""
        self.owner.send(signal.SIGTERM)
        if not self.owner.wait_until_ended(timeout_s):
            self.owner.send(signal.SIGKILL)
        deadline = time.monotonic() + _NODES_END_WITHIN_S
        for process in self._processes():
            if not process.wait_until_ended(max(0, deadline - time.monotonic())):
                process.send(signal.SIGKILL)
        withdraw(self.name)

    def _processes(self) -> list[ProcessIdentity]:
        return list(self.identities.values())

    def _identity(self, node_id: int) -> ProcessIdentity:
        if node_id not in {node.id for node in self.nodes}:
            known = ", ".join(str(node.id) for node in self.nodes)
            raise UsageError(
                f"cluster {self.name} has no node {node_id}", remedy=f"its nodes are {known}"
            )
        if node_id not in self.identities:
            raise self._node_down_error(node_id)
        return self.identities[node_id]

    def _node_down_error(self, node_id: int) -> SystemFailure:
        return SystemFailure(
            f"node {node_id} of cluster {self.name} is down",
            remedy=f"shoal cluster status --name {self.name} shows its nodes",
        )


def check_name(name: str) -> str:
    """Return `name`; raise if it is not a valid name for a cluster."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name for a cluster",
            remedy="use at most 64 letters, digits, dots, dashes and underscores",
        )
    return name


def free_name(word: str) -> str:
    """A name that no running cluster has: `word`, or `word` with a number."""
    taken = {entry.name for entry in entries()}
    return next(name for name in _candidate_names(word) if name not in taken)


def _candidate_names(word: str) -> Iterator[str]:
    yield word
    yield from (f"{word}-{number}" for number in itertools.count(2))


def publish(cluster: Publishable) -> None:
    """Write the entry of a running cluster; call it again after a restart of a node."""
    me = ProcessIdentity.of(os.getpid())
    if me is None:
        raise SystemFailure("cannot read the start time of this process", remedy="mount /proc")
    file = _file(check_name(cluster.name))
    earlier = _read(file)
    if earlier is not None and earlier.is_alive() and earlier.owner != me:
        raise UsageError(
            f"a cluster named {cluster.name} is already running (process {earlier.owner.pid})",
            remedy=f"choose another name, or stop it: shoal cluster down --name {cluster.name}",
        )
    seen = {node.id: ProcessIdentity.of(node.pid) for node in cluster.nodes() if node.pid}
    directory = getattr(cluster, "directory", None)
    content = {
        "format": FORMAT,
        "name": cluster.name,
        "engine": cluster.engine,
        "bootstrap": cluster.bootstrap,
        "started_us": earlier.started_us if earlier and earlier.owner == me else _now_us(),
        "owner": to_plain(me),
        "nodes": [to_plain(node) for node in cluster.nodes()],
        "directory": str(directory) if directory else None,
        "identities": {str(n): to_plain(identity) for n, identity in seen.items() if identity},
    }
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    paths.make_folder(file.parent, variable="XDG_STATE_HOME")
    scratch.write_text(json.dumps(content, indent=2))
    scratch.replace(file)


def withdraw(name: str) -> None:
    """Delete the entry of a cluster, unless another running process owns it."""
    file = _file(check_name(name))
    entry = _read(file)
    if entry is not None and entry.owner.is_alive() and entry.owner.pid != os.getpid():
        return
    file.unlink(missing_ok=True)


def entries() -> list[RegistryEntry]:
    """All running clusters, by name; deletes stale entries."""
    return sorted(_live_entries(), key=lambda entry: entry.name)


def find(name: str | None = None) -> RegistryEntry:
    """The running cluster with this name; without a name, the only one."""
    live = entries()
    chosen = [entry for entry in live if name in (None, entry.name)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(entry.name for entry in live)
    if not live:
        raise UsageError("no cluster is running", remedy="start one: shoal cluster up")
    if name is None:
        raise UsageError("several clusters are running", remedy=f"choose one with --name: {names}")
    raise UsageError(f"no cluster named {name} is running", remedy=f"running clusters: {names}")


def _live_entries() -> Iterator[RegistryEntry]:
    for file in _folder().glob("*.json"):
        entry = _read(file)
        if entry is None:
            continue  # perhaps written by another version of shoal: leave it
        if entry.is_alive():
            yield entry
        else:
            file.unlink(missing_ok=True)


def _read(file: Path) -> RegistryEntry | None:
    """The entry in a file; None if the file is missing or cannot be read as an entry."""
    try:
        content: dict[str, Any] = json.loads(file.read_text())
        if content["format"] != FORMAT:
            return None
        return RegistryEntry(
            name=content["name"],
            engine=content["engine"],
            bootstrap=content["bootstrap"],
            started_us=content["started_us"],
            owner=from_plain(ProcessIdentity, content["owner"]),
            nodes=tuple(from_plain(Node, node) for node in content["nodes"]),
            identities={
                int(n): from_plain(ProcessIdentity, i) for n, i in content["identities"].items()
            },
            directory=content["directory"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _folder() -> Path:
    return paths.state_dir() / "clusters"


def _file(name: str) -> Path:
    return _folder() / f"{name}.json"


def _now_us() -> int:
    return time.time_ns() // 1000
