"""Kafka Lite in eight calls: write messages to partitions, read them back. No event loop needed.

    producer = mount_producer("127.0.0.1:9092")
    producer.add_message(0, b"hello")
    producer.add_message_timeout(0, b"again", timeout=10)
    producer.get_leader(0)                       # "127.0.0.1:9093"
    producer.unmount()

    group = mount_consumer_group("127.0.0.1:9092", 3)
    group.consume([0, 1], offset=0, n=10)        # {0: [b"hello", b"again"], 1: []}
    group.poll(timeout=1)                        # what is new in every partition
    group.unmount()

A thin layer over `shoal.client`: one topic, chosen when it is mounted. It works with any cluster
that speaks Kafka's protocol.

Rules of this file:
- What `add_message` returned for is on all in-sync replicas. It tries once; an error says whether
  the message may be there all the same (`may_be_written`).
- `add_message_timeout` tries again until the time is over, which lets a cluster elect a leader.
  However often it is sent, the message is written once, in its place: batches are numbered.
- A message is one record, so that every Kafka client can read it. So that it can have any size, a
  topic that is made here allows records as large as a request can be (`socket.request.max.bytes`,
  100 MiB by default). A topic that was there before keeps its own limit.
- Reads come from any in-sync replica, chosen by chance, and end at the high watermark.
- All calls may be made from any thread.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from types import TracebackType
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
# How long a message that is tried once may wait for a connection to the leader.
_ONE_TRY_S = 2.0
# How long its answer may take.
_ANSWER_S = 30.0
# How much longer than it was given a call may take to find out what became of a message.
_GRACE_S = 0.25
_POLL_PAUSE_MS = 50
# How long is waited for somebody to lead a partition.
_LEADER_PATIENCE_S = 60.0
# How long a replica may take to have what the leader has; then another one is asked.
_REPLICA_WAIT_MS = 200

ResultT = TypeVar("ResultT")


class InvalidPartition(ClientError):
    """The topic has no such partition."""


class LeaderNotFound(ClientError):
    """Nobody leads the partition now: an election is under way, or its replicas are gone."""


class BrokerDisconnected(ClientError, UnreachableError):
    """A broker hung up or did not answer."""

    def __init__(self, message: str, *, may_be_written: bool = False) -> None:
        super().__init__(message)
        self.may_be_written = may_be_written


class MessageNotWritten(ClientError):
    """The cluster refused the message, or the time was over."""

    def __init__(self, message: str, *, may_be_written: bool) -> None:
        super().__init__(message)
        self.may_be_written = may_be_written


class ConsumerRecord(NamedTuple):
    """What a poll found in one partition; `last_offset` is -1 if nothing was ever read of it."""

    partition: int
    messages: list[bytes]
    last_offset: int


def mount_producer(addr: str, *, topic: str = DEFAULT_TOPIC) -> "ProducerInstance":
    """Connect to a cluster to write; the topic is made if it is missing.

    `addr` is a broker, or several with commas between. `BrokerDisconnected` if none answers.
    """
    return ProducerInstance(addr, topic)


def mount_consumer_group(addr: str, n: int, *, topic: str = DEFAULT_TOPIC) -> "ConsumerGroup":
    """Connect `n` consumers to a cluster, among whom the partitions are split evenly."""
    if n < 1:
        raise UsageError(f"{n} consumers: a group has at least one")
    return ConsumerGroup(addr, n, topic)


class _Mount:
    """An event loop in a thread of its own, and clients that live in it."""

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.unmount()

    def unmount(self) -> None:
        """Let go of everything; does nothing the second time."""
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
        """Nothing runs in the loop any more: refuse all calls from now on."""
        self._is_mounted = False

    def _call(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Do something in the loop and wait for it; errors of the network get our names."""
        if not self._is_mounted:
            work.close()
            raise ClientClosed("this was unmounted")
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
        await self._make_topic()

    async def _close(self) -> None:
        for client in self._clients:
            await client.close()

    async def _make_topic(self) -> None:
        client = self._clients[0]
        cluster = await client.metadata(None)
        if self._topic in cluster.topics:
            return
        limits = {"max.message.bytes": str(_INT_MAX)}
        try:
            await client.admin.create_topics([NewTopic(self._topic, configs=limits)])
        except KafkaError as error:
            # Another one was quicker.
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise

    def _partition(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    async def _partitions(self, client: Client) -> list[int]:
        """All partitions of the topic."""
        await client.leader(self._partition(0))  # waits for a topic that was just made
        return sorted(client.cluster.topics[self._topic].partitions)

    async def _check(self, client: Client, partition: int) -> TopicPartition:
        """The partition; `InvalidPartition` if there is none, `LeaderNotFound` without leader."""
        tp = self._partition(partition)
        cluster = await client.metadata([self._topic])
        if cluster.leader(tp) is None:
            cluster = await client.metadata([self._topic], refresh=True)
        known = cluster.topics.get(self._topic)
        if known is not None and not known.error and partition not in known.partitions:
            raise InvalidPartition(
                f"topic {self._topic} has no partition {partition}, only 0 to "
                f"{len(known.partitions) - 1}"
            )
        if cluster.leader(tp) is None:
            raise LeaderNotFound(
                f"nobody leads {tp} now", remedy="try again, or use add_message_timeout"
            )
        return tp


class ProducerInstance(_Mount):
    """Writes messages, by `mount_producer`."""

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
        """Write one message, in one try; returns its offset once all in-sync replicas have it."""
        return self._call(self._add(partition, data, None))

    def add_message_timeout(self, partition: int, data: bytes, timeout: float) -> int:
        """Write one message, trying again for `timeout` seconds; returns its offset."""
        return self._call(self._add(partition, data, timeout))

    def get_leader(self, partition: int) -> str:
        """The address of the broker that leads a partition."""
        return self._call(self._leader(partition))

    async def _leader(self, partition: int) -> str:
        client = self._clients[0]
        client.distrust_metadata()
        tp = await self._check(client, partition)
        leader = client.cluster.leader(tp)
        broker = client.cluster.brokers.get(-1 if leader is None else leader)
        if broker is None:
            raise LeaderNotFound(f"the leader of {tp} is not known")
        return f"{broker.host}:{broker.port}"

    async def _add(self, partition: int, data: bytes, timeout_s: float | None) -> int:
        """Write within the time, whoever does not answer: the session may wait for longer."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UsageError(f"a message is bytes, not {type(data).__name__}")
        limit_s = _ONE_TRY_S + _ANSWER_S if timeout_s is None else max(timeout_s, 0.0)
        is_out = asyncio.Event()
        try:
            async with asyncio.timeout(limit_s + _GRACE_S):
                return await self._written(partition, data, timeout_s, is_out)
        except TimeoutError:
            raise BrokerDisconnected(
                f"nobody said within {limit_s:g} s what became of a message to "
                f"{self._partition(partition)}",
                may_be_written=is_out.is_set(),
            ) from None

    async def _written(
        self, partition: int, data: bytes, timeout_s: float | None, is_out: asyncio.Event
    ) -> int:
        """The offset. `is_out` is set for as long as the message may be on its way."""
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
        is_out.set()
        sent = await session.send(
            tp,
            batch,
            timeout_s=_ONE_TRY_S if timeout_s is None else timeout_s - spent_s,
            retries=timeout_s is not None,
        )
        # Whoever stops waiting must not call it off: what follows is numbered after it.
        result = await asyncio.shield(sent)
        if result.is_ok:
            return result.offset
        if not result.outcome_unknown:
            is_out.clear()
        if result.error_code == Code.REQUEST_TIMED_OUT and not result.outcome_unknown:
            # It never left us: there was nobody to send it to.
            client.distrust_metadata()
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
    """Reads messages, by `mount_consumer_group`."""

    def __init__(self, addr: str, n: int, topic: str) -> None:
        # By consumer: who has which partitions for `poll`, and how far it has come.
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
        """Which partitions each consumer polls."""
        return [sorted(tp.partition for tp in poller.positions) for poller in self._pollers]

    def consume(self, partitions: Sequence[int], offset: int, n: int) -> dict[int, list[bytes]]:
        """Up to `n` messages of each partition, from `offset` on: all that are committed.

        `OffsetOutOfRange` if the offset is behind the end, or was deleted.
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
        """What an in-sync replica has from an offset on; maybe nothing yet."""
        cluster = await client.metadata([tp.topic])
        known = cluster.partition(tp)
        in_sync = known.isr if known is not None and known.isr else ()
        if not in_sync:
            raise LeaderNotFound(f"no replica of {tp} is in sync now")
        node_id = random.choice(in_sync)  # noqa: S311 - spreads work, keeps no secret
        try:
            fetched = await client.fetch_from(node_id, {tp: offset}, max_wait_ms=_REPLICA_WAIT_MS)
        except (ConnectionLost, RequestTimedOut):
            client.distrust_metadata()
            return []
        part = fetched[tp]
        if part.error_code == Code.OFFSET_OUT_OF_RANGE and node_id != cluster.leader(tp):
            # A follower may not have it yet, or has deleted it already.
            fetched = await client.fetch({tp: offset})
            part = fetched[tp]
        if part.error_code != Code.NONE:
            error = error_for(part.error_code, topic=tp.topic, partition=tp.partition)
            if not error.retriable and not error.invalidates_metadata:
                raise error
            client.distrust_metadata()
            await asyncio.sleep(_POLL_PAUSE_MS / 1000)
            return []
        return [
            record
            for batch in iter_batches(part.records)
            for record in decode_records(batch)
            if record.offset >= offset
        ]

    def poll(self, timeout: float) -> list[ConsumerRecord]:
        """What is new in every partition since the last poll, the first time from the beginning.

        Returns when all that was committed when it was called has been read. If that is
        nothing, it waits for something, `timeout` seconds at most. Leaders that do not answer
        in that time hold up their own partitions only. Trouble is raised by a poll that has
        nothing else to give, so that nothing that was read is lost for it.
        """
        return self._call(self._poll(timeout))

    async def _poll(self, timeout_s: float) -> list[ConsumerRecord]:
        deadline_s = asyncio.get_running_loop().time() + max(timeout_s, 0.0)
        has_news = asyncio.Event()
        found = await asyncio.gather(
            *(_polled(poller, client, deadline_s, has_news) for poller, client in self._shares())
        )
        records = [record for part in found for record in part.records]
        troubles = [part.trouble for part in found if part.trouble is not None]
        if troubles and not any(record.messages for record in records):
            raise troubles[0]
        return sorted(records, key=lambda record: record.partition)

    def _shares(self) -> list[tuple[RawConsumer, Client]]:
        pairs = zip(self._pollers, self._clients, strict=True)
        return [(poller, client) for poller, client in pairs if poller.positions]


async def _ends(
    client: Client, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Up to where the leaders give records to who stands at these positions.

    A leader that is alone with too few in sync lists no end, for it may not know of the last
    records that were committed. But it serves those that it knows of.
    """
    ends: dict[TopicPartition, int] = {}
    unknown = dict(positions)
    deadline_s = asyncio.get_running_loop().time() + _LEADER_PATIENCE_S
    while unknown:
        # On the channel of answers that come at once: not behind a fetch that waits for records.
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
            client.distrust_metadata()
            await asyncio.sleep(_POLL_PAUSE_MS / 1000)
    return ends


class _Polled(NamedTuple):
    """What one consumer of a group has read, and what kept it from reading more."""

    records: list[ConsumerRecord]
    trouble: ClientError | None


async def _polled(
    poller: RawConsumer, client: Client, deadline_s: float, has_news: asyncio.Event
) -> _Polled:
    messages: dict[TopicPartition, list[bytes]] = {tp: [] for tp in poller.positions}
    trouble: ClientError | None = None
    try:
        ends = await _ends_by(deadline_s, poller, client)
        async for item in _news(poller, ends, deadline_s, has_news):
            messages[TopicPartition(item.topic, item.partition)] += [
                record.value or b""
                for record in decode_records(item.value)
                if record.offset >= item.position
            ]
        if ends is None:
            trouble = BrokerDisconnected("not all leaders have answered in time")
    except ClientError as error:
        trouble = error
    records = [
        ConsumerRecord(tp.partition, messages[tp], max(position, 0) - 1)
        for tp, position in poller.positions.items()
    ]
    return _Polled(records, trouble)


async def _ends_by(
    deadline_s: float, poller: RawConsumer, client: Client
) -> dict[TopicPartition, int] | None:
    """Where the partitions end now; None if that is not known in time."""
    try:
        async with asyncio.timeout_at(deadline_s):
            unknown = {tp: offset for tp, offset in poller.positions.items() if offset < 0}
            for tp, listed in (await client.list_offsets(unknown)).items():
                poller.seek(tp, listed.offset)
            return await _ends(client, poller.positions)
    except TimeoutError:
        return None


async def _news(
    poller: RawConsumer,
    ends: Mapping[TopicPartition, int] | None,
    deadline_s: float,
    has_news: asyncio.Event,
) -> AsyncIterator[RawBatch]:
    """Batches up to the ends of all partitions, or until the time is over.

    One that has nothing new waits as long as none of the group has. Where the ends are not
    known, the time is over already; but there may be something from those who do answer.
    """
    loop = asyncio.get_running_loop()
    until_s = deadline_s + (_GRACE_S if ends is None else 0.0)
    while (left_s := until_s - loop.time()) > 0:
        is_at_end = ends is not None and all(poller.positions[tp] >= ends[tp] for tp in ends)
        if is_at_end and has_news.is_set():
            return
        polling = run_awaited("poll", poller.poll(int(left_s * 1000)))
        for item in await _within(left_s + _GRACE_S, polling, has_news if is_at_end else None):
            has_news.set()
            yield item


async def _within(
    time_s: float, polling: "asyncio.Task[list[RawBatch]]", event: asyncio.Event | None
) -> list[RawBatch]:
    """What a poll brings; nothing if the time is over or something else happens first."""
    news = asyncio.Event() if event is None else event
    waiting = run_awaited("wait for news", news.wait())
    await asyncio.wait({waiting, polling}, timeout=time_s, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    polling.cancel()
    # What it has found by now is not lost.
    [_, found] = await asyncio.gather(waiting, polling, return_exceptions=True)
    if isinstance(found, asyncio.CancelledError):
        return []
    if isinstance(found, BaseException):
        raise found
    return found


def _split(partitions: Sequence[int], count: int) -> list[list[int]]:
    """Evenly: nobody has more than one partition more than another."""
    return [list(partitions[place::count]) for place in range(count)]
