"""A controller with its port: run by a controller process, or inside a supervisor.

It opens its disk, listens, and takes part in the quorum. A single controller leads when `start`
returns; of several, each finds the others at the addresses that it is given, or by the voter set.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

from shoal.lite.base.configs import Layers
from shoal.lite.base.dial import NodeAddress
from shoal.lite.base.hooks import tracer
from shoal.lite.base.hooks.frames import merge_request_clock, stamp_answer
from shoal.lite.base.scheduler import EventLoopScheduler
from shoal.lite.metadata.data.requests import ControllerRequest
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.metadata.rules.controller import Controller, ControllerSettings
from shoal.lite.metadata.server.joining import request_vote, retry_until
from shoal.lite.metadata.server.node import SNAPSHOT_RECORDS, ControllerNode
from shoal.lite.metadata.server.peers import LocalNode, Peers
from shoal.lite.metadata.server.port import Answer, ControllerServer
from shoal.lite.metadata.server.request_dispatcher import RequestDispatcher
from shoal.lite.raft.messages import RaftMessage, RaftRequest
from shoal.lite.raft.model import Voter
from shoal.lite.raft.node import RaftNode
from shoal.lite.raft.storage.storage import FileStorage
from shoal.runtime.tasks import keep_running

A = TypeVar("A")

# How long to wait after a resignation, so that EndQuorumEpoch reaches the others.
_RESIGN_NOTICE_S = 0.05


class ControllerHost:
    """A running controller. `bind`, `start`, and at the end `close`."""

    def __init__(
        self,
        folder: Path,
        cluster_id: str,
        properties: Mapping[str, str],
        *,
        controllers: Sequence[NodeAddress] = (),
        on_failed: Callable[[str], None] | None = None,
        snapshot_records: int = SNAPSHOT_RECORDS,
    ) -> None:
        """`folder` is the disk of a member. `controllers` are known addresses."""
        self._known = {peer.node_id: peer for peer in controllers}
        self._cluster_id = cluster_id
        self._dispatcher = RequestDispatcher(cluster_id)
        self._server = ControllerServer(self._answer)
        self._peers: Peers | None = None
        self._joining: asyncio.Task[None] | None = None
        layers = Layers(dynamic={}, dynamic_default={}, static=properties)
        settings = ControllerSettings(
            session_timeout_ms=layers.integer("broker.session.timeout.ms"), properties=properties
        )
        scheduler = EventLoopScheduler()
        self._storage, stored = FileStorage.open(folder)
        random = Random()  # noqa: S311 - spreads elections, keeps no secrets
        raft = RaftNode(self._storage.key, stored, now_ms=scheduler.now_ms(), random=random)
        self.node = ControllerNode(
            raft,
            self._storage,
            stored,
            cluster_id=cluster_id,
            new_controller=lambda state: Controller(state, settings),
            scheduler=scheduler,
            send=self._send,
            on_failed=on_failed,
            snapshot_records=snapshot_records,
        )

    def _answer(self, request: memoryview) -> "Answer | asyncio.Future[Answer]":
        if tracer.current is not None and merge_request_clock(request):
            return stamp_answer(self._dispatcher.answer(request))
        return self._dispatcher.answer(request)

    def bind(self, host: str, port: int) -> int:
        """Bind the port; returns it."""
        return self._server.bind(host, port)

    async def start(self, host: str, port: int) -> None:
        """Join the quorum and serve; `host` and `port` are the address for other nodes."""
        local = LocalNode(self.node.key.id, self._cluster_id, host, port)
        self._peers = Peers(
            local,
            self._address_of,
            on_answer=self.node.receive,
            on_unreachable=self.node.on_unreachable,
        )
        self._dispatcher.open(self.node)
        await self._server.start()
        self.node.start()
        if not self.node.raft.is_voter:
            own = Voter(*self.node.key, host, port)
            self._joining = keep_running("joining the quorum", lambda: self._join(own))

    async def _join(self, own: Voter) -> None:
        """Ask for a vote until this observer has caught up and becomes a voter."""

        async def try_again() -> None:
            await request_vote(own, self._cluster_id, self._leader)

        await retry_until(lambda: self.node.raft.is_voter, try_again)

    def _leader(self) -> NodeAddress | None:
        leader_id = self.node.raft.leader_id
        return None if leader_id is None else self._address_of(leader_id)

    def _address_of(self, node_id: int) -> NodeAddress | None:
        if node_id in self._known:
            return self._known[node_id]
        voter = self.node.raft.voters.get(node_id)
        return (
            None
            if voter is None or not voter.port
            else NodeAddress(node_id, voter.host, voter.port)
        )

    def _send(self, to: int, message: RaftMessage) -> None:
        if isinstance(message, RaftRequest):
            if self._peers is not None:
                self._peers.send(to, message)
        else:
            self._dispatcher.respond(to, message)

    async def submit(self, request: ControllerRequest[A]) -> A:
        """Return the answer once its records are committed; `ApiError` if the request fails."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Reply) -> None:
            if not future.done():
                future.set_result(reply)

        self.node.submit(request, on_reply)
        reply = await future
        if reply.refused is not None:
            raise reply.refused
        answer: A = reply.answer
        return answer

    async def close(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        await self._server.close()
        self.node.close()
        self._storage.close()
        if self._peers is not None:
            await self._peers.close()

    async def resign(self) -> None:
        """Resign if this is the active controller, and wait until the others are notified."""
        if self.node.raft.is_leader and len(self.node.raft.voters) > 1:
            self.node.resign()
            await asyncio.sleep(_RESIGN_NOTICE_S)
