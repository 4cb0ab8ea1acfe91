"""Fetches what this broker's followers need, from one leader, over one connection.

Rules of this file:
- One request at a time, for all partitions that follow this leader and want more. The leader
  holds it while it has nothing to give.
- The first request names all of them, the next ones only those that have moved (KIP-227): the
  leader remembers the others.
- When partitions come or change, the request that is held does not name them: a small request
  behind it makes the leader answer it, and the next one names just those partitions. A fetch costs
  what has changed, also while thousands of partitions come one after the other.
- A partition whose fetch failed leaves the session, and is named again when it may be. All are
  named again after a lost connection or session.
- The fetcher ends when nothing follows its leader any more. After an unexpected error it starts
  again, with a new connection and a full fetch; an error of one partition stops only that one.
- A leader that cannot be reached, or hangs up, is asked again after a pause that doubles.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from shoal.client.errors import ClientError, ConnectionLost
from shoal.client.transport.connection import Connection
from shoal.lite.base.codes import Code
from shoal.lite.base.dial import Peer, dial
from shoal.lite.base.hooks.request_faults import NODE_CLIENT_PREFIX
from shoal.lite.partitions.partition import Partition, monotonic_ms
from shoal.lite.replication.fetch_sessions import FULL_EPOCH, LAST_EPOCH
from shoal.lite.replication.messages import EpochEnd, FetchAnswer, ReplicaFetch
from shoal.lite.storage.header import HEADER_SIZE
from shoal.runtime.tasks import Backoff, keep_running, record_failure
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
# A fetch, what ends its wait, and the same once more before the leader has answered the latter.
_MOST_UNANSWERED = 4
# How much longer than the leader holds a fetch an answer may take.
_ANSWER_PATIENCE_S = 10.0
_IDLE_MS = 1000
# Elections are over in a moment, so the first pause is short.
_RECONNECT = Backoff(first_s=0.02, longest_s=1.0)
_SESSION_ENDED = {Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH}
_CODES = {int(code): code for code in Code}
_logger = logging.getLogger(__name__)

# The number of a topic's id, and the partition.
Key = tuple[int, int]
FollowersOf = Callable[[int], Iterable[Partition]]
_Asked = tuple[Partition, ReplicaFetch]


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
        # What the leader remembers of this session, and what has to be said of it. No session:
        # everything has to be said.
        self._session_id = NO_SESSION_ID
        self._session_epoch = FULL_EPOCH
        self._known: dict[Key, _Asked] = {}
        self._named: dict[Key, _Asked] = {}
        self._forgotten: dict[Key, Partition] = {}
        # Those that the leader knows nothing of: they are new, or failed and are tried again later.
        self._absent: dict[Key, Partition] = {}
        # When the first of them may be named.
        self._retry_ms: int | None = None
        # Whether the leader may hold a fetch that it was not asked to answer.
        self._is_held = False
        # How long to wait after the next connection that fails.
        self._pause_s = _RECONNECT.first_s
        name = f"replica fetcher from broker {leader.node_id}"
        self._task = keep_running(name, self._run)

    def wake(self) -> None:
        """Partitions came, or follow in another epoch."""
        self._changed.set()
        if self._is_held and self._connection is not None:
            self._is_held = False
            # Its answer, or the lack of one, says nothing that the fetch's does not.
            self._connection.submit(
                self._encode_release, name="ApiVersions", timeout_s=_ANSWER_PATIENCE_S
            )

    def _encode_release(self, correlation_id: int) -> list[Part]:
        """The smallest request: a leader answers a fetch that it holds when another one comes."""
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
        # An unexpected error may have left the session, or the connection, at any point.
        self._begin_anew()
        await self._drop()
        while True:
            has_changed = self._changed.is_set()
            self._changed.clear()
            if self._session_epoch == FULL_EPOCH:
                self._name_all()
                if not self._known:
                    await self._pause(self._left_ms(_IDLE_MS) / 1000)
                    continue
            elif has_changed:
                self._name_changed()
            self._name_returning()
            try:
                await self._fetch()
            except (ClientError, WireError, OSError, TimeoutError) as error:
                await self._on_fetch_failed(error)

    async def _on_fetch_failed(self, error: Exception) -> None:
        """Try all partitions again after a pause, with a new connection."""
        self._begin_anew()
        if isinstance(error, ConnectionLost) and error.sent:
            self._on_lost(self.leader.node_id)
        _logger.info("broker %d cannot be fetched from: %s", self.leader.node_id, error)
        await self._drop()
        now_ms = monotonic_ms()
        for partition, fetch in self._known.values():
            if (follower := partition.replica.follower) is not None:
                follower.failed(now_ms, fetch)
        await self._pause(self._pause_s)
        self._pause_s = _RECONNECT.after(self._pause_s)

    def _begin_anew(self) -> None:
        """Say everything again next time."""
        self._session_id, self._session_epoch = NO_SESSION_ID, FULL_EPOCH

    # Naming

    def _name_all(self) -> None:
        self._known, self._named, self._forgotten = {}, {}, {}
        self._absent = self._followers()
        self._retry_ms = 0
        self._name_returning()

    def _followers(self) -> dict[Key, Partition]:
        partitions = self._followers_of(self.leader.node_id)
        return {(p.record.topic_id.int, p.record.partition): p for p in partitions}

    def _name_changed(self) -> None:
        """Name those that came or follow in another epoch; forget those that have gone."""
        followers = self._followers()
        for key, (partition, _) in list(self._known.items()):
            if followers.get(key) is not partition:
                self._forget(key, partition)
        for key, partition in followers.items():
            known = self._known.get(key)
            if known is None or _leader_epoch(partition) != known[1].leader_epoch:
                self._absent[key] = partition
                self._retry_ms = 0

    def _forget(self, key: Key, partition: Partition) -> None:
        """Take a partition out of the session."""
        del self._known[key]
        self._named.pop(key, None)
        self._forgotten[key] = partition

    def _name_returning(self) -> None:
        """Name those that are not in the session and may be now, beside what is named anyway."""
        now_ms = monotonic_ms()
        if self._retry_ms is None or now_ms < self._retry_ms:
            return
        self._retry_ms = None
        absent, self._absent = self._absent, {}
        for key, partition in absent.items():
            fetch = _next_fetch(partition, now_ms)
            if fetch is not None:
                self._known[key] = self._named[key] = (partition, fetch)
            else:
                self._name_later(key, partition)

    def _name_later(self, key: Key, partition: Partition) -> None:
        """Name a partition again when its follower may try; never, if it must not."""
        follower = partition.replica.follower
        if follower is None or partition.is_gone:
            return
        retry_ms = follower.next_deadline_ms()
        if retry_ms is not None:
            self._absent[key] = partition
            self._retry_ms = retry_ms if self._retry_ms is None else min(retry_ms, self._retry_ms)

    def _left_ms(self, most_ms: int) -> int:
        """How long until a follower may try again, at most so long."""
        if self._retry_ms is None:
            return most_ms
        return min(most_ms, max(1, self._retry_ms - monotonic_ms()))

    async def _pause(self, longest_s: float) -> None:
        """Until partitions come or change, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._changed.wait()

    async def _fetch(self) -> None:
        connection = await self._connected()
        if self._changed.is_set():
            return
        # Those who failed must not wait behind those who have nothing to fetch.
        wait_ms = self._left_ms(self._follower.wait_ms)

        def encode(correlation_id: int) -> list[bytes]:
            request = encode_fetch_request(
                FETCH_VERSION,
                correlation_id=correlation_id,
                client_id=self._client_id,
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=_MAX_BYTES,
                isolation=READ_UNCOMMITTED,
                partitions=[_name_wanted(*item) for item in self._named.values()],
                forgotten=[_name_forgotten(partition) for partition in self._forgotten.values()],
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
            self._begin_anew()
            return
        if response.error_code:
            raise Malformed(f"a replica's fetch was refused with code {response.error_code}")
        self._pause_s = _RECONNECT.first_s
        self._session_id = response.session_id
        self._session_epoch = 1 if self._session_epoch == LAST_EPOCH else self._session_epoch + 1
        self._take(response.partitions)

    def _take(self, answers: Iterable[FetchedPartition]) -> None:
        """Do as the leader says, and note what to say next."""
        self._named, self._forgotten = {}, {}
        now_ms = monotonic_ms()
        for fetched in answers:
            if fetched.topic_id is None:
                continue
            key = (fetched.topic_id.int, fetched.partition)
            known = self._known.get(key)
            if known is None:
                continue
            partition, fetch = known
            self._hand_over(partition, fetch, fetched)
            following = _next_fetch(partition, now_ms)
            if fetched.error_code:
                # The leader says it once and knows nothing of the partition from then on.
                del self._known[key]
                if following is None:
                    self._name_later(key, partition)
                else:
                    self._known[key] = self._named[key] = (partition, following)
            elif following is None:
                self._forget(key, partition)
                self._name_later(key, partition)
            elif following != fetch:
                self._known[key] = self._named[key] = (partition, following)
        if self._session_id == NO_SESSION_ID:
            self._begin_anew()

    def _hand_over(
        self, partition: Partition, fetch: ReplicaFetch, fetched: FetchedPartition
    ) -> None:
        """Give a partition its answer; one that cannot take it holds back no other."""
        try:
            partition.on_fetched(fetch, _answer(fetched), fetched.records)
        except Exception as error:  # noqa: BLE001 - the other partitions must be fetched
            record_failure("replication of a partition", error, f"{partition!r} is tried again")
            if (follower := partition.replica.follower) is not None:
                follower.failed(monotonic_ms(), fetch)

    async def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.is_closed:
            return self._connection
        self._connection = await dial(
            self._follower.broker_id, self.leader, max_in_flight=_MOST_UNANSWERED
        )
        return self._connection

    async def _drop(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


def _next_fetch(partition: Partition, now_ms: int) -> ReplicaFetch | None:
    """What to ask for a partition; None if nothing can be had now."""
    follower = partition.replica.follower
    if follower is None or partition.is_gone or partition.log.offline_reason is not None:
        return None
    return follower.next_fetch(now_ms)


def _leader_epoch(partition: Partition) -> int:
    follower = partition.replica.follower
    return -1 if follower is None else follower.leader_epoch


def _name_forgotten(partition: Partition) -> ForgottenPartition:
    record = partition.record
    return ForgottenPartition(partition.name, record.topic_id, record.partition)


def _name_wanted(partition: Partition, fetch: ReplicaFetch) -> FetchPartition:
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
