"""A node's link to the controllers: it follows the metadata log, and asks for changes.

Rules of this file:
- The node is an observer of the quorum: it fetches the log and never votes. It keeps nothing on
  the disk, so it hears of every record after each start.
- Requests go to the leader of the quorum, which is the active controller. When another leads,
  the connection to the one before is dropped: it may be paused, and would never answer.
- An answer is handed out when the metadata here has what it rests on, so whoever asked for a
  topic finds it.
- What may have been lost with a controller is asked again, until it is answered or time is up;
  asked twice, it is done once. Heartbeats and proposals of leaders are not: who sends them has
  something newer to say by then, and hears NOT_CONTROLLER.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from shoal.client.errors import ClientError, ConnectionLost
from shoal.client.transport.connection import Connection
from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.dial import Peer, dial
from shoal.lite.metadata.data.records import Record, decode_record
from shoal.lite.metadata.data.requests import AlterPartitions, Heartbeat, Request
from shoal.lite.metadata.data.rpc import Reply, api_key_of, decode_reply, encode_call
from shoal.lite.metadata.server.peers import Home, Peers
from shoal.lite.raft.actions import Action, Committed, LoadSnapshot, Send
from shoal.lite.raft.messages import Request as RaftRequest
from shoal.lite.raft.messages import Response
from shoal.lite.raft.model import EntryKind, ReplicaKey, StoredState, Voter, Voters
from shoal.lite.raft.node import RaftNode
from shoal.lite.raft.storage.driver import drive
from shoal.lite.raft.storage.memory import ForgetfulStorage
from shoal.runtime.tasks import record_failure
from shoal.wire.errors import WireError
from shoal.wire.framing import Part
from shoal.wire.messages import RequestFrame, put_request_header
from shoal.wire.primitives import INT32

A = TypeVar("A")
# A group of records that were committed; the flag says that the state begins anew with them.
OnRecords = Callable[[list[Record], bool], None]

_ANSWER_PATIENCE_S = 30.0
_FORWARD_PATIENCE_S = 5.0
_RETRY_S = 0.02
_MOST_UNANSWERED = 1000
_NO_DIRECTORY = UUID(int=0)
_NOT_REPEATED = (Heartbeat, AlterPartitions)
_logger = logging.getLogger(__name__)


class ControllerLink:
    """The node's end. `start`, then `submit`; `on_records` is called in the event loop."""

    def __init__(
        self,
        key: ReplicaKey,
        cluster_id: str,
        controllers: Sequence[Peer],
        on_records: OnRecords,
    ) -> None:
        """`key` is that of the node, with the id of its folder."""
        self._key = key
        self._cluster_id = cluster_id
        self._known = {peer.node_id: peer for peer in controllers}
        self._on_records = on_records
        # What disks they have is theirs to know: an observer tells nobody how to vote.
        voters = Voters(Voter(p.node_id, _NO_DIRECTORY, p.host, p.port) for p in controllers)
        random = Random()  # noqa: S311 - spreads requests, keeps no secrets
        self._raft = RaftNode(key, StoredState(voters), now_ms=_now_ms(), random=random)
        self._storage = ForgetfulStorage()
        self._peers = Peers(
            Home(key.id, cluster_id),
            self._address_of,
            on_answer=self._on_answer,
            on_unreachable=self._on_unreachable,
        )
        self._connection: tuple[Peer, Connection] | None = None
        self._lock = asyncio.Lock()
        self._on_new_leader = asyncio.Event()
        self._leader_id: int | None = None
        self._last_complaint = ""
        self._numbers = count(1)
        # Those who wait for the metadata here to reach an offset.
        self._behind: list[tuple[int, int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        self._tick()

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._peers.close()
        if self._connection is not None:
            await self._connection[1].close()

    @property
    def active(self) -> Peer | None:
        """The active controller, as far as known."""
        leader_id = self._raft.leader_id
        return None if leader_id is None else self._address_of(leader_id)

    def _address_of(self, node_id: int) -> Peer | None:
        if node_id in self._known:
            return self._known[node_id]
        voter = self._raft.voters.get(node_id)
        return None if voter is None or not voter.port else Peer(node_id, voter.host, voter.port)

    # Asking for changes

    async def submit(self, request: Request[A]) -> A:
        """The answer, when the metadata here has what it rests on; `Refused` if it cannot be."""
        try:
            async with asyncio.timeout(_ANSWER_PATIENCE_S):
                reply = await self._answered(request)
                await self._reached(reply.end_offset)
        except TimeoutError:
            raise _unreachable() from None
        if reply.refused is not None:
            raise reply.refused
        answer: A = reply.answer
        return answer

    async def _answered(self, request: Request[Any]) -> Reply:
        def encode(correlation_id: int) -> list[Part]:
            return encode_call(request, self._cluster_id, correlation_id)

        while True:
            try:
                frame = await self.ask(encode, api_key_of(request).name)
                reply = decode_reply(request, frame)
            except (ClientError, WireError, OSError) as error:
                self._complain(str(error))
                reply = Reply(None, _unreachable(), 0)
            if self.active is None and self._peers.is_of_another_cluster:
                message = f"the controllers belong to another cluster than {self._cluster_id}"
                return Reply(None, Refused(Code.INCONSISTENT_CLUSTER_ID, message), 0)
            is_lost = reply.refused is not None and reply.refused.code == Code.NOT_CONTROLLER
            if not is_lost or isinstance(request, _NOT_REPEATED):
                return reply
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S):
                    await self._on_new_leader.wait()
            self._on_new_leader.clear()

    def _complain(self, reason: str) -> None:
        """Say it once, however often it happens in a row."""
        if reason != self._last_complaint:
            self._last_complaint = reason
            _logger.info("the controller did not answer: %s", reason)

    async def ask(self, encode: Callable[[int], list[Part]], name: str) -> memoryview:
        """Send any request to the active controller; `ClientError` if there is no answer."""
        active = self.active
        if active is None:
            raise ConnectionLost("nobody is known to be the active controller", sent=False)
        async with self._lock:
            if self._connection is None or self._connection[1].is_closed:
                try:
                    connection = await dial(self._key.id, active, max_in_flight=_MOST_UNANSWERED)
                except TimeoutError:
                    raise ConnectionLost(f"{active} does not accept", sent=False) from None
                self._connection = (active, connection)
        return await self._connection[1].request(encode, name=name, timeout_s=_ANSWER_PATIENCE_S)

    async def _reached(self, end_offset: int) -> None:
        if self._raft.high_watermark >= end_offset:
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._behind, (end_offset, next(self._numbers), future))
        await future

    async def forward(self, header: RequestFrame, request: memoryview) -> bytes:
        """Pass a client's request on as it is, and the active controller's answer back.

        Raises `ClientError` if there is none for a while. If the request was sent by then, what
        became of it is not known.
        """

        def encode(correlation_id: int) -> list[Part]:
            head = put_request_header(
                header.api_key, header.api_version, correlation_id=correlation_id, client_id=None
            )
            return [head, request[header.body_position :]]

        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _FORWARD_PATIENCE_S
        while True:
            try:
                answer = await self.ask(encode, header.api_key.name)
                break
            except ConnectionLost as error:
                if error.sent or loop.time() > deadline_s:
                    raise
            await asyncio.sleep(_RETRY_S)
        return INT32.pack(header.correlation_id) + bytes(answer[INT32.size :])

    # The metadata

    def _on_answer(self, sender: int, message: Response) -> None:
        if not self._is_closed:
            self._raft.receive(_now_ms(), sender, message)
            self._settle()

    def _on_unreachable(self, peer: int) -> None:
        if not self._is_closed:
            self._raft.unreachable(_now_ms(), peer)
            self._settle()

    def _tick(self) -> None:
        try:
            self._raft.tick(_now_ms())
            self._settle()
        except Exception as error:  # noqa: BLE001 - without ticks no controller would be found
            record_failure("metadata observer", error, "it is called again")
            self._arm(_RETRY_S)

    def _settle(self) -> None:
        drive(self._raft, self._storage, self._perform, _now_ms())
        if self._raft.leader_id != self._leader_id:
            self._leader_id = self._raft.leader_id
            self._on_new_leader.set()
        self._drop_former_controller()
        while self._behind and self._behind[0][0] <= self._raft.high_watermark:
            future = heapq.heappop(self._behind)[2]
            if not future.done():
                future.set_result(None)
        deadline_ms = self._raft.next_deadline_ms()
        self._arm(None if deadline_ms is None else max(1, deadline_ms - _now_ms()) / 1000)

    def _arm(self, delay_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay_s is not None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _drop_former_controller(self) -> None:
        active = self.active
        if self._connection is None or active is None or self._connection[0] == active:
            return
        with suppress(ClientError):
            self._connection[1].abort(ConnectionLost("another controller is active", sent=True))
        self._connection = None

    def _perform(self, action: Action) -> None:
        match action:
            case Send(to, message):
                if isinstance(message, RaftRequest):
                    self._peers.send(to, message)
            case Committed(_, entries):
                data = [
                    record
                    for entry in entries
                    if entry.kind is EntryKind.DATA
                    for record in entry.records
                ]
                self._on_records([decode_record(record) for record in data], False)
            case LoadSnapshot(_, records):
                self._on_records([decode_record(record) for record in records], True)
            case _:
                _logger.error("the quorum refuses this node as an observer: %s", action)


def _unreachable() -> Refused:
    return Refused(Code.NOT_CONTROLLER, "the controller cannot be reached")


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
