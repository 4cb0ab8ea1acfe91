"""Fetch (1), versions 4 to 18.

Behaviour
- Whole batches from the one that contains the offset, up to the high watermark. The first batch of
  the first partition with data is returned whole even above the limits (KIP-74).
- Long polling: with less than `min_bytes` of data the response waits for appends, at most
  `max_wait_ms`. Nothing polls: an append wakes the requests that wait for its partition. An error
  is returned at once.
- Leader epochs of clients are checked (KIP-320). If the log does not have the epoch of a client's
  last record, or ends that epoch earlier, the response has the diverging epoch (KIP-595).
- read_committed: up to the last stable offset, with the aborted transactions of that range.
- Followers serve consumers too, up to the high watermark that they know. The leader directs
  consumers to a replica in their rack if it is configured to (KIP-392, see `preferred_replica`).
- Followers fetch up to the end of the log: see `replica_fetch`.

Versions
- 7 fetch sessions (KIP-227): see `fetch_sessions`; those of followers: see `replica_session`.
- 9 leader epochs. 11 racks; older clients are served by leaders only. 12 flexible. 13 topic ids
  (KIP-516): an unknown id gets UNKNOWN_TOPIC_ID. 15 replicas send their broker epoch (KIP-903).
  16 endpoints of new leaders (KIP-951). 17 and 18 change only fetches of controllers.
"""

import asyncio

from shoal.lite.api.new_leaders import current_leader, endpoints
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.scheduler import monotonic_ms
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.fetch.fetch_answers import Fetched, encode_answer
from shoal.lite.broker.fetch.preferred_replica import select_preferred_replica
from shoal.lite.broker.fetch.replica_fetch import answer_replica_fetch
from shoal.lite.broker.registry import Answer, RawRequest, register
from shoal.lite.partitions.partition import Partition
from shoal.lite.replication.fetch_sessions import FetchContext, error_answer
from shoal.lite.replication.follower import FollowerPartition
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.storage.slices import NOTHING, LogSlice
from shoal.wire.api_keys import ApiKey
from shoal.wire.fetch import (
    NO_REPLICA,
    READ_COMMITTED,
    EpochEnd,
    FetchPartition,
    FetchRequest,
    PartitionAnswer,
    decode_fetch_request,
)

_FIRST_VERSION_WITH_RACKS = 11
_FIRST_VERSION_WITH_TOPIC_IDS = 13
_FIRST_VERSION_WITH_ENDPOINTS = 16
_WRONG_LEADER = {Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH}
# The longest wait for data: shorter than clients wait before they give up on a broker.
_LONGEST_WAIT_MS = 600_000


def handle(core: BrokerCore, request: RawRequest) -> "Answer | asyncio.Future[Answer]":
    fetch = decode_fetch_request(request.version, request.frame, request.header.body_position)
    wait_ms = min(fetch.max_wait_ms, _LONGEST_WAIT_MS)
    if fetch.replica_id >= 0:
        return answer_replica_fetch(core, request, fetch, wait_ms)
    try:
        uses_ids = request.version >= _FIRST_VERSION_WITH_TOPIC_IDS
        context = core.fetch_sessions.new_context(monotonic_ms(), fetch, uses_ids=uses_ids)
    except ApiError as error:
        return encode_answer(request, [], error.code)
    fetch = fetch._replace(partitions=context.partitions)
    read = _Read(core, request, fetch)
    if wait_ms <= 0 or fetch.min_bytes <= 0 or read.has_enough:
        return _answer(core, request, context, read)
    return _PendingFetch(core, request, fetch, context).begin(wait_ms, read)


def _answer(core: BrokerCore, request: RawRequest, context: FetchContext, read: "_Read") -> Answer:
    answers = context.select_changed(read.partitions)
    read.count()
    leaders = [answer.current_leader for answer in answers] if read.has_error else []
    return encode_answer(
        request, answers, session_id=context.session_id, node_endpoints=endpoints(core, leaders)
    )


