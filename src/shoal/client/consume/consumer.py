"""Consumers of given partitions and positions: whole batches, or records.

    async with RawConsumer(client, {tp: EARLIEST}) as consumer:
        for item in await consumer.poll():
            item.value            # the batch, not decoded; item.offset is that of its last record

Rules of this file:
- One fetch per leader is in flight, also between two polls; the next poll returns its batches. A
  slow or dead leader delays only its own partitions.
- Partitions are read from their leaders, or from a closer replica, see `replica_choice`.
- A position moves to the end of a batch when the batch is returned, also past control and aborted
  batches.
- A raw batch is returned as it is stored. Only a batch that begins before the position, the first
  one after a start or a seek, is re-encoded without the records before it (KIP-712). Messages of
  the formats 0 and 1 are converted to batches.
- These raise an error: a position that the log does not contain (unless `auto.offset.reset` is
  set), a batch with a wrong checksum (`check.crcs`), a topic that was deleted and created again.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from shoal.client.cluster.replica_choice import ReplicaSelector
from shoal.client.cluster.router import Core
from shoal.client.codes import INVALIDATES_METADATA, Code, facts_of
from shoal.client.consume.fetch_session import Fetched
from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.client.consume.offsets import list_offsets
from shoal.client.consume.raw_fetch import FetchLimits, fetch_from
from shoal.client.errors import (
    ConnectionLost,
    OffsetOutOfRange,
    RequestTimedOut,
    TopicRecreated,
    error_for,
)
from shoal.client.results import EARLIEST, LATEST
from shoal.client.transport.backoff import Backoff
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.runtime.context_managers import ClosesOnExit
from shoal.runtime.tasks import run_awaited
from shoal.wire.batch import Batch
from shoal.wire.fetch import FetchedPartition
from shoal.wire.records.message_sets import read_batches
from shoal.wire.records.re_encode import trim
from shoal.wire.records.records import Record, decode_records

_RESETS: Final = {"earliest": EARLIEST, "latest": LATEST}
_DEFAULT_POLL_MS: Final = 1_000
# The key of the task that waits for leaders, among the tasks of nodes.
_SEARCH: Final = -1


class RawBatch(NamedTuple):
    """One fetched batch; `offset` is that of its last record.

    `position` is the consumer's position when the batch was fetched.
    """

    topic: str
    partition: int
    offset: int
    value: Batch
    position: int


class FetchedRecord(NamedTuple):
    """One record with its topic and partition."""

    topic: str
    partition: int
    record: Record


class RawConsumer(ClosesOnExit):
    """Returns whole batches, independent of `fetch.raw.bytes`."""

    def __init__(
        self,
        core: Core,
        positions: Mapping[TopicPartition, int],
        *,
        isolation: str | None = None,
        replica_selector: ReplicaSelector | None = None,
        on_reset: Callable[[TopicPartition, int], None] | None = None,
    ) -> None:
        """`on_reset` is called with each position that `auto.offset.reset` has set."""
        config = core.config
        self._core = core
        self._replicas = replica_selector or ReplicaSelector(
            rack=config.client_rack, max_age_s=config.metadata_max_age_ms / 1000
        )
        self._on_reset = on_reset
        self._reset_partitions: set[TopicPartition] = set()
        self._limits = FetchLimits(
            config.fetch_max_wait_ms,
            config.fetch_min_bytes,
            config.fetch_max_bytes,
            config.max_partition_fetch_bytes,
            isolation or config.isolation_level,
        )
        self._positions = dict(positions)
        self._topic_ids: dict[str, UUID] = {}
        self._fetches: dict[int, asyncio.Task[Fetched]] = {}
        self._asked: dict[int, dict[TopicPartition, int]] = {}
        self._ready: list[RawBatch] = []
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition; `EARLIEST` or `LATEST` before the first poll."""
        return dict(self._positions)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue from this offset; batches fetched from another position are dropped."""
        if tp not in self._positions:
            raise UsageError(f"{tp} is not a partition of this consumer")
        self._positions[tp] = offset

    async def poll(self, timeout_ms: int = _DEFAULT_POLL_MS) -> list[RawBatch]:
        """Wait for batches and return them; empty if none arrive in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while not self._ready:
            await self._find_positions()
            await self._start_fetches()
            left_s = max(0.0, deadline - loop.time())
            if not self._fetches:
                await asyncio.sleep(left_s)
                break
            done, _ = await asyncio.wait(
                self._fetches.values(), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                self._on_fetched(task)
            if loop.time() >= deadline:
                break
        # Cleared only now, so that an error of one partition does not lose batches of another.
        batches, self._ready = self._ready, []
        return batches

    async def close(self) -> None:
        """Stop fetching; `positions` stays readable."""
        tasks = list(self._fetches.values())
        self._fetches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find_positions(self) -> None:
        """Turn `EARLIEST` and `LATEST` into offsets."""
        unknown = {tp: offset for tp, offset in self._positions.items() if offset < 0}
        if unknown:
            found = await list_offsets(self._core, unknown, isolation=self._limits.isolation)
            self._positions.update({tp: listed.offset for tp, listed in found.items()})
            for tp in self._reset_partitions & found.keys():
                self._reset_partitions.discard(tp)
                if self._on_reset is not None:
                    self._on_reset(tp, found[tp].offset)

    async def _start_fetches(self) -> None:
        cluster = await self._core.metadata({tp.topic for tp in self._positions})
        busy = {tp for node in self._fetches for tp in self._asked[node]}
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        now = asyncio.get_running_loop().time()
        for tp, offset in self._positions.items():
            if tp in busy:
                continue
            topic = cluster.topics.get(tp.topic)
            self._check_topic_id(tp.topic, topic.topic_id if topic is not None else None)
            leader = self._replicas.node(cluster, tp, now)
            by_leader.setdefault(_SEARCH if leader is None else leader, {})[tp] = offset
        for node, positions in by_leader.items():
            if node in self._fetches:
                continue
            self._asked[node] = positions
            work = self._wait_for_leaders if node == _SEARCH else partial(self._fetch, node)
            self._fetches[node] = run_awaited("fetch", work(positions))

    async def _wait_for_leaders(self, positions: Mapping[TopicPartition, int]) -> Fetched:
        for tp in positions:
            await self._core.leader(tp)
        return {}

    async def _fetch(self, node: int, positions: Mapping[TopicPartition, int]) -> Fetched:
        now = asyncio.get_running_loop().time()
        rack_id = self._replicas.rack_for(positions, self._core.config.client_rack, now)
        try:
            fetched = await fetch_from(
                self._core, node, positions, limits=self._limits, rack_id=rack_id
            )
        except (ConnectionLost, RequestTimedOut):
            self._core.invalidate_metadata()
            self._avoid_node(node, positions)
            await asyncio.sleep(self._backoff.next_wait_s())
            return {}
        if any(part.error_code == Code.NONE and part.records for part in fetched.values()):
            self._backoff.reset()
        elif any(part.error_code != Code.NONE for part in fetched.values()):
            # A broker answers errors at once: without a pause this would be a busy loop.
            await asyncio.sleep(self._backoff.next_wait_s())
        return fetched

    def _on_fetched(self, task: asyncio.Task[Fetched]) -> None:
        node = next(node for node, running in self._fetches.items() if running is task)
        del self._fetches[node]
        asked = self._asked.pop(node)
        fetched = task.result()
        now = asyncio.get_running_loop().time()
        moved = self._replicas.apply_response(self._core.cluster, node, fetched, now)
        for tp, part in fetched.items():
            if self._positions.get(tp) != asked[tp]:
                continue  # a seek has changed the position meanwhile
            if part.error_code == Code.NONE:
                self._ready += self._accept(tp, part)
            elif tp not in moved:
                self._handle_error(tp, asked[tp], part.error_code)

    def _avoid_node(self, node: int, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these from their leaders next, unless `node` is the leader."""
        now = asyncio.get_running_loop().time()
        for tp in partitions:
            if self._core.cluster.leader(tp) != node:
                self._replicas.avoid(tp, now)

    def _accept(self, tp: TopicPartition, part: FetchedPartition) -> list[RawBatch]:
        aborted_filter = AbortedFilter(part.aborted)
        position = self._positions[tp]
        accepted = []
        for batch, _ in read_batches(part.records):
            if batch.last_offset < position:
                continue
            if self._core.config.check_crcs:
                batch.check_crc()
            if aborted_filter.classify(batch) is BatchKind.DATA:
                whole = (
                    batch if batch.base_offset >= position else trim(batch, from_offset=position)
                )
                if whole is not None:
                    accepted.append(RawBatch(*tp, whole.last_offset, whole, position))
            position = batch.next_offset
        if position != self._positions[tp]:
            # Move to the end, so that a broker's size limit does not starve other partitions.
            del self._positions[tp]
            self._positions[tp] = position
        return accepted

    def _handle_error(self, tp: TopicPartition, offset: int, code: int) -> None:
        if code == Code.OFFSET_OUT_OF_RANGE:
            reset = _RESETS.get(self._core.config.auto_offset_reset)
            if reset is None:
                raise OffsetOutOfRange(code, topic=tp.topic, partition=tp.partition, offset=offset)
            self._positions[tp] = reset
            self._reset_partitions.add(tp)
        elif code not in INVALIDATES_METADATA and not facts_of(code).retriable:
            raise error_for(code, topic=tp.topic, partition=tp.partition, offset=offset)

    def _check_topic_id(self, topic: str, topic_id: UUID | None) -> None:
        if topic_id is None:
            return
        if self._topic_ids.setdefault(topic, topic_id) != topic_id:
            raise TopicRecreated(
                f"topic {topic} was deleted and created again; its offsets start from 0",
                remedy="create a new consumer with new positions",
            )


def records_of(batches: Iterable[RawBatch]) -> list[FetchedRecord]:
    """The records of batches, without those before the position."""
    return [
        FetchedRecord(item.topic, item.partition, record)
        for item in batches
        for record in decode_records(item.value)
        if record.offset >= item.position
    ]


class Consumer(ClosesOnExit):
    """Returns whole batches or records, depending on `fetch.raw.bytes`."""

    def __init__(
        self,
        core: Core,
        positions: Mapping[TopicPartition, int],
        *,
        isolation: str | None = None,
    ) -> None:
        self._is_raw = core.config.fetch_raw_bytes
        self._raw = RawConsumer(core, positions, isolation=isolation)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition."""
        return self._raw.positions

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue from this offset."""
        self._raw.seek(tp, offset)

    async def poll_batches(self, timeout_ms: int = _DEFAULT_POLL_MS) -> list[RawBatch]:
        """Whole batches; needs `fetch.raw.bytes=true`."""
        if not self._is_raw:
            raise UsageError(
                "poll_batches() returns whole batches, but fetch.raw.bytes is false",
                remedy="set fetch.raw.bytes=true, or call poll_records()",
            )
        return await self._raw.poll(timeout_ms)

    async def poll_records(self, timeout_ms: int = _DEFAULT_POLL_MS) -> list[FetchedRecord]:
        """Records; needs `fetch.raw.bytes=false`, which is the default."""
        if self._is_raw:
            raise UsageError(
                "poll_records() returns records, but fetch.raw.bytes is true",
                remedy="set fetch.raw.bytes=false, or call poll_batches()",
            )
        return records_of(await self._raw.poll(timeout_ms))

    async def close(self) -> None:
        """Stop."""
        await self._raw.close()
