"""The controller inside a supervisor: a quorum of one, and a port for the brokers.

While the supervisor is down there are no elections and no changes of in-sync sets. It notices at
once when a broker's process ends, so that no session needs to time out.
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from shoal.lite.base.dial import NodeAddress
from shoal.lite.base.hooks import tracer
from shoal.lite.base.scheduler import monotonic_ms
from shoal.lite.metadata.data.requests import ControllerRequest, ReportBrokerExits
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.server.host import ControllerHost
from shoal.lite.nodes.cluster_folder import ClusterFolder
from shoal.lite.nodes.controller_processes import QuorumDescription, QuorumReplica, quorum_to_json
from shoal.lite.raft.model import ReplicaKey, Voter, Voters
from shoal.lite.raft.storage.small_files import MEMBER_NAME
from shoal.lite.raft.storage.storage import format_storage

A = TypeVar("A")
CONTROLLER_ID = 100
_HOST = "127.0.0.1"
_logger = logging.getLogger(__name__)


class EmbeddedController:
    """A running controller."""

    def __init__(
        self,
        folder: ClusterFolder,
        properties: Mapping[str, str],
        on_failed: Callable[[str], None],
    ) -> None:
        """Open the metadata of a cluster, or create it.

        `on_failed` is called with the reason when the controller fails permanently.
        """
        if not (folder.metadata / MEMBER_NAME).exists():
            folder.refuse_lost_metadata()
        format_alone(folder.metadata, CONTROLLER_ID)
        tracer.start_tracing(folder.path, f"c{CONTROLLER_ID}")
        self._host = ControllerHost(
            folder.metadata, folder.cluster_id, properties, on_failed=on_failed
        )

    @property
    def state(self) -> ClusterState:
        """The committed state; read-only for callers."""
        return self._host.node.state

    async def start(self) -> list[NodeAddress]:
        """Lead, report the processes of a former supervisor as ended, and serve brokers.

        Returns the addresses of the controllers.
        """
        port = self._host.bind(_HOST, 0)
        await self._host.start(_HOST, port)
        self.on_brokers_exited(
            {
                broker.broker_id: broker.incarnation
                for broker in self.state.brokers.values()
                if not broker.shutting_down
            }
        )
        return [NodeAddress(CONTROLLER_ID, _HOST, port)]

    def on_brokers_exited(self, incarnations: Mapping[int, str]) -> None:
        """Report ended broker processes; those seen together are reported together."""

        def on_reply(reply: Reply) -> None:
            # An error would be a bug: a single controller is always active.
            if reply.refused is not None:
                _logger.error(
                    "could not record the exit of broker processes %s: %s",
                    list(incarnations),
                    reply.refused,
                )

        if incarnations:
            self._host.node.submit(ReportBrokerExits(dict(incarnations)), on_reply)

    async def submit(self, request: ControllerRequest[A]) -> A:
        """The answer, once its records are committed; `ApiError` if the request fails."""
        return await self._host.submit(request)

    async def describe_as_json(self) -> dict[str, Any]:
        """The quorum as JSON: this controller, and the brokers that observe it."""
        raft = self._host.node.raft
        end_offset = raft.log.end_offset
        wall_ms, now_ms = time.time_ns() // 1_000_000, monotonic_ms()
        own = QuorumReplica(raft.id, self._host.node.key.directory, end_offset, wall_ms)
        observers = tuple(
            QuorumReplica(key.id, key.directory, progress.end_offset, wall_ms - now_ms + fetched_ms)
            for progress in raft.progress.values()
            for key, fetched_ms in [(progress.key, progress.fetched_ms)]
        )
        found = QuorumDescription(raft.id, raft.epoch, raft.high_watermark, (own,), observers)
        return quorum_to_json(found)

    async def close(self) -> None:
        await self._host.close()


def format_alone(folder: Path, controller_id: int) -> None:
    """Format `folder` as the disk of a quorum's only voter, unless it is one already."""
    if not (folder / MEMBER_NAME).exists():
        key = ReplicaKey(controller_id, uuid.uuid4())
        format_storage(folder, key, Voters([Voter(*key)]))
