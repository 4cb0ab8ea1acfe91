"""Raft requests to controllers, over connections that are opened when they are needed.

Rules of this file:
- Two connections to each controller: one for fetches, which are held there, and one for all
  other requests.
- A newer fetch replaces the previous one, whose answer would be ignored. An equal fetch does not:
  the answer to the first may still be on a slow link.
- `on_unreachable` is called at once for a controller that cannot be reached. Requests other than
  fetches are retried for a moment: nodes that start together do not listen at the same moment.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from shoal.client.errors import ClientError, ConnectionLost
from shoal.client.transport.connection import Connection
from shoal.lite.base.dial import NodeAddress, connect_to_node
from shoal.lite.raft.config import DEFAULT_CONFIG
from shoal.lite.raft.messages import (
    FetchSnapshotRequest,
    RaftFetchRequest,
    RaftRequest,
    RaftResponse,
)
from shoal.lite.raft.wire import (
    RequestContext,
    WrongCluster,
    api_key_of,
    decode_raft_response,
    encode_raft_request,
)
from shoal.runtime.tasks import run_once
from shoal.wire.errors import WireError
from shoal.wire.framing import Part

_MAX_IN_FLIGHT = 100
_RETRY_S = 0.02
_MAX_RETRIES = 25
_logger = logging.getLogger(__name__)


class LocalNode(NamedTuple):
    """The node that sends: its id and cluster, and its address if it listens."""

    node_id: int
    cluster_id: str
    host: str = ""
    port: int = 0


class _Fetch(NamedTuple):
    """A fetch under way, and the task that waits for its answer."""

    message: RaftRequest
    task: asyncio.Task[None]


@dataclass(slots=True)
class LinkTraffic:
    """What a node exchanged with controllers to follow the metadata."""

    requests: int = 0
    responses: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class Peers:
    """The connections of a node to the controllers."""

    def __init__(
        self,
        local: LocalNode,
        address_of: Callable[[int], NodeAddress | None],
        *,
        on_answer: Callable[[int, RaftResponse], None],
        on_unreachable: Callable[[int], None],
    ) -> None:
        self._local = local
        self._address_of = address_of
        self._on_answer = on_answer
        self._on_unreachable = on_unreachable
        self._links: dict[tuple[int, bool], _PeerConnection] = {}
        self._fetches: dict[int, _Fetch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # The last failure of each controller, so that it is logged once.
        self._last_failures: dict[int, str] = {}
        # Whether the last failure was that the controller belongs to another cluster.
        self.is_of_another_cluster = False
        self.traffic = LinkTraffic()

    def send(self, to: int, message: RaftRequest) -> None:
        """Send a request; calls `on_answer` with the answer, or `on_unreachable`."""
        address = self._address_of(to)
        if address is None:
            _logger.warning("cannot send to controller %d: its address is unknown", to)
            return
        is_fetch = isinstance(message, RaftFetchRequest | FetchSnapshotRequest)
        link = self._links.get((to, is_fetch))
        if link is None or link.peer != address:
            if link is not None:
                link.drop()
            link = self._links[to, is_fetch] = _PeerConnection(self._local.node_id, address)
        earlier = self._fetches.get(to) if is_fetch else None
        if earlier is not None and not earlier.task.done():
            if earlier.message == message:
                return
            earlier.task.cancel()
            link.drop()

        def on_failure(_: Exception) -> None:
            self._on_unreachable(to)

        # Raft retries when a peer is unreachable.
        task = run_once("request to a controller", self._ask(link, message), on_failure=on_failure)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if is_fetch:
            self._fetches[to] = _Fetch(message, task)

    async def _ask(self, link: "_PeerConnection", message: RaftRequest) -> None:
        to = link.peer.node_id
        local = self._local
        hold_ms = DEFAULT_CONFIG.fetch_max_wait_ms
        envelope = RequestContext(to, local.cluster_id, local.host, local.port, hold_ms)

        def encode(correlation_id: int) -> list[Part]:
            parts = encode_raft_request(message, envelope, correlation_id)
            self.traffic.requests += 1
            self.traffic.sent_bytes += sum(map(len, parts))
            return parts

        timeout_s = DEFAULT_CONFIG.request_timeout_ms / 1000
        try:
            connection = await self._connect(link, message)
            frame = await connection.request(
                encode, name=api_key_of(message).name, timeout_s=timeout_s
            )
            self.traffic.responses += 1
            self.traffic.received_bytes += len(frame)
            answer = decode_raft_response(message, frame)
        except (ClientError, WireError, OSError, TimeoutError) as error:
            self._forget_fetch(to)
            self._log_failure_once(to, str(error))
            self.is_of_another_cluster = isinstance(error, WrongCluster)
            if isinstance(error, ConnectionLost):
                self._on_unreachable(to)
            return
        self._forget_fetch(to)
        self._last_failures.pop(to, None)
        self._on_answer(to, answer)

    def _forget_fetch(self, to: int) -> None:
        """Forget an answered fetch: the next one follows at once, and must not cancel it."""
        fetch = self._fetches.get(to)
        if fetch is not None and fetch.task is asyncio.current_task():
            del self._fetches[to]

    def _log_failure_once(self, to: int, reason: str) -> None:
        if self._last_failures.get(to) != reason:
            self._last_failures[to] = reason
            _logger.info("controller %d did not answer: %s", to, reason)

    async def _connect(self, link: "_PeerConnection", message: RaftRequest) -> Connection:
        if isinstance(message, RaftFetchRequest | FetchSnapshotRequest):
            return await link.connect()
        for tried in range(_MAX_RETRIES):
            try:
                return await link.connect()
            except ConnectionLost:
                if tried == 0:
                    self._on_unreachable(link.peer.node_id)
                await asyncio.sleep(_RETRY_S)
        return await link.connect()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links.values():
            await link.close()


class _PeerConnection:
    """One connection, opened again when it is lost."""

    def __init__(self, own_id: int, peer: NodeAddress) -> None:
        self.peer = peer
        self._own_id = own_id
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def connect(self) -> Connection:
        async with self._lock:
            if self._connection is None or self._connection.is_closed:
                self._connection = await connect_to_node(
                    self._own_id, self.peer, max_in_flight=_MAX_IN_FLIGHT
                )
            return self._connection

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.abort(ConnectionLost("a newer fetch replaced this one", sent=True))
            self._connection = None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
