"""Running clusters, written down where another terminal finds them.

Rules:
- One file for each cluster, in the state folder, named after it. The owner (the process that
  started the cluster) writes it and takes it away; anyone may read it.
- Processes are named with their start marks, so that a recycled id is never signalled. An
  entry of which no process lives is stale and is removed by whoever sees it.
- To take a cluster down is to end its owner, since every engine's nodes end with it.
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
    """What of a cluster is written down."""

    @property
    def engine(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def bootstrap(self) -> str: ...

    def nodes(self) -> list[Node]: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A cluster as its owner last described it."""

    name: str
    engine: str
    bootstrap: str
    started_us: int
    owner: ProcessIdentity
    nodes: tuple[Node, ...]
    identities: dict[int, ProcessIdentity]  # of the nodes that ran
    directory: str | None = None  # where Kafka Lite's supervisor can be found

    def node_state(self, node_id: int) -> NodeState:
        """What the node does now."""
        identity = self.identities.get(node_id)
        if identity is None or not identity.is_alive():
            return "down"
        return "paused" if identity.is_paused() else "running"

    def is_alive(self) -> bool:
        return self.owner.is_alive() or any(map(ProcessIdentity.is_alive, self._processes()))

    def kill(self, node_id: int) -> None:
        if not self._identity(node_id).send(signal.SIGKILL):
            raise self._is_down(node_id)

    def stop(self, node_id: int) -> None:
        if not self._identity(node_id).send(signal.SIGTERM):
            raise self._is_down(node_id)

    def pause(self, node_id: int) -> None:
        if not self._identity(node_id).pause():
            raise self._is_down(node_id)

    def resume(self, node_id: int) -> None:
        if not self._identity(node_id).send(signal.SIGCONT):
            raise self._is_down(node_id)

    def down(self, *, timeout_s: float = DOWN_TIMEOUT_S) -> None:
        """Ends the cluster: gently by its owner, and by force if that does not help."""
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
            raise self._is_down(node_id)
        return self.identities[node_id]

    def _is_down(self, node_id: int) -> SystemFailure:
        return SystemFailure(
            f"node {node_id} of cluster {self.name} is down",
            remedy=f"shoal cluster status {self.name} shows its nodes",
        )


def check_name(name: str) -> str:
    """`name`, if it can be the name of a cluster."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a cluster",
            remedy="use letters, digits, dots, dashes and underscores, at most 64",
        )
    return name


def free_name(word: str) -> str:
    """A name that no living cluster has: `word`, or one that begins with it."""
    taken = {entry.name for entry in entries()}
    return next(name for name in _numbered(word) if name not in taken)


def _numbered(word: str) -> Iterator[str]:
    yield word
    yield from (f"{word}-{number}" for number in itertools.count(2))


def publish(cluster: Publishable) -> None:
    """Writes down a running cluster of this process; again after a node was restarted."""
    me = ProcessIdentity.of(os.getpid())
    if me is None:
        raise SystemFailure("this process cannot see itself; is /proc mounted?")
    file = _file(check_name(cluster.name))
    earlier = _read(file)
    if earlier is not None and earlier.is_alive() and earlier.owner != me:
        raise UsageError(
            f"a cluster called {cluster.name} runs already (process {earlier.owner.pid})",
            remedy=f"choose another name, or end it: shoal cluster down {cluster.name}",
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
    paths.made(file.parent, variable="XDG_STATE_HOME")
    scratch.write_text(json.dumps(content, indent=2))
    scratch.replace(file)


def withdraw(name: str) -> None:
    """Forgets a cluster; does nothing if it is not known, or another process runs it."""
    file = _file(check_name(name))
    entry = _read(file)
    if entry is not None and entry.owner.is_alive() and entry.owner.pid != os.getpid():
        return
    file.unlink(missing_ok=True)


def entries() -> list[Entry]:
    """Every cluster that lives, by name; what is left of dead ones is removed."""
    return sorted(_living(), key=lambda entry: entry.name)


def find(name: str | None = None) -> Entry:
    """The cluster with this name, or the only one there is."""
    living = entries()
    chosen = [entry for entry in living if name in (None, entry.name)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(entry.name for entry in living)
    if not living:
        raise UsageError("no cluster is running", remedy="start one: shoal cluster up")
    if name is None:
        raise UsageError("several clusters are running", remedy=f"name one of {names}")
    raise UsageError(f"no cluster called {name} is running", remedy=f"running: {names}")


def _living() -> Iterator[Entry]:
    for file in _folder().glob("*.json"):
        entry = _read(file)
        if entry is None:
            continue  # of another version of shoal, perhaps: not ours to judge
        if entry.is_alive():
            yield entry
        else:
            file.unlink(missing_ok=True)


def _read(file: Path) -> Entry | None:
    """The entry in a file; None if there is none or it is not one of ours."""
    try:
        content: dict[str, Any] = json.loads(file.read_text())
        if content["format"] != FORMAT:
            return None
        return Entry(
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