class _Read:
    """What can be read now from all partitions of a request."""

    def __init__(self, core: BrokerCore, request: RawRequest, fetch: FetchRequest) -> None:
        self._core = core
        self._uses_ids = request.version >= _FIRST_VERSION_WITH_TOPIC_IDS
        self._includes_leaders = request.version >= _FIRST_VERSION_WITH_ENDPOINTS
        self._can_read_from_follower = request.version >= _FIRST_VERSION_WITH_RACKS
        self._reader = fetch.session_id or request.header.client_id or ""
        self._rack_id = fetch.rack_id
        self._is_read_committed = fetch.isolation == READ_COMMITTED
        self._remaining_bytes = min(fetch.max_bytes, core.layers.integer("fetch.max.bytes"))
        self._has_data = False
        self.size_bytes = 0
        self.has_error = False
        # The partitions that could be read: the request waits for more data in them.
        self.readable: list[Partition] = []
        # Topics and bytes of partitions that were read, and topics of those that were not.
        self._read_bytes: list[tuple[str, int]] = []
        self._failed: list[str] = []
        self.partitions = [self._fetch_partition(item) for item in fetch.partitions]
        self.has_enough = (
            self.has_error or self.size_bytes >= fetch.min_bytes or not fetch.partitions
        )

    def count(self) -> None:
        """Count what is answered; a request that waits is read several times."""
        traffic = self._core.traffic
        for name, size_bytes in self._read_bytes:
            counts = traffic[name]
            counts.fetch_requests += 1
            counts.bytes_out += size_bytes
        for name in self._failed:
            counts = traffic[name]
            counts.fetch_requests += 1
            counts.failed_fetch_requests += 1

    def _fetch_partition(self, item: FetchPartition) -> Fetched:
        name = ""
        try:
            name = self._core.topic_name(item.topic_id) if self._uses_ids else item.topic
            partition = self._core.partition(name, item.partition)
            role = partition.replica.role if self._can_read_from_follower else partition.leader
            role.check_epoch(item.leader_epoch)
            nearer = self._closer_replica(role, item)
            diverging = role.divergence(item.offset, item.last_fetched_epoch)
            last_stable_offset = partition.last_stable_offset
            upper_offset = (
                last_stable_offset if self._is_read_committed else partition.high_watermark
            )
            records, aborted = NOTHING, []
            if diverging is None and nearer is None:
                records = self._records(partition, item, upper_offset)
                if self._is_read_committed:
                    aborted = partition.log.find_aborted(item.offset, records, upper_offset)
            content = partition.as_records(records)
        except ApiError as error:
            self.has_error = True
            self._failed.append(name if name in self._core.state.topics else "")
            return self._error_answer(item, error.code)
        self.has_error = self.has_error or diverging is not None or nearer is not None
        self.readable.append(partition)
        self._read_bytes.append((name, records.size))
        return PartitionAnswer(
            item.topic,
            item.topic_id,
            item.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=partition.log.start_offset,
            aborted=aborted,
            diverging_epoch=None if diverging is None else EpochEnd(*diverging),
            preferred_read_replica=NO_REPLICA if nearer is None else nearer,
            records=content,
        )

    def _error_answer(self, item: FetchPartition, code: Code) -> Fetched:
        if not self._includes_leaders or code not in _WRONG_LEADER:
            return error_answer(item, code)
        name = self._core.topic_name(item.topic_id)
        leader = current_leader(self._core, name, item.partition)
        return error_answer(item, code)._replace(current_leader=leader)

    def _closer_replica(
        self, role: LeaderPartition | FollowerPartition, item: FetchPartition
    ) -> int | None:
        """A replica in the client's rack that it should read from instead."""
        if not self._rack_id or not isinstance(role, LeaderPartition):
            return None
        return select_preferred_replica(self._core, role, item.offset, self._rack_id)

    def _records(self, partition: Partition, item: FetchPartition, upper_offset: int) -> LogSlice:
        max_bytes = min(item.max_bytes, self._remaining_bytes)
        if max_bytes <= 0 and self._has_data:
            return NOTHING
        records = partition.log.read(
            item.offset,
            max_bytes,
            upper_offset=upper_offset,
            at_least_one=not self._has_data,
        )
        if records.size:
            partition.on_read(self._reader, item.offset)
        self._has_data = self._has_data or len(records) > 0
        self._remaining_bytes -= len(records)
        self.size_bytes += len(records)
        return records


class _PendingFetch:
    """A request that waits for data in its partitions."""

    def __init__(
        self, core: BrokerCore, request: RawRequest, fetch: FetchRequest, context: FetchContext
    ) -> None:
        self._core = core
        self._request = request
        self._fetch = fetch
        self._context = context
        self._missing_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Answer] = self._loop.create_future()

    def begin(self, wait_ms: int, read: _Read) -> "asyncio.Future[Answer]":
        """Wait for data; `read` is what was available when the request arrived."""
        self._missing_bytes = self._fetch.min_bytes - read.size_bytes
        partitions = read.readable
        timer = self._loop.call_later(wait_ms / 1000, self._finish)

        def leave(_: object) -> None:
            timer.cancel()
            for partition in partitions:
                partition.readers.discard(self)

        for partition in partitions:
            partition.readers.add(self)
        # Also runs when the client disconnects and the connection cancels the future.
        self._future.add_done_callback(leave)
        return self._future

    def on_data_available(self, size_bytes: int) -> None:
        if self._missing_bytes > 0:
            self._missing_bytes -= size_bytes
            if self._missing_bytes <= 0:
                self._loop.call_soon(self._finish_if_enough)

    def on_unavailable(self) -> None:
        self._missing_bytes = 0
        self._loop.call_soon(self._finish)

    def _finish_if_enough(self) -> None:
        """Answer, unless the new records belong to an open transaction: then wait for its end."""
        if self._fetch.isolation == READ_COMMITTED and not self._future.done():
            read = _Read(self._core, self._request, self._fetch)
            if not read.has_enough:
                self._missing_bytes = 1
                return
        self._finish()

    def _finish(self) -> None:
        if not self._future.done():
            read = _Read(self._core, self._request, self._fetch)
            self._future.set_result(_answer(self._core, self._request, self._context, read))


API = register(ApiKey.FETCH, 4, 18, handle)
