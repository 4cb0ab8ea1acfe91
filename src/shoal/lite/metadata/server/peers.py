"""Requests of the quorum to controllers, over connections that are made when they are needed.

Rules of this file:
- Two connections to each controller: one for fetches, which are held there, and one for all else.
- A newer fetch replaces the one before, whose answer would be ignored; not if it is the same one
  again, for the answer may be on a slow way.
- Whoever cannot be reached is told of at once (`on_unreachable`). What is not a fetch is tried
  for a moment longer: nodes that are started together do not listen at the same moment.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from shoal.client.errors import ClientError, ConnectionLost
from shoal.client.transport.connection import Connection
from shoal.lite.base.dial import Peer, dial
from shoal.lite.raft.config import DEFAULT_CONFIG
from shoal.lite.raft.messages import FetchRequest, FetchSnapshotRequest, Request, Response
from shoal.lite.raft.wire import Envelope, WrongCluster, api_key_of, decode_answer, encode_message
from shoal.runtime.tasks import run_once
from shoal.wire.errors import WireError
from shoal.wire.framing import Part

_MOST_UNANSWERED = 100
_RETRY_S = 0.02
_RETRIES = 25
_logger = logging.getLogger(__name__)


class Home(NamedTuple):
    """Who asks: a node of a cluster, and where it listens, if it does."""

    node_id: int
    cluster_id: str
    host: str = ""
    port: int = 0


class _Fetch(NamedTuple):
    """What was asked for, and who waits for the answer."""

    message: Request
    task: asyncio.Task[None]


class Peers:
    """A node's way to the controllers."""

    def __init__(
        self,
        home: Home,
        address_of: Callable[[int], Peer | None],
        *,
        on_answer: Callable[[int, Response], None],
        on_unreachable: Callable[[int], None],
    ) -> None:
        self._home = home
        self._address_of = address_of
        self._on_answer = on_answer
        self._on_unreachable = on_unreachable
        self._lanes: dict[tuple[int, bool], _Lane] = {}
        self._fetches: dict[int, _Fetch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # What was wrong with each, so that it is said once.
        self._complaints: dict[int, str] = {}
        # Whether the last one that did not answer said so.
        self.is_of_another_cluster = False

    def send(self, to: int, message: Request) -> None:
        """Ask a controller, and hand out its answer, or tell that it cannot be reached."""
        address = self._address_of(to)
        if address is None:
            _logger.warning("node %d has no address", to)
            return
        is_fetch = isinstance(message, FetchRequest | FetchSnapshotRequest)
        lane = self._lanes.get((to, is_fetch))
        if lane is None or lane.peer != address:
            if lane is not None:
                lane.drop()
            lane = self._lanes[to, is_fetch] = _Lane(self._home.node_id, address)
        earlier = self._fetches.get(to) if is_fetch else None
        if earlier is not None and not earlier.task.done():
            if earlier.message == message:
                return
            earlier.task.cancel()
            lane.drop()

        def on_failure(_: Exception) -> None:
            self._on_unreachable(to)

        # Raft asks again when a peer is unreachable.
        task = run_once("request to a controller", self._ask(lane, message), on_failure=on_failure)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if is_fetch:
            self._fetches[to] = _Fetch(message, task)

    async def _ask(self, lane: "_Lane", message: Request) -> None:
        to = lane.peer.node_id
        home = self._home
        hold_ms = DEFAULT_CONFIG.fetch_max_wait_ms
        envelope = Envelope(to, home.cluster_id, home.host, home.port, hold_ms)

        def encode(correlation_id: int) -> list[Part]:
            return encode_message(message, envelope, correlation_id)

        timeout_s = DEFAULT_CONFIG.request_timeout_ms / 1000
        try:
            connection = await self._connected(lane, message)
            frame = await connection.request(
                encode, name=api_key_of(message).name, timeout_s=timeout_s
            )
            answer = decode_answer(message, frame)
        except (ClientError, WireError, OSError, TimeoutError) as error:
            self._forget_fetch(to)
            self._complain(to, str(error))
            self.is_of_another_cluster = isinstance(error, WrongCluster)
            if isinstance(error, ConnectionLost):
                self._on_unreachable(to)
            return
        self._forget_fetch(to)
        self._complaints.pop(to, None)
        self._on_answer(to, answer)

    def _forget_fetch(self, to: int) -> None:
        """An answered fetch is none that the next one, which follows at once, would replace."""
        fetch = self._fetches.get(to)
        if fetch is not None and fetch.task is asyncio.current_task():
            del self._fetches[to]

    def _complain(self, to: int, reason: str) -> None:
        if self._complaints.get(to) != reason:
            self._complaints[to] = reason
            _logger.info("controller %d did not answer: %s", to, reason)

    async def _connected(self, lane: "_Lane", message: Request) -> Connection:
        if isinstance(message, FetchRequest | FetchSnapshotRequest):
            return await lane.connected()
        for tried in range(_RETRIES):
            try:
                return await lane.connected()
            except ConnectionLost:
                if tried == 0:
                    self._on_unreachable(lane.peer.node_id)
                await asyncio.sleep(_RETRY_S)
        return await lane.connected()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes.values():
            await lane.close()


class _Lane:
    """One connection, made again when it is lost."""

    def __init__(self, own_id: int, peer: Peer) -> None:
        self.peer = peer
        self._own_id = own_id
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def connected(self) -> Connection:
        async with self._lock:
            if self._connection is None or self._connection.is_closed:
                self._connection = await dial(
                    self._own_id, self.peer, max_in_flight=_MOST_UNANSWERED
                )
            return self._connection

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.abort(ConnectionLost("not needed any more", sent=True))
            self._connection = None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
