"""Fetches what this broker's followers need, from one leader, over one connection.

Rules of this file:
- One request at a time, for all partitions that follow this leader and want more. The leader
  holds it while it has nothing to give.
- When partitions come or change, the request that is held knows nothing of them: the connection
  is dropped and made again, which is cheap, and they need not wait.
- The fetcher ends when nothing follows its leader any more.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from shoal.client.connection import Connection
from shoal.client.errors import ClientError, ConnectionLost
from shoal.lite.codes import Code
from shoal.lite.dial import Peer, dial
from shoal.lite.faults.request_faults import NODE_CLIENT_PREFIX
from shoal.lite.log.header import HEADER_SIZE
from shoal.lite.partition import Partition, monotonic_ms
from shoal.lite.replication.messages import EpochEnd, FetchAnswer, ReplicaFetch
from shoal.wire.errors import Malformed, WireError
from shoal.wire.fetch import (
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    decode_fetch_response,
    encode_fetch_request,
)
from shoal.wire.primitives import INT64

FETCH_VERSION = 16
_PARTITION_MAX_BYTES = 1024 * 1024
_MAX_BYTES = 10 * 1024 * 1024
# How much longer than the leader holds a fetch an answer may take.
_ANSWER_PATIENCE_S = 10.0
_IDLE_MS = 1000
_NO_TOPIC = UUID(int=0)
_CODES = {int(code): code for code in Code}
_logger = logging.getLogger(__name__)

Key = tuple[UUID, int]
FollowersOf = Callable[[int], Iterable[Partition]]


class Follower(NamedTuple):
    """Who asks: this broker, and the epoch of its registration."""

    broker_id: int
    broker_epoch: int
    wait_ms: int


class ReplicaFetcher:
    """The followers' end towards one leader."""

    def __init__(
        self,
        leader: Peer,
        follower: Follower,
        followers_of: FollowersOf,
        on_lost: Callable[[int], None],
    ) -> None:
        """`followers_of` tells the partitions that follow a leader now; `on_lost` is told of a
        leader that hung up."""
        self.leader = leader
        self._follower = follower
        self._followers_of = followers_of
        self._on_lost = on_lost
        self._connection: Connection | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """Partitions came, or follow in another epoch."""
        self._changed.set()
        if self._connection is not None:
            self._connection.abort(ConnectionLost("partitions changed", sent=True))

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if self._connection is not None:
            await self._connection.close()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            asked = self._asked()
            if not asked:
                await self._pause()
                continue
            try:
                await self._fetch(asked)
            except (ClientError, WireError, OSError, TimeoutError) as error:
                if self._changed.is_set():
                    continue
                if isinstance(error, ConnectionLost) and error.sent:
                    self._on_lost(self.leader.node_id)
                _logger.info("broker %d cannot be fetched from: %s", self.leader.node_id, error)
                await self._drop()
                now_ms = monotonic_ms()
                for partition, fetch in asked.values():
                    if (follower := partition.replica.follower) is not None:
                        follower.failed(now_ms, fetch)

    def _asked(self) -> dict[Key, tuple[Partition, ReplicaFetch]]:
        now_ms = monotonic_ms()
        asked = {}
        for partition in self._followers_of(self.leader.node_id):
            follower = partition.replica.follower
            if follower is None or partition.is_gone or partition.log.offline_reason is not None:
                continue
            fetch = follower.next_fetch(now_ms)
            if fetch is not None:
                asked[partition.record.key] = (partition, fetch)
        return asked

    def _left_ms(self, most_ms: int) -> int:
        """How long until a follower may try again, at most so long."""
        now_ms = monotonic_ms()
        left_ms = most_ms
        for partition in self._followers_of(self.leader.node_id):
            follower = partition.replica.follower
            deadline_ms = None if follower is None else follower.next_deadline_ms()
            if deadline_ms is not None:
                left_ms = min(left_ms, max(1, deadline_ms - now_ms))
        return left_ms

    async def _pause(self) -> None:
        """Until something changes, or a follower may try again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._left_ms(_IDLE_MS) / 1000):
                await self._changed.wait()

    async def _fetch(self, asked: dict[Key, tuple[Partition, ReplicaFetch]]) -> None:
        connection = await self._connected()
        if self._changed.is_set():
            return
        # Those who failed must not wait behind those who have nothing to fetch.
        wait_ms = self._left_ms(self._follower.wait_ms)
        partitions = [_wanted(*item) for item in asked.values()]

        def encode(correlation_id: int) -> list[bytes]:
            request = encode_fetch_request(
                FETCH_VERSION,
                correlation_id=correlation_id,
                client_id=f"{NODE_CLIENT_PREFIX}{self._follower.broker_id}",
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=_MAX_BYTES,
                isolation=READ_UNCOMMITTED,
                partitions=partitions,
                replica_id=self._follower.broker_id,
                replica_epoch=self._follower.broker_epoch,
            )
            return [request]

        timeout_s = wait_ms / 1000 + _ANSWER_PATIENCE_S
        frame = await connection.request(encode, name="Fetch", timeout_s=timeout_s)
        response = decode_fetch_response(FETCH_VERSION, frame)
        if response.error_code:
            raise Malformed(f"a replica's fetch was refused with code {response.error_code}")
        for fetched in response.partitions:
            known = asked.get((fetched.topic_id or _NO_TOPIC, fetched.partition))
            if known is not None:
                partition, fetch = known
                partition.on_fetched(fetch, _answer(fetched), fetched.records)

    async def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.is_closed:
            return self._connection
        self._connection = await dial(self._follower.broker_id, self.leader)
        return self._connection

    async def _drop(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


def _wanted(partition: Partition, fetch: ReplicaFetch) -> FetchPartition:
    return FetchPartition(
        partition.name,
        partition.record.topic_id,
        partition.record.partition,
        fetch.offset,
        _PARTITION_MAX_BYTES,
        fetch.leader_epoch,
        fetch.last_fetched_epoch,
        fetch.log_start_offset,
    )


def _answer(fetched: FetchedPartition) -> FetchAnswer:
    diverging = fetched.diverging_epoch
    first_offset = None
    if len(fetched.records) >= HEADER_SIZE:
        (first_offset,) = INT64.unpack_from(fetched.records)
    return FetchAnswer(
        fetched.high_watermark,
        fetched.log_start_offset,
        _CODES.get(fetched.error_code, Code.UNKNOWN_SERVER_ERROR),
        None if diverging is None else EpochEnd(*diverging),
        first_offset,
    )
