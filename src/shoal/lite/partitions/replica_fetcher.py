"""Fetches records for this broker's followers from one leader, over one connection.

Rules of this file:
- One fetch at a time, for all partitions that follow this leader. The leader holds the request
  while it has no data.
- The first request contains all partitions, the next ones only those that changed (KIP-227): the
  leader remembers the others.
- When partitions are added or changed, the held request does not contain them: a small request
  after it makes the leader answer it, and the next fetch contains just those partitions. So the
  cost of a fetch depends on the number of changes, even while thousands of partitions are added.
- A partition whose fetch failed leaves the session and is added again after its pause. After a
  lost connection or session, all partitions are sent again.
- The fetcher ends when no partition follows its leader. After an unexpected error it restarts with
  a new connection and a full fetch; an error of one partition stops only that one.
- A leader that cannot be reached, or closes the connection, is retried after a pause that doubles.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from shoal.client.errors import ClientError, ConnectionLost
from shoal.client.transport.connection import Connection
from shoal.lite.base.codes import Code
from shoal.lite.base.dial import NodeAddress, connect_to_node
from shoal.lite.base.hooks.request_faults import NODE_CLIENT_PREFIX
from shoal.lite.base.scheduler import monotonic_ms
from shoal.lite.partitions.partition import Partition
from shoal.lite.replication.fetch_sessions import FULL_EPOCH, LAST_EPOCH
from shoal.lite.replication.messages import EpochEndOffset, FetchAnswer, ReplicaFetch
from shoal.lite.storage.header import HEADER_SIZE
from shoal.runtime.tasks import RestartBackoff, keep_running, record_failure
from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import Malformed, WireError
from shoal.wire.fetch import (
    NO_SESSION_ID,
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    ForgottenPartition,
    decode_fetch_response,
    encode_fetch_request,
)
from shoal.wire.framing import Part
from shoal.wire.messages import put_request_header
from shoal.wire.primitives import INT64

FETCH_VERSION = 16
_PARTITION_MAX_BYTES = 1024 * 1024
_MAX_BYTES = 10 * 1024 * 1024
# A fetch and the request that ends its wait, twice: the second pair may be sent before the leader
# has answered the first.
_MOST_UNANSWERED = 4
# The time for an answer beyond the time that the leader may hold a fetch.
_ANSWER_PATIENCE_S = 10.0
_IDLE_MS = 1000
# Elections are short, so the first pause is short.
_RECONNECT = RestartBackoff(first_s=0.02, longest_s=1.0)
_SESSION_ENDED = {Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH}
_CODES = {int(code): code for code in Code}
_logger = logging.getLogger(__name__)

# The topic id as a number, and the partition.
Key = tuple[int, int]
FollowersOf = Callable[[int], Iterable[Partition]]
_PartitionFetch = tuple[Partition, ReplicaFetch]


class FetcherIdentity(NamedTuple):
    """This broker, its broker epoch, and the longest wait of its fetches."""

    broker_id: int
    broker_epoch: int
    wait_ms: int


class ReplicaFetcher:
    """Fetches for all followers of one leader."""

    def __init__(
        self,
        leader: NodeAddress,
        follower: FetcherIdentity,
        followers_of: FollowersOf,
        on_leader_lost: Callable[[int], None],
    ) -> None:
        """`followers_of` returns the partitions that follow a leader now; `on_leader_lost` is
        called with the id of a leader that closed the connection."""
        self.leader = leader
        self._follower = follower
        self._followers_of = followers_of
        self._on_leader_lost = on_leader_lost
        self._connection: Connection | None = None
        self._changed = asyncio.Event()
        # The partitions of the session that the leader knows, those to send, and those to remove.
        # Without a session all partitions are sent.
        self._session_id = NO_SESSION_ID
        self._session_epoch = FULL_EPOCH
        self._session_partitions: dict[Key, _PartitionFetch] = {}
        self._to_send: dict[Key, _PartitionFetch] = {}
        self._forgotten: dict[Key, Partition] = {}
        # Partitions outside the session: they are new, or failed and are retried later.
        self._unsent: dict[Key, Partition] = {}
        # When the first of them may be sent.
        self._retry_ms: int | None = None
        # Whether the leader may hold a fetch, and no request to end the wait was sent.
        self._is_held = False
        # The pause after the next failed connection.
        self._pause_s = _RECONNECT.first_s
        name = f"replica fetcher from broker {leader.node_id}"
        self._task = keep_running(name, self._run)

    def wake(self) -> None:
        """Fetch partitions that were added or follow in another leader epoch."""
        self._changed.set()
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

    @property
    def _client_id(self) -> str:
        return f"{NODE_CLIENT_PREFIX}{self._follower.broker_id}"

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if self._connection is not None:
            await self._connection.close()

    async def _run(self) -> None:
        # After an unexpected error, session and connection may be in any state.
        self._reset_session()
        await self._close_connection()
        while True:
            has_changed = self._changed.is_set()
            self._changed.clear()
            if self._session_epoch == FULL_EPOCH:
                self._add_all_partitions()
                if not self._session_partitions:
                    await self._pause(self._time_to_retry_ms(_IDLE_MS) / 1000)
                    continue
            elif has_changed:
                self._add_changed_partitions()
            self._add_retriable_partitions()
            try:
                await self._fetch()
            except (ClientError, WireError, OSError, TimeoutError) as error:
                await self._on_fetch_failed(error)

    async def _on_fetch_failed(self, error: Exception) -> None:
        """Retry all partitions after a pause, with a new connection."""
        self._reset_session()
        if isinstance(error, ConnectionLost) and error.sent:
            self._on_leader_lost(self.leader.node_id)
        _logger.info("cannot fetch from broker %d: %s", self.leader.node_id, error)
        await self._close_connection()
        now_ms = monotonic_ms()
        for partition, fetch in self._session_partitions.values():
            if (follower := partition.replica.follower) is not None:
                follower.on_fetch_failed(now_ms, fetch)
        await self._pause(self._pause_s)
        self._pause_s = _RECONNECT.after(self._pause_s)

    def _reset_session(self) -> None:
        """Send a full fetch next."""
        self._session_id, self._session_epoch = NO_SESSION_ID, FULL_EPOCH

    # Choosing partitions

    def _add_all_partitions(self) -> None:
        self._session_partitions, self._to_send, self._forgotten = {}, {}, {}
        self._unsent = self._followers()
        self._retry_ms = 0
        self._add_retriable_partitions()

    def _followers(self) -> dict[Key, Partition]:
        partitions = self._followers_of(self.leader.node_id)
        return {(p.record.topic_id.int, p.record.partition): p for p in partitions}

    def _add_changed_partitions(self) -> None:
        """Add new partitions and those in a new leader epoch; remove those that left."""
        followers = self._followers()
        for key, (partition, _) in list(self._session_partitions.items()):
            if followers.get(key) is not partition:
                self._forget(key, partition)
        for key, partition in followers.items():
            known = self._session_partitions.get(key)
            if known is None or _leader_epoch(partition) != known[1].leader_epoch:
                self._unsent[key] = partition
                self._retry_ms = 0

    def _forget(self, key: Key, partition: Partition) -> None:
        """Remove a partition from the session."""
        del self._session_partitions[key]
        self._to_send.pop(key, None)
        self._forgotten[key] = partition

    def _add_retriable_partitions(self) -> None:
        """Add the partitions outside the session that may be fetched now."""
        now_ms = monotonic_ms()
        if self._retry_ms is None or now_ms < self._retry_ms:
            return
        self._retry_ms = None
        unsent, self._unsent = self._unsent, {}
        for key, partition in unsent.items():
            fetch = _next_fetch(partition, now_ms)
            if fetch is not None:
                self._session_partitions[key] = self._to_send[key] = (partition, fetch)
            else:
                self._retry_later(key, partition)

    def _retry_later(self, key: Key, partition: Partition) -> None:
        """Add a partition again when its follower may retry; never if it is fenced or removed."""
        follower = partition.replica.follower
        if follower is None or partition.is_removed:
            return
        retry_ms = follower.next_deadline_ms()
        if retry_ms is not None:
            self._unsent[key] = partition
            self._retry_ms = retry_ms if self._retry_ms is None else min(retry_ms, self._retry_ms)

    def _time_to_retry_ms(self, most_ms: int) -> int:
        """Return the time until a follower may retry, at most `most_ms`."""
        if self._retry_ms is None:
            return most_ms
        return min(most_ms, max(1, self._retry_ms - monotonic_ms()))

    async def _pause(self, longest_s: float) -> None:
        """Wait until partitions are added or changed, at most `longest_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._changed.wait()

    async def _fetch(self) -> None:
        connection = await self._get_connection()
        if self._changed.is_set():
            return
        # Partitions that are to be retried must not wait for those without new records.
        wait_ms = self._time_to_retry_ms(self._follower.wait_ms)

        def encode(correlation_id: int) -> list[bytes]:
            request = encode_fetch_request(
                FETCH_VERSION,
                correlation_id=correlation_id,
                client_id=self._client_id,
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=_MAX_BYTES,
                isolation=READ_UNCOMMITTED,
                partitions=[_to_fetch_partition(*item) for item in self._to_send.values()],
                forgotten=[
                    _to_forgotten_partition(partition) for partition in self._forgotten.values()
                ],
                session_id=self._session_id,
                session_epoch=self._session_epoch,
                replica_id=self._follower.broker_id,
                replica_epoch=self._follower.broker_epoch,
            )
            return [request]

        timeout_s = wait_ms / 1000 + _ANSWER_PATIENCE_S
        self._is_held = True
        try:
            frame = await connection.request(encode, name="Fetch", timeout_s=timeout_s)
        finally:
            self._is_held = False
        response = decode_fetch_response(FETCH_VERSION, frame)
        if response.error_code in _SESSION_ENDED:
            self._reset_session()
            return
        if response.error_code:
            raise Malformed(
                f"the leader rejected a replica fetch with error code {response.error_code}"
            )
        self._pause_s = _RECONNECT.first_s
        self._session_id = response.session_id
        self._session_epoch = 1 if self._session_epoch == LAST_EPOCH else self._session_epoch + 1
        self._apply_answers(response.partitions)

    def _apply_answers(self, answers: Iterable[FetchedPartition]) -> None:
        """Apply the leader's answers, and collect the partitions of the next request."""
        self._to_send, self._forgotten = {}, {}
        now_ms = monotonic_ms()
        for fetched in answers:
            if fetched.topic_id is None:
                continue
            key = (fetched.topic_id.int, fetched.partition)
            known = self._session_partitions.get(key)
            if known is None:
                continue
            partition, fetch = known
            self._deliver_answer(partition, fetch, fetched)
            following = _next_fetch(partition, now_ms)
            if fetched.error_code:
                # The leader sends an error once and removes the partition from its session.
                del self._session_partitions[key]
                if following is None:
                    self._retry_later(key, partition)
                else:
                    self._session_partitions[key] = self._to_send[key] = (partition, following)
            elif following is None:
                self._forget(key, partition)
                self._retry_later(key, partition)
            elif following != fetch:
                self._session_partitions[key] = self._to_send[key] = (partition, following)
        if self._session_id == NO_SESSION_ID:
            self._reset_session()

    def _deliver_answer(
        self, partition: Partition, fetch: ReplicaFetch, fetched: FetchedPartition
    ) -> None:
        """Pass an answer to its partition; an unexpected error affects only that partition."""
        try:
            partition.on_fetch_answer(fetch, _answer(fetched), fetched.records)
        except Exception as error:  # noqa: BLE001 - the other partitions must be fetched
            record_failure("replication of a partition", error, f"{partition!r} is retried")
            if (follower := partition.replica.follower) is not None:
                follower.on_fetch_failed(monotonic_ms(), fetch)

    async def _get_connection(self) -> Connection:
        if self._connection is not None and not self._connection.is_closed:
            return self._connection
        self._connection = await connect_to_node(
            self._follower.broker_id, self.leader, max_in_flight=_MOST_UNANSWERED
        )
        return self._connection

    async def _close_connection(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


def _next_fetch(partition: Partition, now_ms: int) -> ReplicaFetch | None:
    """Return the next fetch of a partition; None if it cannot fetch now."""
    follower = partition.replica.follower
    if follower is None or partition.is_removed or partition.log.offline_reason is not None:
        return None
    return follower.next_fetch(now_ms)


def _leader_epoch(partition: Partition) -> int:
    follower = partition.replica.follower
    return -1 if follower is None else follower.leader_epoch


def _to_forgotten_partition(partition: Partition) -> ForgottenPartition:
    record = partition.record
    return ForgottenPartition(partition.name, record.topic_id, record.partition)


def _to_fetch_partition(partition: Partition, fetch: ReplicaFetch) -> FetchPartition:
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
        None if diverging is None else EpochEndOffset(*diverging),
        first_offset,
    )
