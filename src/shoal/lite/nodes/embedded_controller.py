"""The controller inside a supervisor: a quorum of one, and a port for the brokers.

While the supervisor is down there are no elections and no changes of in-sync sets; but it sees
at once when a broker's process ends, so nobody waits for a session to time out.
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from shoal.lite.base.dial import Peer
from shoal.lite.base.hooks import tracer
from shoal.lite.metadata.data.requests import BrokersDied, Request
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.server.host import ControllerHost
from shoal.lite.nodes.cluster_folder import ClusterFolder
from shoal.lite.nodes.controller_processes import Described, Member, as_json
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
        """Open the metadata of a cluster, or begin it.

        `on_failed` is told why, if there is no controller any more.
        """
        if not (folder.metadata / MEMBER_NAME).exists():
            folder.refuse_lost_metadata()
        format_alone(folder.metadata, CONTROLLER_ID)
        tracer.begin(folder.path, f"c{CONTROLLER_ID}")
        self._host = ControllerHost(
            folder.metadata, folder.cluster_id, properties, on_failed=on_failed
        )

    @property
    def state(self) -> ClusterState:
        """What is committed; to be read only."""
        return self._host.node.state

    async def start(self) -> list[Peer]:
        """Lead, forget the processes of a supervisor before this one, and serve brokers.

        Returns where controllers are found.
        """
        port = self._host.bind(_HOST, 0)
        await self._host.start(_HOST, port)
        self.died(
            {
                broker.broker_id: broker.incarnation
                for broker in self.state.brokers.values()
                if not broker.shutting_down
            }
        )
        return [Peer(CONTROLLER_ID, _HOST, port)]

    def died(self, incarnations: Mapping[int, str]) -> None:
        """Processes have ended, by their brokers; what was seen together is told together."""
        if incarnations:
            # An alone controller commits at once; a refusal would be a bug, and shows in the log.
            future = self._host.node.submit(BrokersDied(dict(incarnations)))
            error = future.exception() if future.done() else None
            if error is not None:
                _logger.error("deaths of %s were not taken in: %s", list(incarnations), error)

    async def submit(self, request: Request[A]) -> A:
        """The answer, once what it is about is committed; `Refused` if it cannot be."""
        return (await self._host.node.submit(request)).answer

    async def described(self) -> dict[str, Any]:
        """The quorum, for whoever looks: this controller, and the brokers that follow."""
        raft = self._host.node.raft
        end_offset = raft.log.end_offset
        wall_ms, now_ms = time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000
        own = Member(raft.id, self._host.node.key.directory, end_offset, wall_ms)
        observers = tuple(
            Member(key.id, key.directory, progress.end_offset, wall_ms - now_ms + fetched_ms)
            for progress in raft.progress.values()
            for key, fetched_ms in [(progress.key, progress.fetched_ms)]
        )
        found = Described(raft.id, raft.epoch, raft.high_watermark, (own,), observers)
        return as_json(found)

    async def close(self) -> None:
        await self._host.close()


def format_alone(folder: Path, controller_id: int) -> None:
    """Make `folder` the disk of a quorum's only voter, unless it is one already."""
    if not (folder / MEMBER_NAME).exists():
        key = ReplicaKey(controller_id, uuid.uuid4())
        format_storage(folder, key, Voters([Voter(*key)]))
