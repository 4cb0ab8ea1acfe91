"""Fetches records for this broker's followers from one leader, over one connection.

Rules of this file:
- `ReplicaFetchSession` decides what is fetched, and what becomes of the answers; here are its
  connection and its task.
- One fetch at a time. The leader holds the request while it has no data.
- When partitions are added or changed, the held request does not contain them: a small request
  after it makes the leader answer it, and the next fetch contains just those partitions. So the
  cost of a fetch depends on the number of changes, even while thousands of partitions are added.
- The fetcher ends when no partition follows its leader. After an unexpected error it restarts with
  a new connection and a full fetch.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from shoal.client.errors import ClientError, ConnectionLost
from shoal.client.transport.connection import Connection
from shoal.lite.base.dial import NodeAddress, connect_to_node
from shoal.lite.base.hooks.request_faults import NODE_CLIENT_PREFIX
from shoal.lite.base.scheduler import monotonic_ms
from shoal.lite.partitions.partition import Partition
from shoal.lite.partitions.sessions.fetch_session import FetcherIdentity, ReplicaFetchSession
from shoal.lite.storage.header import HEADER_SIZE
from shoal.runtime.tasks import keep_running
from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import WireError
from shoal.wire.fetch import decode_fetch_response, encode_fetch_request
from shoal.wire.framing import Part
from shoal.wire.messages import put_request_header
from shoal.wire.primitives import INT64

FETCH_VERSION = 16
# A fetch and the request that ends its wait, twice: the second pair may be sent before the leader
# has answered the first.
_MOST_UNANSWERED = 4
# The time for an answer beyond the time that the leader may hold a fetch.
_ANSWER_PATIENCE_S = 10.0
_logger = logging.getLogger(__name__)


class ReplicaFetcher:
    """Fetches for all followers of one leader."""

    def __init__(
        self,
        leader: NodeAddress,
        follower: FetcherIdentity,
        followers_of: Callable[[int], Iterable[Partition]],
        on_leader_lost: Callable[[int], None],
    ) -> None:
        """`followers_of` returns the partitions that follow a leader now; `on_leader_lost` is
        called with the id of a leader that closed the connection."""
        self.leader = leader
        self._client_id = f"{NODE_CLIENT_PREFIX}{follower.broker_id}"
        self._broker_id = follower.broker_id
        self._on_leader_lost = on_leader_lost
        self._session = ReplicaFetchSession(
            leader.node_id, follower, followers_of, _first_offset_of
        )
        self._connection: Connection | None = None
        self._woken = asyncio.Event()
        # Whether the leader may hold a fetch, and no request to end the wait was sent.
        self._is_held = False
        name = f"replica fetcher from broker {leader.node_id}"
        self._task = keep_running(name, self._run)

    def wake(self) -> None:
        """Fetch partitions that were added or follow in another leader epoch."""
        self._session.has_changed = True
        self._woken.set()
        if self._is_held and self._connection is not None:
            self._is_held = False
            # Its answer is not needed: the answer to the fetch is enough.
            self._connection.submit(
                self._encode_release, name="ApiVersions", timeout_s=_ANSWER_PATIENCE_S
            )

    def _encode_release(self, correlation_id: int) -> list[Part]:
        """Encode the smallest request: it makes the leader answer a held fetch."""
        head = put_request_header(
            ApiKey.API_VERSIONS, 0, correlation_id=correlation_id, client_id=self._client_id
        )
        return [head]

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._close_connection()

    async def _run(self) -> None:
        session = self._session
        # After an unexpected error, session and connection may be in any state.
        session.reset()
        await self._close_connection()
        while True:
            self._woken.clear()
            now_ms = monotonic_ms()
            if not session.choose_partitions(now_ms):
                await self._pause(session.idle_ms(now_ms) / 1000)
                continue
            try:
                await self._fetch()
            except (ClientError, WireError, OSError, TimeoutError) as error:
                await self._on_no_answer(error)

    async def _on_no_answer(self, error: Exception) -> None:
        """Retry all partitions after a pause, with a new connection."""
        if isinstance(error, ConnectionLost) and error.sent:
            self._on_leader_lost(self.leader.node_id)
        _logger.info("cannot fetch from broker %d: %s", self.leader.node_id, error)
        await self._close_connection()
        await self._pause(self._session.on_no_answer(monotonic_ms()))

    async def _pause(self, longest_s: float) -> None:
        """Wait until partitions are added or changed, at most `longest_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._woken.wait()

    async def _fetch(self) -> None:
        connection = await self._get_connection()
        if self._session.has_changed:
            return
        fetch = self._session.next_request(monotonic_ms())

        def encode(correlation_id: int) -> list[bytes]:
            request = encode_fetch_request(
                FETCH_VERSION,
                correlation_id=correlation_id,
                client_id=self._client_id,
                max_wait_ms=fetch.max_wait_ms,
                min_bytes=fetch.min_bytes,
                max_bytes=fetch.max_bytes,
                isolation=fetch.isolation,
                partitions=fetch.partitions,
                forgotten=fetch.forgotten,
                session_id=fetch.session_id,
                session_epoch=fetch.session_epoch,
                replica_id=fetch.replica_id,
                replica_epoch=fetch.replica_epoch,
            )
            return [request]

        timeout_s = fetch.max_wait_ms / 1000 + _ANSWER_PATIENCE_S
        self._is_held = True
        try:
            frame = await connection.request(encode, name="Fetch", timeout_s=timeout_s)
        finally:
            self._is_held = False
        response = decode_fetch_response(FETCH_VERSION, frame)
        self._session.on_answer(
            monotonic_ms(), response.session_id, response.error_code, response.partitions
        )

    async def _get_connection(self) -> Connection:
        if self._connection is not None and not self._connection.is_closed:
            return self._connection
        self._connection = await connect_to_node(
            self._broker_id, self.leader, max_in_flight=_MOST_UNANSWERED
        )
        return self._connection

    async def _close_connection(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


def _first_offset_of(records: memoryview) -> int | None:
    if len(records) < HEADER_SIZE:
        return None
    (first_offset,) = INT64.unpack_from(records)
    return int(first_offset)
