"""The core of a client: bootstrap, metadata, choice of the broker, and retries.

Rules of this file:
- The client finds the cluster through the bootstrap servers, and uses them again when no known
  broker answers (KIP-899). Requests that any broker can answer are raced, see `race`.
- At most one metadata refresh runs at a time; concurrent callers share its response.
- `with_retries` is the only retry loop: it repeats retriable errors, refreshes the metadata where
  an error requires it, waits longer each time, and ends after `default.api.timeout.ms`.
- An idle client has no background tasks or timers.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from shoal.client.cluster.metadata import ClusterMetadata, MetadataCache, MetadataReader
from shoal.client.cluster.replica_choice import ReplicaSelector
from shoal.client.codes import Code
from shoal.client.config import ClientConfig, parse_address
from shoal.client.errors import (
    AuthenticationFailed,
    ClientClosed,
    ClientError,
    ConnectionLost,
    KafkaError,
    NoBrokersAvailable,
    RequestTimedOut,
    error_for,
)
from shoal.client.transport.backoff import Backoff
from shoal.client.transport.first_answer import AllFailed, race
from shoal.client.transport.handshake import Link
from shoal.client.transport.pool import CONTROL, Pool
from shoal.model.errors import ShoalError
from shoal.model.topics import TopicPartition
from shoal.runtime.context_managers import ClosesOnExit
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.messages import request_class

T = TypeVar("T")

# How long to wait for one address before the next one is tried as well.
_BOOTSTRAP_STAGGER_S: Final = 0.25
_METADATA_STAGGER_S: Final = 1.0
# A new topic is not known to all brokers at once; a missing topic never is.
_UNKNOWN_TOPIC_TIMEOUT_S: Final = 5.0


class Core(ClosesOnExit):
    """Connections, metadata and retries of one client."""

    def __init__(self, config: ClientConfig | Mapping[str, Any] | str | Path) -> None:
        self.config = (
            config if isinstance(config, ClientConfig) else ClientConfig.from_properties(config)
        )
        self.pool = Pool(self.config)
        self.request_timeout_s = self.config.request_timeout_ms / 1000
        self._cache = MetadataCache(self.config.metadata_max_age_ms / 1000)
        self._answers = MetadataReader()
        self.replica_selector = ReplicaSelector(max_age_s=self.config.metadata_max_age_ms / 1000)
        self._refreshing = asyncio.Lock()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Connect to the cluster; `NoBrokersAvailable` if none of the addresses answers."""
        try:
            await self.metadata(())
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self._is_closed = True
        await self.pool.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config!r})"

    # The cluster

    @property
    def cluster(self) -> ClusterMetadata:
        """The newest metadata, which may be out of date."""
        return self._cache.current

    async def metadata(
        self, topics: Iterable[str] | None = None, *, refresh: bool = False
    ) -> ClusterMetadata:
        """The metadata of the cluster with these topics (None: all topics, always refreshed).

        A topic that does not exist is included, with its `error`.
        """
        if topics is None:
            async with self._refreshing:
                return await self._ask_metadata(None)
        names = list(topics)
        self._cache.add_topics(names)
        if refresh:
            self._cache.invalidate()
        loop = asyncio.get_running_loop()
        if not self._cache.covers(names, loop.time()):
            async with self._refreshing:
                if not self._cache.covers(names, loop.time()):
                    await self._ask_metadata(sorted(self._cache.wanted))
        return self._cache.current

    async def metadata_of(self, topics: Iterable[str]) -> ClusterMetadata:
        """Fresh metadata of these topics alone, also while other topics are in use."""
        async with self._refreshing:
            return await self._ask_metadata(sorted(topics), is_part=True)

    async def recent_metadata(self, topics: Iterable[str], *, age_s: float) -> ClusterMetadata:
        """The metadata with these topics and all others in use, at most `age_s` old.

        The cached metadata stays valid for other callers meanwhile: nothing has invalidated it.
        """
        self._cache.add_topics(topics)
        async with self._refreshing:
            wanted = self._cache.wanted
            if self._cache.age_s(asyncio.get_running_loop().time()) > age_s:
                await self._ask_metadata(sorted(wanted))
        cluster = self._cache.current
        known = {name: topic for name, topic in cluster.topics.items() if name in wanted}
        return replace(cluster, topics=known)

    def is_current(self, topics: Iterable[str]) -> bool:
        """Whether `cluster` has these topics and is neither too old nor invalidated."""
        return self._cache.covers(topics, asyncio.get_running_loop().time())

    def forget(self, topics: Iterable[str]) -> None:
        """Stop requesting the metadata of these topics."""
        self._cache.forget(topics)

    def invalidate_metadata(self) -> None:
        """Mark the metadata as out of date; the next use refreshes it."""
        self._cache.invalidate()

    async def leader(self, tp: TopicPartition) -> int:
        """The leader of a partition; waits while it has none."""

        async def find_leader() -> int:
            cluster = await self.metadata([tp.topic])
            leader = cluster.leader(tp)
            if leader is not None:
                return leader
            raise error_for(cluster.leader_error(tp), topic=tp.topic, partition=tp.partition)

        return await self.with_retries(find_leader)

    # Requests

    def newest(self, api_key: int, *, at_least: int = 0, at_most: int | None = None) -> int:
        """The newest version that this client and all brokers it has connected to support."""
        if not self.pool.versions:
            raise ClientError("not connected to any broker yet, so no API versions are known")
        return min(
            versions.newest(api_key, at_least=at_least, at_most=at_most)
            for versions in self.pool.versions.values()
        )

    async def request(
        self, message: Any, *, node_id: int | None = None, channel: str = CONTROL
    ) -> Any:
        """Send a kio message and return its response; one attempt, to any broker by default."""
        link = await self.any_link(node_id, channel)
        return await link.send(message, timeout_s=self.request_timeout_s)

    async def call(
        self,
        api_key: int,
        values: Mapping[str, Any],
        *,
        node_id: int | None = None,
        at_least: int = 0,
        at_most: int | None = None,
        channel: str = CONTROL,
    ) -> Any:
        """Send a request, given as field values, in the newest version of the broker."""
        link = await self.any_link(node_id, channel)
        version = link.versions.newest(api_key, at_least=at_least, at_most=at_most)
        return await link.ask(api_key, version, values, timeout_s=self.request_timeout_s)

    async def any_link(self, node_id: int | None = None, channel: str = CONTROL) -> Link:
        """A connection to this broker, or to any broker."""
        self._check_open()
        if node_id is not None:
            return await self.pool.link(node_id, channel)
        if channel == CONTROL:
            ready = next(self.pool.ready_control_links(), None)
            if ready is not None:
                return ready[1]
        cluster = await self.metadata(())
        nodes = random.sample(sorted(cluster.brokers), len(cluster.brokers))
        runners = [partial(self.pool.link, node, channel) for node in nodes]
        try:
            return await race(runners, stagger_s=_BOOTSTRAP_STAGGER_S)
        except AllFailed as error:
            self._cache.invalidate()
            raise self._no_brokers_error(
                [str(cluster.brokers[node]) for node in nodes], error
            ) from None

    async def with_retries(
        self, attempt: Callable[[], Awaitable[T]], *, timeout_s: float | None = None
    ) -> T:
        """Call `attempt` until it succeeds, fails with a final error, or the time is over."""
        loop = asyncio.get_running_loop()
        limit_s = self.config.default_api_timeout_ms / 1000 if timeout_s is None else timeout_s
        began = loop.time()
        backoff = Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        while True:
            self._check_open()
            try:
                return await attempt()
            except ClientError as error:
                is_lost = isinstance(error, ConnectionLost | RequestTimedOut)
                if is_lost or (isinstance(error, KafkaError) and error.invalidates_metadata):
                    self._cache.invalidate()
                wait_s = backoff.next_wait_s()
                is_unknown = getattr(error, "code", None) == Code.UNKNOWN_TOPIC_OR_PARTITION
                max_wait_s = min(limit_s, _UNKNOWN_TOPIC_TIMEOUT_S) if is_unknown else limit_s
                if not error.retriable or loop.time() + wait_s - began >= max_wait_s:
                    raise
            await asyncio.sleep(wait_s)

    # Finding the cluster

    async def _ask_metadata(
        self, topics: list[str] | None, *, is_part: bool = False
    ) -> ClusterMetadata:
        link_of_answer, (version, frame) = await self._metadata_from_any(topics)
        answer = self._answers.read(frame, version)
        now = asyncio.get_running_loop().time()
        cluster = self._cache.update(answer, now, is_part=is_part)
        self.pool.set_brokers(cluster.brokers)
        if link_of_answer is not None:
            self._keep_bootstrap_link(link_of_answer)
        if topics is None:
            # The cache may still have topics that are not in this response.
            return replace(cluster, topics={name: cluster.topics[name] for name in answer.topics})
        return cluster

    async def _metadata_from_any(
        self, topics: list[str] | None
    ) -> tuple[Link | None, tuple[int, memoryview]]:
        """The version and frame of a response, and its connection if not in the pool yet."""
        self._check_open()
        links = [link for _, link in self.pool.ready_control_links()]
        open_nodes = {node for node, _ in self.pool.ready_control_links()}
        others = [node for node in self.cluster.brokers if node not in open_nodes]
        random.shuffle(others)
        runners: list[Callable[[], Awaitable[Any]]] = [
            *(partial(self._metadata_from, link, topics) for link in links),
            *(partial(self._metadata_from_node, node, topics) for node in others),
        ]
        if runners:
            try:
                return None, await race(runners, stagger_s=_METADATA_STAGGER_S)
            except AllFailed as error:
                self._raise_if_final(error)
        link = await self._bootstrap()
        try:
            return link, await self._metadata_from(link, topics)
        except BaseException:
            self.pool.discard(link)
            raise

    async def _metadata_from_node(
        self, node_id: int, topics: list[str] | None
    ) -> tuple[int, memoryview]:
        return await self._metadata_from(await self.pool.link(node_id), topics)

    async def _metadata_from(self, link: Link, topics: list[str] | None) -> tuple[int, memoryview]:
        # Version 0 cannot request an empty list of topics, and does not name the controller.
        version = link.versions.newest(ApiKey.METADATA, at_least=1)
        values = {
            "topics": None
            if topics is None
            else [{"topic_id": None, "name": name} for name in topics],
            "allow_auto_topic_creation": self.config.allow_auto_create_topics,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        request = build(request_class(ApiKey.METADATA, version), values)
        return version, await link.send_for_frame(request, timeout_s=self.request_timeout_s)

    async def _bootstrap(self) -> Link:
        addresses = self.config.bootstrap_servers
        runners = [partial(self.pool.open, *parse_address(address)) for address in addresses]
        try:
            return await race(runners, stagger_s=_BOOTSTRAP_STAGGER_S, discard=self.pool.discard)
        except AllFailed as error:
            self._raise_if_final(error)
            raise self._no_brokers_error(list(addresses), error) from None

    def _keep_bootstrap_link(self, link: Link) -> None:
        for broker in self.cluster.brokers.values():
            if link.connection.is_to(broker.host, broker.port):
                self.pool.adopt(broker.node_id, link)
                return
        self.pool.discard(link)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the client is closed")

    @staticmethod
    def _no_brokers_error(addresses: list[str], error: AllFailed) -> NoBrokersAvailable:
        reasons = [
            (address, str(failure))
            for address, failure in zip(addresses, error.failures, strict=True)
        ]
        return NoBrokersAvailable(reasons)

    @staticmethod
    def _raise_if_final(error: AllFailed) -> None:
        """Raise an authentication error: another address or a retry does not help."""
        final: ShoalError | None = next(
            (failure for failure in error.failures if isinstance(failure, AuthenticationFailed)),
            None,
        )
        if final is not None:
            raise final from None
