"""A node's link to the controllers: it follows the metadata log, and submits requests.

Rules of this file:
- The node is an observer of the quorum: it fetches the log and never votes. It keeps nothing on
  the disk, so it receives every record again after each start.
- Requests go to the leader of the quorum, which is the active controller. When another
  leads, the connection to the former one is dropped: it may be paused, and would never answer.
- An answer is returned when the local metadata has the records on which it is based, so that a
  caller that created a topic finds it.
- A request that may have been lost with a controller is retried until it is answered or times
  out; requests are idempotent. Heartbeats and proposals of leaders are not retried: the sender
  has newer content by then, and gets NOT_CONTROLLER.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from shoal.client.errors import ClientError, ConnectionLost
from shoal.client.transport.connection import Connection
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.dial import NodeAddress, connect_to_node
from shoal.lite.base.scheduler import monotonic_ms
from shoal.lite.metadata.data.records import Record, decode_record
from shoal.lite.metadata.data.requests import AlterPartitions, ControllerRequest, Heartbeat
from shoal.lite.metadata.data.rpc import Reply, api_key_of, decode_reply, encode_call
from shoal.lite.metadata.server.peers import LinkTraffic, LocalNode, Peers
from shoal.lite.raft.actions import Action, Committed, LoadSnapshot, SendToPeer
from shoal.lite.raft.messages import RaftRequest, RaftResponse
from shoal.lite.raft.model import EntryKind, ReplicaKey, StoredState, Voter, Voters
from shoal.lite.raft.node import RaftNode
from shoal.lite.raft.storage.driver import perform_actions
from shoal.lite.raft.storage.memory import MemoryStorage
from shoal.runtime.tasks import record_failure
from shoal.wire.errors import WireError
from shoal.wire.framing import Part
from shoal.wire.messages import RequestFrame, put_request_header
from shoal.wire.primitives import INT32

A = TypeVar("A")
# Committed records; the flag says that they are a snapshot, which replaces the state.
OnRecords = Callable[[list[Record], bool], None]

_ANSWER_TIMEOUT_S = 30.0
_FORWARD_TIMEOUT_S = 5.0
_RETRY_S = 0.02
_MAX_IN_FLIGHT = 1000
_NO_DIRECTORY = UUID(int=0)
_NOT_RETRIED = (Heartbeat, AlterPartitions)
_logger = logging.getLogger(__name__)


class ControllerLink:
    """The node's side. `start`, then `submit`; `on_records` is called in the event loop."""

    def __init__(
        self,
        key: ReplicaKey,
        cluster_id: str,
        controllers: Sequence[NodeAddress],
        on_records: OnRecords,
    ) -> None:
        """`key` is that of the node, with the directory id of its folder."""
        self._key = key
        self._cluster_id = cluster_id
        self._known = {peer.node_id: peer for peer in controllers}
        self._on_records = on_records
        # Directory ids matter for votes only, and an observer does not vote.
        voters = Voters(Voter(p.node_id, _NO_DIRECTORY, p.host, p.port) for p in controllers)
        random = Random()  # noqa: S311 - spreads requests, keeps no secrets
        self._raft = RaftNode(key, StoredState(voters), now_ms=monotonic_ms(), random=random)
        self._storage = MemoryStorage()
        self._peers = Peers(
            LocalNode(key.id, cluster_id),
            self._address_of,
            on_answer=self._on_answer,
            on_unreachable=self._on_unreachable,
        )
        self._connection: tuple[NodeAddress, Connection] | None = None
        self._lock = asyncio.Lock()
        self._leader_changed = asyncio.Event()
        self._leader_id: int | None = None
        self._last_failure = ""
        self._tie_breakers = count(1)
        # Callers that wait until the local metadata reaches an offset.
        self._offset_waiters: list[tuple[int, int, asyncio.Future[None]]] = []
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
    def active(self) -> NodeAddress | None:
        """The active controller, if known."""
        leader_id = self._raft.leader_id
        return None if leader_id is None else self._address_of(leader_id)

    @property
    def traffic(self) -> LinkTraffic:
        """What following the metadata has cost."""
        return self._peers.traffic

    @property
    def epoch(self) -> int:
        """The epoch of the quorum."""
        return self._raft.epoch

    @property
    def high_watermark(self) -> int:
        """The committed records of the metadata log, as this node knows them."""
        return self._raft.high_watermark

    def _address_of(self, node_id: int) -> NodeAddress | None:
        if node_id in self._known:
            return self._known[node_id]
        voter = self._raft.voters.get(node_id)
        return (
            None
            if voter is None or not voter.port
            else NodeAddress(node_id, voter.host, voter.port)
        )

    # Requests

    async def submit(self, request: ControllerRequest[A]) -> A:
        """Return the answer once the local metadata has its records; `ApiError` if it fails."""
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                reply = await self._request_with_retry(request)
                await self._wait_for_offset(reply.end_offset)
        except TimeoutError:
            raise _unreachable_error() from None
        if reply.refused is not None:
            raise reply.refused
        answer: A = reply.answer
        return answer

    async def _request_with_retry(self, request: ControllerRequest[Any]) -> Reply:
        def encode(correlation_id: int) -> list[Part]:
            return encode_call(request, self._cluster_id, correlation_id)

        while True:
            try:
                frame = await self.ask(encode, api_key_of(request).name)
                reply = decode_reply(request, frame)
            except (ClientError, WireError, OSError) as error:
                self._log_failure_once(str(error))
                reply = Reply(None, _unreachable_error(), 0)
            if self.active is None and self._peers.is_of_another_cluster:
                message = f"the controllers do not belong to cluster {self._cluster_id}"
                return Reply(None, ApiError(Code.INCONSISTENT_CLUSTER_ID, message), 0)
            is_lost = reply.refused is not None and reply.refused.code == Code.NOT_CONTROLLER
            if not is_lost or isinstance(request, _NOT_RETRIED):
                return reply
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S):
                    await self._leader_changed.wait()
            self._leader_changed.clear()

    def _log_failure_once(self, reason: str) -> None:
        """Log a failure once, however often it repeats in a row."""
        if reason != self._last_failure:
            self._last_failure = reason
            _logger.info("the active controller did not answer: %s", reason)

    async def ask(self, encode: Callable[[int], list[Part]], name: str) -> memoryview:
        """Send a request to the active controller; `ClientError` if there is no answer."""
        active = self.active
        if active is None:
            raise ConnectionLost("the active controller is not known", sent=False)
        async with self._lock:
            if self._connection is None or self._connection[1].is_closed:
                try:
                    connection = await connect_to_node(
                        self._key.id, active, max_in_flight=_MAX_IN_FLIGHT
                    )
                except TimeoutError:
                    raise ConnectionLost(
                        f"cannot connect to the controller {active}: timed out", sent=False
                    ) from None
                self._connection = (active, connection)
        return await self._connection[1].request(encode, name=name, timeout_s=_ANSWER_TIMEOUT_S)

    async def _wait_for_offset(self, end_offset: int) -> None:
        if self._raft.high_watermark >= end_offset:
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._offset_waiters, (end_offset, next(self._tie_breakers), future))
        await future

    async def forward(self, header: RequestFrame, request: memoryview) -> bytes:
        """Forward a client's request unchanged, and return the active controller's answer.

        Raises `ClientError` if there is no answer in time. If the request was sent by then, its
        outcome is unknown.
        """

        def encode(correlation_id: int) -> list[Part]:
            head = put_request_header(
                header.api_key, header.api_version, correlation_id=correlation_id, client_id=None
            )
            return [head, request[header.body_position :]]

        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _FORWARD_TIMEOUT_S
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

    def _on_answer(self, sender: int, message: RaftResponse) -> None:
        if not self._is_closed:
            self._raft.receive(monotonic_ms(), sender, message)
            self._process_actions()

    def _on_unreachable(self, peer: int) -> None:
        if not self._is_closed:
            self._raft.on_unreachable(monotonic_ms(), peer)
            self._process_actions()

    def _tick(self) -> None:
        try:
            self._raft.tick(monotonic_ms())
            self._process_actions()
        except Exception as error:  # noqa: BLE001 - without ticks no controller would be found
            record_failure("metadata observer", error, "it is called again soon")
            self._arm(_RETRY_S)

    def _process_actions(self) -> None:
        perform_actions(self._raft, self._storage, self._perform, monotonic_ms())
        if self._raft.leader_id != self._leader_id:
            self._leader_id = self._raft.leader_id
            self._leader_changed.set()
        self._drop_former_connection()
        while self._offset_waiters and self._offset_waiters[0][0] <= self._raft.high_watermark:
            future = heapq.heappop(self._offset_waiters)[2]
            if not future.done():
                future.set_result(None)
        deadline_ms = self._raft.next_deadline_ms()
        self._arm(None if deadline_ms is None else max(1, deadline_ms - monotonic_ms()) / 1000)

    def _arm(self, delay_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay_s is not None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _drop_former_connection(self) -> None:
        active = self.active
        if self._connection is None or active is None or self._connection[0] == active:
            return
        with suppress(ClientError):
            self._connection[1].abort(ConnectionLost("another controller is active", sent=True))
        self._connection = None

    def _perform(self, action: Action) -> None:
        match action:
            case SendToPeer(to, message):
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
                _logger.error("the quorum rejected this node as an observer: %s", action)


def _unreachable_error() -> ApiError:
    return ApiError(Code.NOT_CONTROLLER, "no active controller can be reached")
