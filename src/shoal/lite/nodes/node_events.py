"""What a single node (`shoal broker`, `shoal controller`) writes to its event stream.

Rules:
- The stream is in the folder of the node. A file in the state folder names that folder, so that
  the page finds it, as it finds clusters; it stays when the node has ended.
- A node shows its cluster as its own metadata has it: brokers, partitions, the active controller.
  It has counters and a process for itself only. A broker that the controllers do not hear from is
  fenced; of the controllers only the active one is known to run.
- Neither a full disk nor a state folder that cannot be written stops a node.
"""

import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.lite.base.dial import NodeAddress
from shoal.lite.base.spec import BrokerSpec, ControllerSpec
from shoal.lite.broker.core import BrokerCore
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.nodes.broker_metrics import collect_totals
from shoal.lite.nodes.cluster_events import ClusterEvents, SeenCluster, SeenNode
from shoal.runtime.tasks import keep_running
from shoal.telemetry.discovery import node_file
from shoal.telemetry.samples import Chunk

if TYPE_CHECKING:
    # A broker does not load it.
    from shoal.lite.metadata.server.host import ControllerHost

LOOK_EVERY_S: Final = 0.5
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")

_logger = logging.getLogger(__name__)


class NodeView(NamedTuple):
    """A node, and the metadata that it has."""

    role: str
    node_id: int
    cluster_id: str
    folder: Path
    address: str
    controllers: Sequence[NodeAddress]
    state: Callable[[], ClusterState]
    # The id of the active controller; None if none is known.
    active: Callable[[], int | None]
    traffic: "OwnTraffic | None" = None

    @property
    def name(self) -> str:
        """As the names of clusters: at most 64 signs, the first a letter or a digit."""
        suffix = f"-{self.role}-{self.node_id}"
        cluster = _UNSAFE.sub("_", self.cluster_id).lstrip("._-") or "cluster"
        return cluster[: 64 - len(suffix)] + suffix


class OwnTraffic(NamedTuple):
    """The counters of the broker of this process, as a `TrafficSource`."""

    core: BrokerCore

    async def collect(self, _what: str) -> Iterable[Chunk]:
        return collect_totals(self.core)


def view_broker(spec: BrokerSpec, core: BrokerCore, port: int) -> NodeView:
    def find_active() -> int | None:
        return None if (found := core.controller.active) is None else found.node_id

    address = f"{spec.advertised_host}:{port}"
    return NodeView(
        *("broker", spec.broker_id, spec.cluster_id, spec.path, address, spec.controllers),
        state=lambda: core.state,
        active=find_active,
        traffic=OwnTraffic(core),
    )


def view_controller(spec: ControllerSpec, host: "ControllerHost", port: int) -> NodeView:
    address = f"{spec.advertised_host or spec.host}:{port}"
    return NodeView(
        *("controller", spec.controller_id, spec.cluster_id, spec.path, address, spec.controllers),
        state=lambda: host.node.state,
        active=lambda: host.node.raft.leader_id,
    )


@asynccontextmanager
async def write_node_events(view: NodeView) -> AsyncIterator[None]:
    """Write the events of a node that serves, until it ends."""
    details = {
        "engine": "lite",
        "node": f"{view.role} {view.node_id}",
        "address": view.address,
        "bootstrap": view.address if view.role == "broker" else "",
        "directory": str(view.folder),
    }

    async def find_leader() -> int | None:
        return view.active()

    seen = SeenCluster(lambda: list_nodes(view), view.state, find_leader, list)
    events = ClusterEvents(view.folder, view.name, seen, details, look_every_s=LOOK_EVERY_S)
    _enter(view)
    watching = keep_running("event stream", events.watch)
    try:
        yield
    finally:
        watching.cancel()
        events.close()


def list_nodes(view: NodeView) -> list[SeenNode]:
    """This node, and those that its metadata names."""
    own = (view.role, view.node_id)
    active = view.active()
    found = [SeenNode(view.node_id, view.role, "running", os.getpid(), view.address, view.traffic)]
    for broker in view.state().brokers.values():
        if ("broker", broker.broker_id) != own:
            address = f"{broker.host}:{broker.port}"
            found.append(SeenNode(broker.broker_id, "broker", "running", 0, address, None))
    for peer in view.controllers:
        if ("controller", peer.node_id) != own:
            state = "running" if peer.node_id == active else "not active"
            address = f"{peer.host}:{peer.port}"
            found.append(SeenNode(peer.node_id, "controller", state, 0, address, None))
    return found


def _enter(view: NodeView) -> None:
    """Name the folder of the node in the state folder; forget nodes whose folder is gone."""
    file = node_file(view.name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for other in file.parent.glob("*.json"):
            if not _has_folder(other):
                other.unlink(missing_ok=True)
        scratch = file.with_name(f".{file.name}.{os.getpid()}")
        scratch.write_text(json.dumps({"name": view.name, "directory": str(view.folder)}))
        scratch.replace(file)
    except OSError as error:
        _logger.warning("shoal serve will not find this node: cannot write %s: %s", file, error)


def _has_folder(entry: Path) -> bool:
    try:
        return Path(str(json.loads(entry.read_bytes())["directory"])).is_dir()
    except (OSError, ValueError, KeyError, TypeError):
        return False
