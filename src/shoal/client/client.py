"""The client: the calls of a user of a cluster, over one `Core`.

    async with Client({"bootstrap.servers": "localhost:9092"}) as client:
        cluster = await client.metadata(["topic"])
        ends = await client.list_offsets({tp: LATEST for tp in cluster.partitions_of("topic")})

The guarantees of each call are in its module: `raw_fetch`, `raw_produce`, `compare_and_append`,
`offsets`, `admin`. Sessions that number and retry batches are in `sessions` and `transactions`,
reading with positions is in `consumer`.
"""

from collections.abc import Mapping
from functools import cached_property

from shoal.client.admin import Admin
from shoal.client.cluster.router import Core
from shoal.client.consume import offsets, raw_fetch
from shoal.client.consume.fetch_session import Fetched, FetchSession
from shoal.client.consume.raw_fetch import FetchLimits
from shoal.client.produce import compare_and_append, raw_produce
from shoal.client.produce.compare_and_append import AppendRequest, AppendResults
from shoal.client.produce.raw_produce import ProduceCall, Produced
from shoal.client.results import ListedOffset
from shoal.client.transport.pool import CONTROL, FETCH, PRODUCE
from shoal.model.topics import TopicPartition
from shoal.wire.produce import Records


class Client(Core):
    """A client of one cluster; use it from one event loop."""

    @cached_property
    def admin(self) -> Admin:
        return Admin(self)

    async def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_wait_ms: int | None = None,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        partition_max_bytes: int | None = None,
        isolation: str | None = None,
        channel: str = FETCH,
    ) -> Fetched:
        """Raw record sets from these offsets on, from all leaders or closer replicas at once."""
        limits = self._limits(
            max_wait_ms, min_bytes, max_bytes, partition_max_bytes, isolation=isolation
        )
        return await raw_fetch.fetch(self, positions, limits=limits, channel=channel)

    async def fetch_from(
        self,
        node_id: int,
        positions: Mapping[TopicPartition, int],
        *,
        max_wait_ms: int | None = None,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        partition_max_bytes: int | None = None,
        isolation: str | None = None,
        channel: str = FETCH,
        rack_id: str | None = None,
    ) -> Fetched:
        """Raw record sets from one broker; raises if it does not answer.

        A broker answers the fetches of one channel one after the other. A leader may name a
        closer replica instead of records, unless `rack_id` (by default `client.rack`) is empty.
        """
        limits = self._limits(
            max_wait_ms, min_bytes, max_bytes, partition_max_bytes, isolation=isolation
        )
        return await raw_fetch.fetch_from(
            self, node_id, positions, limits=limits, channel=channel, rack_id=rack_id
        )

    async def fetch_in_session(
        self,
        node_id: int,
        session: FetchSession,
        *,
        max_wait_ms: int | None = None,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        isolation: str | None = None,
        channel: str = FETCH,
        rack_id: str | None = None,
    ) -> Fetched:
        """Raw record sets of a session's partitions that have news; otherwise as `fetch_from`."""
        limits = self._limits(max_wait_ms, min_bytes, max_bytes, None, isolation=isolation)
        return await raw_fetch.fetch_in_session(
            self, node_id, session, limits=limits, channel=channel, rack_id=rack_id
        )

    async def end_fetch_session(
        self, node_id: int, session: FetchSession, *, channel: str = CONTROL
    ) -> None:
        """End a fetch session at the broker, which otherwise keeps it for minutes.

        On another channel it does not wait for a fetch of the session that is in flight.
        """
        await raw_fetch.end_fetch_session(self, node_id, session, channel=channel)

    async def produce(
        self,
        batches: Mapping[TopicPartition, Records],
        *,
        acks: int | None = None,
        timeout_ms: int | None = None,
        transactional_id: str | None = None,
    ) -> Produced:
        """Send whole batches unchanged: one attempt, one request to each leader."""
        return await raw_produce.produce(
            self,
            batches,
            acks=self.config.acks if acks is None else acks,
            timeout_ms=timeout_ms,
            transactional_id=transactional_id,
        )

    async def produce_to(
        self,
        node_id: int,
        batches: Mapping[TopicPartition, Records],
        *,
        acks: int | None = None,
        timeout_ms: int | None = None,
        transactional_id: str | None = None,
        channel: str = PRODUCE,
    ) -> Produced:
        """Send whole batches unchanged, in one request to one broker."""
        return await raw_produce.produce_to(
            self,
            node_id,
            batches,
            acks=self.config.acks if acks is None else acks,
            timeout_ms=timeout_ms,
            transactional_id=transactional_id,
            channel=channel,
        )

    def begin_produce_to(
        self, node_id: int, batches: Mapping[TopicPartition, Records], *, acks: int
    ) -> ProduceCall | None:
        """As `produce_to`, if a connection is open; None if `produce_to` must open one first.

        For callers with many requests: it needs no task.
        """
        link = self.pool.ready(node_id, PRODUCE)
        if link is None:
            return None
        call = raw_produce.begin_produce(self, node_id, link, batches, acks=acks)
        call.watch()
        return call

    async def compare_and_append(
        self, requests: Mapping[TopicPartition, AppendRequest], *, timeout_ms: int | None = None
    ) -> AppendResults:
        """Append at given offsets if the logs end as expected; one attempt. Kafka Lite only."""
        return await compare_and_append.compare_and_append(self, requests, timeout_ms=timeout_ms)

    async def list_offsets(
        self, requested: Mapping[TopicPartition, int], *, isolation: str | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset for each timestamp (ms) or `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`."""
        return await offsets.list_offsets(
            self, requested, isolation=isolation or self.config.isolation_level
        )

    async def list_offsets_or_errors(
        self,
        requested: Mapping[TopicPartition, int],
        *,
        isolation: str | None = None,
        timeout_s: float,
    ) -> offsets.OffsetsAndErrors:
        """As `list_offsets`, with an error for each partition without an answer in time."""
        return await offsets.list_offsets_or_errors(
            self, requested, isolation=isolation or self.config.isolation_level, timeout_s=timeout_s
        )

    def _limits(
        self,
        max_wait_ms: int | None,
        min_bytes: int | None,
        max_bytes: int | None,
        partition_max_bytes: int | None,
        *,
        isolation: str | None,
    ) -> FetchLimits:
        config = self.config
        return FetchLimits(
            config.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms,
            config.fetch_min_bytes if min_bytes is None else min_bytes,
            config.fetch_max_bytes if max_bytes is None else max_bytes,
            config.max_partition_fetch_bytes
            if partition_max_bytes is None
            else partition_max_bytes,
            config.isolation_level if isolation is None else isolation,
        )
