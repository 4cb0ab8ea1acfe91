"""The client: every call that a user of a cluster makes, over one `Core`.

    async with Client({"bootstrap.servers": "localhost:9092"}) as client:
        cluster = await client.metadata(["topic"])
        ends = await client.list_offsets({tp: LATEST for tp in cluster.partitions_of("topic")})

What each call promises stands in the module that does it: `fetching`, `producing`,
`appending`, `offsets`, `admin`. Sessions that number and repeat batches are in `producer` and
`transactions`, reading with positions is in `consumer`.
"""

from collections.abc import Mapping
from functools import cached_property

from shoal.client.admin import Admin
from shoal.client.cluster.router import Core
from shoal.client.consume import offsets, raw_fetch
from shoal.client.consume.raw_fetch import Fetched, FetchLimits
from shoal.client.produce import compare_and_append, raw_produce
from shoal.client.produce.compare_and_append import Appended, Appendix
from shoal.client.produce.raw_produce import Produced
from shoal.client.results import ListedOffset
from shoal.client.transport.pool import FETCH, PRODUCE
from shoal.model.topics import TopicPartition
from shoal.wire.produce import Records


class Client(Core):
    """A client of one cluster; to be used from one event loop."""

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
        """Raw record sets from these offsets on, from all leaders or nearer replicas at once."""
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

        Fetches on one channel are answered one after the other. A leader may name a nearer
        replica instead of records, unless `rack_id` (by default `client.rack`) is empty.
        """
        limits = self._limits(
            max_wait_ms, min_bytes, max_bytes, partition_max_bytes, isolation=isolation
        )
        return await raw_fetch.fetch_from(
            self, node_id, positions, limits=limits, channel=channel, rack_id=rack_id
        )

    async def produce(
        self,
        batches: Mapping[TopicPartition, Records],
        *,
        acks: int | None = None,
        timeout_ms: int | None = None,
        transactional_id: str | None = None,
    ) -> Produced:
        """Whole batches as they are: one try, one request to each leader."""
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
        """Whole batches as they are, in one request to one broker."""
        return await raw_produce.produce_to(
            self,
            node_id,
            batches,
            acks=self.config.acks if acks is None else acks,
            timeout_ms=timeout_ms,
            transactional_id=transactional_id,
            channel=channel,
        )

    async def compare_and_append(
        self, wishes: Mapping[TopicPartition, Appendix], *, timeout_ms: int | None = None
    ) -> Appended:
        """Append at given offsets where logs end as expected; Kafka Lite only. One try."""
        return await compare_and_append.compare_and_append(self, wishes, timeout_ms=timeout_ms)

    async def list_offsets(
        self, asked: Mapping[TopicPartition, int], *, isolation: str | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset for each timestamp (ms) or `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`."""
        return await offsets.list_offsets(
            self, asked, isolation=isolation or self.config.isolation_level
        )

    async def list_offsets_each(
        self,
        asked: Mapping[TopicPartition, int],
        *,
        isolation: str | None = None,
        timeout_s: float,
    ) -> offsets.EachListed:
        """As `list_offsets`, with an error for each partition that does not answer in time."""
        return await offsets.list_offsets_each(
            self, asked, isolation=isolation or self.config.isolation_level, timeout_s=timeout_s
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
