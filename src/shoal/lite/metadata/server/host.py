"""A controller with its port: what a controller's process is, and what a supervisor has inside.

It opens its disk, listens, and takes part in the quorum. Alone it leads when `start` returns;
of several, each finds the others at the addresses that it is given, or that the quorum knows.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shoal.lite.base.configs import Layers
from shoal.lite.base.dial import Peer
from shoal.lite.base.hooks import tracer
from shoal.lite.base.hooks.frames import heard, stamped
from shoal.lite.metadata.rules.controller import ControllerSettings
from shoal.lite.metadata.server.joining import join, until
from shoal.lite.metadata.server.node import SNAPSHOT_RECORDS, ControllerNode
from shoal.lite.metadata.server.peers import Home, Peers
from shoal.lite.metadata.server.port import Answer, ControllerServer
from shoal.lite.metadata.server.request_dispatcher import Desk
from shoal.lite.raft.messages import Message, Request
from shoal.lite.raft.model import Voter
from shoal.runtime.tasks import keep_running

# How long the word that it leads no more takes to reach the others.
_WORD_S = 0.05


class ControllerHost:
    """A running controller. `bind`, `start`, and at the end `close`."""

    def __init__(
        self,
        folder: Path,
        cluster_id: str,
        properties: Mapping[str, str],
        *,
        controllers: Sequence[Peer] = (),
        on_failed: Callable[[str], None] | None = None,
        snapshot_records: int = SNAPSHOT_RECORDS,
    ) -> None:
        """`folder` is the disk of a member. `controllers` are addresses that are known."""
        self._known = {peer.node_id: peer for peer in controllers}
        self._cluster_id = cluster_id
        self._desk = Desk(cluster_id)
        self._server = ControllerServer(self._answer)
        self._peers: Peers | None = None
        self._joining: asyncio.Task[None] | None = None
        layers = Layers(dynamic={}, dynamic_default={}, static=properties)
        settings = ControllerSettings(
            session_timeout_ms=layers.integer("broker.session.timeout.ms"), properties=properties
        )
        self.node = ControllerNode(
            folder,
            cluster_id,
            settings,
            send=self._send,
            on_failed=on_failed,
            snapshot_records=snapshot_records,
        )

    def _answer(self, request: memoryview) -> "Answer | asyncio.Future[Answer]":
        if tracer.current is not None and heard(request):
            return stamped(self._desk.answer(request))
        return self._desk.answer(request)

    def bind(self, host: str, port: int) -> int:
        """Take the port; returns it."""
        return self._server.bind(host, port)

    async def start(self, host: str, port: int) -> None:
        """Take part, and serve; `host` and `port` are where others find us."""
        home = Home(self.node.key.id, self._cluster_id, host, port)
        self._peers = Peers(
            home,
            self._address_of,
            on_answer=self.node.receive,
            on_unreachable=self.node.unreachable,
        )
        self._desk.open(self.node)
        await self._server.start()
        self.node.start()
        if not self.node.raft.is_voter:
            own = Voter(*self.node.key, host, port)
            self._joining = keep_running("joining the quorum", lambda: self._join(own))

    async def _join(self, own: Voter) -> None:
        """A member that came without a vote asks for one, until it has caught up and gets it."""

        async def try_again() -> None:
            await join(own, self._cluster_id, self._leader)

        await until(lambda: self.node.raft.is_voter, try_again)

    def _leader(self) -> Peer | None:
        leader_id = self.node.raft.leader_id
        return None if leader_id is None else self._address_of(leader_id)

    def _address_of(self, node_id: int) -> Peer | None:
        if node_id in self._known:
            return self._known[node_id]
        voter = self.node.raft.voters.get(node_id)
        return None if voter is None or not voter.port else Peer(node_id, voter.host, voter.port)

    def _send(self, to: int, message: Message) -> None:
        if isinstance(message, Request):
            if self._peers is not None:
                self._peers.send(to, message)
        else:
            self._desk.respond(to, message)

    async def close(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        await self._server.close()
        self.node.close()
        if self._peers is not None:
            await self._peers.close()

    async def resign(self) -> None:
        """Let another be the active controller, if this one is; wait a moment for the word."""
        if self.node.raft.is_leader and len(self.node.raft.voters) > 1:
            self.node.resign()
            await asyncio.sleep(_WORD_S)
