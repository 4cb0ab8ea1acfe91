"""Kafka Lite in eight calls: write messages to partitions, read them back. No event loop needed.

    producer = mount_producer("127.0.0.1:9092")
    producer.add_message(0, b"hello")
    producer.add_message_timeout(0, b"again", timeout=10)
    producer.get_leader(0)                       # "127.0.0.1:9093"
    producer.unmount()

    group = mount_consumer_group("127.0.0.1:9092", 3)
    group.consume([0, 1], offset=0, n=10)        # {0: [b"hello", b"again"], 1: []}
    group.poll(timeout=1)                        # new messages of every partition
    group.unmount()

A thin layer over `shoal.client` for one topic, chosen when it is mounted. It works with any
cluster that implements Kafka's protocol.

Rules of this file:
- When `add_message` returns, the message is on all in-sync replicas. It tries once; an error says
  whether the message may have been written all the same (`may_be_written`).
- `add_message_timeout` retries until the time-out, which gives a cluster time to elect a leader.
  However often it is sent, the message is written once and in order: the producer is idempotent.
- A message is one record, so that every Kafka client can read it. For messages of any size, a
  topic that is created here allows records as large as a request can be
  (`socket.request.max.bytes`, 100 MiB by default). An existing topic keeps its own limit.
- Reads come from a random in-sync replica, and end at the high watermark.
- All calls are thread-safe.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.consumer import RawBatch, RawConsumer
from shoal.client.errors import (
    ClientClosed,
    ConnectionLost,
    KafkaError,
    NoBrokersAvailable,
    RequestTimedOut,
    error_for,
)
from shoal.client.produce.sessions import IdempotentSession
from shoal.client.results import EARLIEST, LATEST, ProduceResult
from shoal.client.transport.pool import CONTROL
from shoal.model.errors import ClientError, UnreachableError, UsageError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import report_unhandled_errors, run_awaited, start_thread
from shoal.wire.batch import iter_batches
from shoal.wire.records.records import Record, decode_records, encode_batch

DEFAULT_TOPIC = "messages"
_INT_MAX = (1 << 31) - 1
# How long `add_message` may wait for a connection to the leader.
_CONNECT_TIMEOUT_S = 2.0
# How long `add_message` waits for the answer.
_ANSWER_TIMEOUT_S = 30.0
# How much longer than its time-out a call may take to learn the outcome of a message.
_GRACE_S = 0.25
_POLL_PAUSE_MS = 50
# How long to wait for a partition to have a leader.
_LEADER_TIMEOUT_S = 60.0
# How long a replica may take to catch up with the leader; then another one is read from.
_REPLICA_WAIT_MS = 200

ResultT = TypeVar("ResultT")


class InvalidPartition(ClientError):
    """The topic has no such partition."""


class LeaderNotFound(ClientError):
    """The partition has no leader now: an election is under way, or its replicas are down."""


class BrokerDisconnected(ClientError, UnreachableError):
    """A broker closed the connection or did not answer."""

    def __init__(self, message: str, *, may_be_written: bool = False) -> None:
        super().__init__(message)
        self.may_be_written = may_be_written


class MessageNotWritten(ClientError):
    """The cluster rejected the message, or the time-out expired."""

    def __init__(self, message: str, *, may_be_written: bool) -> None:
        super().__init__(message)
        self.may_be_written = may_be_written


class ConsumerRecord(NamedTuple):
    """The new messages of one partition; `last_offset` is -1 if none was ever read."""

    partition: int
    messages: list[bytes]
    last_offset: int


def mount_producer(addr: str, *, topic: str = DEFAULT_TOPIC) -> "ProducerInstance":
    """Connect to a cluster to write; the topic is created if it is missing.

    `addr` is one broker, or several separated by commas. `BrokerDisconnected` if none answers.
    """
    return ProducerInstance(addr, topic)


def mount_consumer_group(addr: str, n: int, *, topic: str = DEFAULT_TOPIC) -> "ConsumerGroup":
    """Connect `n` consumers to a cluster, among which the partitions are split evenly."""
    if n < 1:
        raise UsageError(f"{n} consumers: a group must have at least one")
    return ConsumerGroup(addr, n, topic)


class _Mount:
    """An event loop in a separate thread, and the clients that run in it."""

    def __init__(self, addr: str, topic: str, count: int) -> None:
        self._topic = topic
        self._loop = asyncio.new_event_loop()
        self._is_mounted = True
        self._clients: list[Client] = []
        self._loop.call_soon(report_unhandled_errors, self._loop)
        self._thread = start_thread(
            f"shoal-mount-{topic}", self._loop.run_forever, on_failure=self._on_loop_failed
        )
        try:
            self._call(self._open({"bootstrap.servers": addr}, count))
        except BaseException:
            self.unmount()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()

    def unmount(self) -> None:
        """Close all connections; does nothing the second time."""
        if not self._is_mounted:
            return
        try:
            self._call(self._close())
        finally:
            self._is_mounted = False
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _on_loop_failed(self, _: Exception) -> None:
        """The loop has failed: all later calls raise `ClientClosed`."""
        self._is_mounted = False

    def _call(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run `work` in the loop and wait for it; maps network errors to `BrokerDisconnected`."""
        if not self._is_mounted:
            work.close()
            raise ClientClosed(
                "this producer or consumer group was unmounted; mount a new one to continue"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except (ConnectionLost, RequestTimedOut, NoBrokersAvailable) as error:
            raise BrokerDisconnected(str(error)) from error

    async def _open(self, properties: dict[str, Any], count: int) -> None:
        for _ in range(count):
            client = Client(properties)
            self._clients.append(client)
            await client.start()
        await self._create_topic()

    async def _close(self) -> None:
        for client in self._clients:
            await client.close()

    async def _create_topic(self) -> None:
        client = self._clients[0]
        cluster = await client.metadata(None)
        if self._topic in cluster.topics:
            return
        limits = {"max.message.bytes": str(_INT_MAX)}
        try:
            await client.admin.create_topics([NewTopic(self._topic, configs=limits)])
        except KafkaError as error:
            # Another client created it at the same time.
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise

    def _partition(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    async def _partitions(self, client: Client) -> list[int]:
        """All partitions of the topic."""
        await client.leader(self._partition(0))  # waits for a topic that was just created
        return sorted(client.cluster.topics[self._topic].partitions)

    async def _check(self, client: Client, partition: int) -> TopicPartition:
        """The partition; `InvalidPartition` if it is missing, `LeaderNotFound` without a leader."""
        tp = self._partition(partition)
        cluster = await client.metadata([self._topic])
        if cluster.leader(tp) is None:
            cluster = await client.metadata([self._topic], refresh=True)
        known = cluster.topics.get(self._topic)
        if known is not None and not known.error and partition not in known.partitions:
            raise InvalidPartition(
                f"topic {self._topic} has no partition {partition}, only partitions 0 to "
                f"{len(known.partitions) - 1}"
            )
        if cluster.leader(tp) is None:
            raise LeaderNotFound(
                f"{tp} has no leader now", remedy="try again, or use add_message_timeout"
            )
        return tp


class ProducerInstance(_Mount):
    """Writes messages; created by `mount_producer`."""

    def __init__(self, addr: str, topic: str) -> None:
        self._session: IdempotentSession | None = None
        super().__init__(addr, topic, 1)

    async def _open(self, properties: dict[str, Any], count: int) -> None:
        await super()._open(properties, count)
        await self._partitions(self._clients[0])
        self._session = IdempotentSession(self._clients[0])
        await self._session.start()

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await super()._close()

    def add_message(self, partition: int, data: bytes) -> int:
        """Write one message in one try; returns its offset once all in-sync replicas have it."""
        return self._call(self._add(partition, data, None))

    def add_message_timeout(self, partition: int, data: bytes, timeout: float) -> int:
        """Write one message, with retries for `timeout` seconds; returns its offset."""
        return self._call(self._add(partition, data, timeout))

    def get_leader(self, partition: int) -> str:
        """The address of the broker that leads a partition."""
        return self._call(self._leader(partition))

    async def _leader(self, partition: int) -> str:
        client = self._clients[0]
        client.invalidate_metadata()
        tp = await self._check(client, partition)
        leader = client.cluster.leader(tp)
        broker = client.cluster.brokers.get(-1 if leader is None else leader)
        if broker is None:
            raise LeaderNotFound(f"the leader of {tp} is not known")
        return f"{broker.host}:{broker.port}"

    async def _add(self, partition: int, data: bytes, timeout_s: float | None) -> int:
        """Write within the time-out: the session itself may wait longer for a broker."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UsageError(f"a message must be bytes, not {type(data).__name__}")
        limit_s = (
            _CONNECT_TIMEOUT_S + _ANSWER_TIMEOUT_S if timeout_s is None else max(timeout_s, 0.0)
        )
        is_sent = asyncio.Event()
        try:
            async with asyncio.timeout(limit_s + _GRACE_S):
                return await self._send(partition, data, timeout_s, is_sent)
        except TimeoutError:
            raise BrokerDisconnected(
                f"the outcome of a message to {self._partition(partition)} is unknown after "
                f"{limit_s:g} s",
                may_be_written=is_sent.is_set(),
            ) from None

    async def _send(
        self, partition: int, data: bytes, timeout_s: float | None, is_sent: asyncio.Event
    ) -> int:
        """Send a message; returns its offset. `is_sent` is set while the message may be written."""
        client, session = self._clients[0], self._session
        assert session is not None  # noqa: S101 - for the type checker
        tp = self._partition(partition)
        began_s = asyncio.get_running_loop().time()
        try:
            await self._check(client, partition)
        except (LeaderNotFound, ConnectionLost, RequestTimedOut, NoBrokersAvailable):
            if timeout_s is None:
                raise
        batch = encode_batch([Record(0, time.time_ns() // 1_000_000, None, data)])
        spent_s = asyncio.get_running_loop().time() - began_s
        is_sent.set()
        sent = await session.send(
            tp,
            batch,
            timeout_s=_CONNECT_TIMEOUT_S if timeout_s is None else timeout_s - spent_s,
            retries=timeout_s is not None,
        )
        # A cancelled wait must not cancel the send: later batches have the next sequence numbers.
        result = await asyncio.shield(sent)
        if result.is_ok:
            return result.offset
        if not result.outcome_unknown:
            is_sent.clear()
        if result.error_code == Code.REQUEST_TIMED_OUT and not result.outcome_unknown:
            # It was never sent: no broker could be reached.
            client.invalidate_metadata()
            await self._check(client, partition)
            raise BrokerDisconnected(f"the leader of {tp} does not answer")
        raise _error_of(tp, result)


def _error_of(tp: TopicPartition, result: ProduceResult) -> ClientError:
    error = result.error(tp)
    if result.error_code == Code.NETWORK_EXCEPTION:
        return BrokerDisconnected(str(error), may_be_written=result.outcome_unknown)
    if result.error_code in {Code.LEADER_NOT_AVAILABLE, Code.NOT_LEADER_OR_FOLLOWER}:
        return LeaderNotFound(str(error))
    return MessageNotWritten(str(error), may_be_written=result.outcome_unknown)


class ConsumerGroup(_Mount):
    """Reads messages; created by `mount_consumer_group`."""

    def __init__(self, addr: str, n: int, topic: str) -> None:
        # By consumer: its partitions for `poll`, and their positions.
        self._pollers: list[RawConsumer] = []
        super().__init__(addr, topic, n)

    async def _open(self, properties: dict[str, Any], count: int) -> None:
        await super()._open(properties, count)
        partitions = await self._partitions(self._clients[0])
        for client, share in zip(self._clients, _split(partitions, count), strict=True):
            positions = {self._partition(partition): EARLIEST for partition in share}
            self._pollers.append(RawConsumer(client, positions))

    async def _close(self) -> None:
        for poller in self._pollers:
            await poller.close()
        await super()._close()

    @property
    def manifests(self) -> list[list[int]]:
        """The partitions that each consumer polls."""
        return [sorted(tp.partition for tp in poller.positions) for poller in self._pollers]

    def consume(self, partitions: Sequence[int], offset: int, n: int) -> dict[int, list[bytes]]:
        """Up to `n` committed messages of each partition, from `offset` on.

        `OffsetOutOfRange` if the offset is beyond the end, or was deleted.
        """
        return self._call(self._consume(list(partitions), offset, n))

    async def _consume(self, partitions: list[int], offset: int, n: int) -> dict[int, list[bytes]]:
        async def read(client: Client, share: list[int]) -> dict[int, list[bytes]]:
            return {
                partition: await self._read(client, partition, offset, n) for partition in share
            }

        shares = zip(self._clients, _split(partitions, len(self._clients)), strict=True)
        found = await asyncio.gather(*(read(client, share) for client, share in shares))
        return {partition: part[partition] for part in found for partition in part}

    async def _read(self, client: Client, partition: int, offset: int, n: int) -> list[bytes]:
        tp = await self._check(client, partition)
        end_offset = (await _ends(client, {tp: offset}))[tp]
        wanted = min(offset + n, end_offset)
        messages: list[bytes] = []
        position = offset
        while position < wanted or (position == offset > end_offset):
            records = await self._records(client, tp, position)
            messages += [record.value or b"" for record in records if record.offset < wanted]
            position = records[-1].offset + 1 if records else position
        return messages

    async def _records(self, client: Client, tp: TopicPartition, offset: int) -> list[Record]:
        """The records of an in-sync replica from an offset on; possibly none yet."""
        cluster = await client.metadata([tp.topic])
        known = cluster.partition(tp)
        in_sync = known.isr if known is not None and known.isr else ()
        if not in_sync:
            raise LeaderNotFound(f"{tp} has no in-sync replica now")
        node_id = random.choice(in_sync)  # noqa: S311 - spreads work, keeps no secret
        try:
            fetched = await client.fetch_from(node_id, {tp: offset}, max_wait_ms=_REPLICA_WAIT_MS)
        except (ConnectionLost, RequestTimedOut):
            client.invalidate_metadata()
            return []
        part = fetched[tp]
        if part.error_code == Code.OFFSET_OUT_OF_RANGE and node_id != cluster.leader(tp):
            # A follower may not have the offset yet, or has deleted it already.
            fetched = await client.fetch({tp: offset})
            part = fetched[tp]
        if part.error_code != Code.NONE:
            error = error_for(part.error_code, topic=tp.topic, partition=tp.partition)
            if not error.retriable and not error.invalidates_metadata:
                raise error
            client.invalidate_metadata()
            await asyncio.sleep(_POLL_PAUSE_MS / 1000)
            return []
        return [
            record
            for batch in iter_batches(part.records)
            for record in decode_records(batch)
            if record.offset >= offset
        ]

    def poll(self, timeout: float) -> list[ConsumerRecord]:
        """The new messages of every partition since the last poll, the first time from the start.

        Returns when everything that was committed at the call has been read. If there is nothing
        new, it waits for at most `timeout` seconds. Leaders that do not answer in that time delay
        their own partitions only. An error is raised only by a poll that has no messages to
        return, so that messages already read are not lost.
        """
        return self._call(self._poll(timeout))

    async def _poll(self, timeout_s: float) -> list[ConsumerRecord]:
        deadline_s = asyncio.get_running_loop().time() + max(timeout_s, 0.0)
        has_news = asyncio.Event()
        found = await asyncio.gather(
            *(
                _poll_share(poller, client, deadline_s, has_news)
                for poller, client in self._shares()
            )
        )
        records = [record for part in found for record in part.records]
        errors = [part.error for part in found if part.error is not None]
        if errors and not any(record.messages for record in records):
            raise errors[0]
        return sorted(records, key=lambda record: record.partition)

    def _shares(self) -> list[tuple[RawConsumer, Client]]:
        pairs = zip(self._pollers, self._clients, strict=True)
        return [(poller, client) for poller, client in pairs if poller.positions]


async def _ends(
    client: Client, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The high watermarks that the leaders report to a reader at these positions.

    A leader with too few in-sync replicas answers no ListOffsets, since it may not know the last
    committed records. But it serves fetches of those that it knows.
    """
    ends: dict[TopicPartition, int] = {}
    unknown = dict(positions)
    deadline_s = asyncio.get_running_loop().time() + _LEADER_TIMEOUT_S
    while unknown:
        # On the control channel: its answers do not wait behind a fetch that is held.
        found = await client.fetch(unknown, max_wait_ms=0, max_bytes=1, channel=CONTROL)
        for tp, part in found.items():
            if part.error_code == Code.OFFSET_OUT_OF_RANGE:
                ends[tp] = (await client.list_offsets({tp: LATEST}))[tp].offset
            elif part.error_code == Code.NONE:
                ends[tp] = part.high_watermark
            else:
                error = error_for(part.error_code, topic=tp.topic, partition=tp.partition)
                is_late = asyncio.get_running_loop().time() > deadline_s
                if is_late or not (error.retriable or error.invalidates_metadata):
                    raise error
        unknown = {tp: offset for tp, offset in unknown.items() if tp not in ends}
        if unknown:
            client.invalidate_metadata()
            await asyncio.sleep(_POLL_PAUSE_MS / 1000)
    return ends


class _PollResult(NamedTuple):
    """What one consumer of a group has read, and the error that ended its poll."""

    records: list[ConsumerRecord]
    error: ClientError | None


async def _poll_share(
    poller: RawConsumer, client: Client, deadline_s: float, has_news: asyncio.Event
) -> _PollResult:
    messages: dict[TopicPartition, list[bytes]] = {tp: [] for tp in poller.positions}
    failure: ClientError | None = None
    try:
        ends = await _ends_by(deadline_s, poller, client)
        async for item in _new_batches(poller, ends, deadline_s, has_news):
            messages[TopicPartition(item.topic, item.partition)] += [
                record.value or b""
                for record in decode_records(item.value)
                if record.offset >= item.position
            ]
        if ends is None:
            failure = BrokerDisconnected("not all leaders answered in time")
    except ClientError as error:
        failure = error
    records = [
        ConsumerRecord(tp.partition, messages[tp], max(position, 0) - 1)
        for tp, position in poller.positions.items()
    ]
    return _PollResult(records, failure)


async def _ends_by(
    deadline_s: float, poller: RawConsumer, client: Client
) -> dict[TopicPartition, int] | None:
    """The current ends of the partitions; None if they are not known in time."""
    try:
        async with asyncio.timeout_at(deadline_s):
            unknown = {tp: offset for tp, offset in poller.positions.items() if offset < 0}
            for tp, listed in (await client.list_offsets(unknown)).items():
                poller.seek(tp, listed.offset)
            return await _ends(client, poller.positions)
    except TimeoutError:
        return None


async def _new_batches(
    poller: RawConsumer,
    ends: Mapping[TopicPartition, int] | None,
    deadline_s: float,
    has_news: asyncio.Event,
) -> AsyncIterator[RawBatch]:
    """Batches up to the ends of all partitions, or until the deadline.

    A consumer without new batches waits as long as no consumer of the group has any. Where the
    ends are not known the deadline has passed, but responsive leaders may still have batches.
    """
    loop = asyncio.get_running_loop()
    until_s = deadline_s + (_GRACE_S if ends is None else 0.0)
    while (left_s := until_s - loop.time()) > 0:
        is_at_end = ends is not None and all(poller.positions[tp] >= ends[tp] for tp in ends)
        if is_at_end and has_news.is_set():
            return
        polling = run_awaited("poll", poller.poll(int(left_s * 1000)))
        for item in await _poll_within(left_s + _GRACE_S, polling, has_news if is_at_end else None):
            has_news.set()
            yield item


async def _poll_within(
    time_s: float, polling: "asyncio.Task[list[RawBatch]]", event: asyncio.Event | None
) -> list[RawBatch]:
    """The result of a poll; empty if the time is over or the event is set first."""
    news = asyncio.Event() if event is None else event
    waiting = run_awaited("wait for news", news.wait())
    await asyncio.wait({waiting, polling}, timeout=time_s, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    polling.cancel()
    # A poll that has completed meanwhile keeps its result.
    [_, found] = await asyncio.gather(waiting, polling, return_exceptions=True)
    if isinstance(found, asyncio.CancelledError):
        return []
    if isinstance(found, BaseException):
        raise found
    return found


def _split(partitions: Sequence[int], count: int) -> list[list[int]]:
    """Split evenly: sizes differ by at most one."""
    return [list(partitions[index::count]) for index in range(count)]
