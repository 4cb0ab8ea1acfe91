"""What a broker knows and does, without its sockets.

Rules of this file:
- A broker follows the metadata log. Until that names this very process, it is history: it is
  applied, and nothing is done because of it.
- A broker that starts registers itself, is told what it leads once it has caught up with the
  metadata, and says again and again that it lives. One that ends gives its leaderships away
  first.
- Whatever changes the cluster is asked of the controller, and seen here when it is answered.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.configs import Layers
from shoal.lite.base.folder_lock import lock_folder
from shoal.lite.base.hooks import tracer
from shoal.lite.base.spec import BrokerSpec, own_settings
from shoal.lite.broker.unserved import UnservedReports
from shoal.lite.coordinator.groups.shard import GroupShard
from shoal.lite.coordinator.host import CoordinatorHost
from shoal.lite.coordinator.topics import GROUP_TOPIC, KeyType
from shoal.lite.coordinator.transactions.service import Transactions
from shoal.lite.metadata.data.records import (
    BrokerRecord,
    ConfigRecord,
    PartitionRecord,
    Record,
    TopicRemovedRecord,
)
from shoal.lite.metadata.data.requests import (
    DISMISSALS,
    NO_EPOCH,
    AllocateProducerIds,
    CreateTopic,
    Heartbeat,
    HeartbeatAnswer,
    NewTopic,
    RegisterBroker,
    Registered,
    Request,
)
from shoal.lite.metadata.data.state import ALL_BROKERS, MIRROR, TOPIC, ClusterState, Topic
from shoal.lite.metadata.rules.features import TRANSACTION_VERSION
from shoal.lite.metadata.rules.lookup import existing_topic
from shoal.lite.metadata.server.link import ControllerLink
from shoal.lite.partitions.identity import check_identity, sign
from shoal.lite.partitions.partition import Partition
from shoal.lite.partitions.refusals import Refusals
from shoal.lite.partitions.replicas import Replicas
from shoal.lite.raft.model import ReplicaKey
from shoal.lite.replication.fetch_sessions import FetchSessions
from shoal.lite.storage.recovery.shutdown_marker import ShutdownMarker, current_boot_id
from shoal.model.errors import SystemFailure
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import Backoff, keep_running

if TYPE_CHECKING:
    from shoal.lite.broker.fetch.replica_fetch import ReplicaSession

A = TypeVar("A")
# How soon to ask again: while nobody answers, and while the broker is fenced.
_RETRY_S = 0.02
# Shorter than a session, so that one failed heartbeat does not cost it.
_HEARTBEAT_BACKOFF = Backoff(first_s=0.02, longest_s=1.0)
_SHUTDOWN_PATIENCE_S = 5.0
_SESSIONS_WAITED = 1.5
# Refusals of a registration that end by themselves: another process has the id and may be ending,
# and what is known of it here is not the latest.
_PASSING = frozenset({Code.DUPLICATE_BROKER_REGISTRATION, Code.STALE_BROKER_EPOCH})
_LINGER_S = 10.0
_logger = logging.getLogger(__name__)


class BrokerCore:
    """One broker's part of the cluster."""

    def __init__(self, spec: BrokerSpec, on_dismissed: Callable[[], None]) -> None:
        """`on_dismissed` is called if the cluster wants this process no more."""
        self.spec = spec
        # What this broker was started with, by Apache Kafka's names.
        self._static = spec.properties
        self._lock = lock_folder(spec.path)
        check_identity(spec.path, spec.cluster_id, spec.broker_id)
        self._on_dismissed = on_dismissed
        self._marker = ShutdownMarker(spec.path)
        self._ended = self._marker.begin(spec.incarnation)
        _logger.info("the last process of this broker ended: %s", self._ended.value)
        self.state = ClusterState()
        key = ReplicaKey(spec.broker_id, UUID(self._marker.directory_id))
        sign(spec.path, spec.cluster_id, *key)
        self.controller = ControllerLink(key, spec.cluster_id, spec.controllers, self._on_records)
        self.replicas = Replicas(spec.broker_id, spec.path, self.controller.submit)
        # By what clients ask for; each coordinates the keys of the partitions that are led here.
        self.groups: CoordinatorHost[GroupShard] = CoordinatorHost(
            self, GROUP_TOPIC, partial(GroupShard, self)
        )
        self.transactions = Transactions(self)
        self.coordinators: dict[KeyType, CoordinatorHost[Any]] = {
            KeyType.GROUP: self.groups,
            KeyType.TRANSACTION: self.transactions.host,
        }
        self._is_following = False
        self._is_all_new = True
        self._deleted_topics: set[str] = set()
        self._changed: set[tuple[UUID, int]] = set()
        # When brokers that are not counted on any more were last, by the event loop's clock.
        self._left_s: dict[int, float] = {}
        self._heart: asyncio.Task[None] | None = None
        self._is_dismissed = False
        # Why the last heartbeat had no answer.
        self._heartbeat_trouble = ""
        self.fetch_sessions = FetchSessions(
            self.layers.integer("max.incremental.fetch.session.cache.slots")
        )
        # By the followers' ids.
        self.replica_sessions: dict[int, ReplicaSession] = {}
        self._producer_ids: Iterable[int] = iter(())
        self.refusals = Refusals()
        self.unserved = UnservedReports()

    @property
    def broker_id(self) -> int:
        return self.spec.broker_id

    @property
    def transaction_version(self) -> int:
        """Which protocol of transactions the cluster has agreed on."""
        return self.state.features()[TRANSACTION_VERSION]

    @property
    def layers(self) -> Layers:
        """Where to look for a setting's value."""
        return Layers(
            dynamic=self.state.broker_configs(str(self.spec.broker_id)),
            dynamic_default=self.state.broker_configs(ALL_BROKERS),
            static=self._static,
        )

    # Starting and ending

    async def register(self, port: int) -> None:
        """Become a broker of the cluster, fenced, with all replicas open. `port` is for clients."""
        self._static = own_settings(self.spec, port) | self.spec.properties
        self.controller.start()
        if tracer.current is not None:
            tracer.current.event("registers with the controller")
        registered = await self._registered(port)
        self.replicas.broker_epoch = registered.broker_epoch
        self._is_following = True
        self._left_s.clear()
        self.replicas.open(self.state, self.layers, self._ended)
        self._marker.run(self.spec.incarnation, vouches=not self.replicas.offline)
        self._is_all_new = False
        self._changed.clear()
        self._follow_coordinators()
        self.replicas.on_opened = self._follow_coordinators
        if losses := self.replicas.losses():
            try:
                await self._submitted(losses)
            except Refused as refused:
                raise self._refused(refused) from refused
            self.replicas.losses_told()

    async def _registered(self, port: int) -> Registered:
        patience_s = _SESSIONS_WAITED * self.layers.integer("broker.session.timeout.ms") / 1000
        deadline_s: float | None = None
        while True:
            # The metadata here may be behind; a refusal comes with what was missing.
            before = self.state.brokers.get(self.spec.broker_id)
            request = RegisterBroker(
                self.spec.broker_id,
                self.spec.incarnation,
                self.spec.advertised_host,
                port,
                boot_id=current_boot_id(),
                directory_id=self._marker.directory_id,
                earlier=self._marker.earlier,
                previous_epoch=NO_EPOCH if before is None else before.epoch,
                clean_incarnation=self._marker.clean_incarnation,
                rack=self.spec.properties.get("broker.rack") or None,
            )
            try:
                return await self._submitted(request)
            except Refused as refused:
                # A process before this one may have ended unseen; then its session ends soon. From
                # the first answer on: controllers that are not there yet are waited for.
                now_s = asyncio.get_running_loop().time()
                deadline_s = now_s + patience_s if deadline_s is None else deadline_s
                if refused.code not in _PASSING or now_s >= deadline_s:
                    raise self._refused(refused) from refused
            await asyncio.sleep(_RETRY_S)

    def _refused(self, refused: Refused) -> SystemFailure:
        remedy = None
        if refused.code == Code.INVALID_REGISTRATION:
            remedy = (
                f"put the newer folder back; or delete {self._marker.path}: then it is taken in "
                "like an empty one, and gets what it lacks from the other brokers"
            )
        return SystemFailure(f"the cluster refuses this broker: {refused}", remedy=remedy)

    async def _submitted(self, request: Request[A]) -> A:
        """The answer of whatever controller is there at last."""
        while True:
            try:
                return await self.controller.submit(request)
            except Refused as refused:
                if refused.code != Code.NOT_CONTROLLER:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def enter(self) -> None:
        """Be counted on from now on; returns when this broker leads what it is to lead."""
        while True:
            answer = await self._beat()
            if answer is not None and not answer.is_fenced:
                break
            if self._is_dismissed:
                raise SystemFailure("the cluster wants this broker no more")
            await asyncio.sleep(_RETRY_S)
        # Without heartbeats the controller would fence this broker though it works.
        self._heart = keep_running("heartbeat", self._live, backoff=_HEARTBEAT_BACKOFF)

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(self.layers.integer("broker.heartbeat.interval.ms") / 1000)
            answer = await self._beat()
            while answer is None or answer.is_fenced:
                await asyncio.sleep(_RETRY_S)
                answer = await self._beat()

    async def _beat(self, *, want_shutdown: bool = False) -> HeartbeatAnswer | None:
        beat = Heartbeat(
            self.spec.broker_id,
            self.replicas.broker_epoch,
            self.state.applied_count,
            want_shutdown=want_shutdown,
        )
        try:
            answer = await self.controller.submit(beat)
        except Refused as refused:
            # It is tried many times a second: the same trouble is told once.
            if (trouble := str(refused)) != self._heartbeat_trouble:
                _logger.warning("no answer to a heartbeat: %s", trouble)
                self._heartbeat_trouble = trouble
            if refused.code in DISMISSALS:
                self._dismiss()
            return None
        self._heartbeat_trouble = ""
        if answer.should_shut_down and not want_shutdown:
            self._dismiss()
        return answer

    def _dismiss(self) -> None:
        _logger.warning("the controller counts on this process no more")
        self._is_dismissed = True
        self._on_dismissed()

    async def stop(self) -> None:
        """Give all leaderships away, bring everything to the disk and let go of it."""
        if self._heart is not None:
            self._heart.cancel()
            with suppress(asyncio.CancelledError):
                await self._heart
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_PATIENCE_S):
                await self._beat(want_shutdown=True)
        await self.controller.close()
        for host in self.coordinators.values():
            await host.close()
        await self.transactions.close()
        if await self.replicas.close():
            self._marker.end_cleanly()

    # Looking things up

    def topic(self, name: str) -> Topic:
        return existing_topic(self.state, name)

    def partition(self, topic: str, index: int) -> Partition:
        """The replica; `Refused` if there is none here, or if it is offline."""
        try:
            return self.replicas.partition(TopicPartition(topic, index))
        except Refused as refused:
            known = self.state.topics.get(topic)
            if refused.code != Code.UNKNOWN_TOPIC_OR_PARTITION or known is None:
                raise
            if index not in known.partitions:
                raise
            message = f"{topic}-{index} has no replica at broker {self.spec.broker_id}"
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, message) from refused

    def topic_name(self, topic_id: UUID | None) -> str:
        """The name behind a topic's id; `Refused` if there is no such topic."""
        name = None if topic_id is None else self.state.topic_names.get(topic_id)
        if name is None:
            raise Refused(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return name

    def listed_brokers(self) -> list[BrokerRecord]:
        """The brokers that clients are told of: those that serve, or did a moment ago.

        librdkafka forgets a broker that is not listed at once, and with it where the partitions
        that it led have just moved to; it takes a second or two to find them again.
        """
        now_s = asyncio.get_running_loop().time()
        return [
            broker
            for broker in self.state.brokers.values()
            if self.state.is_active(broker.broker_id)
            or now_s - self._left_s.get(broker.broker_id, -_LINGER_S) < _LINGER_S
        ]

    # Changing things

    async def create_topic(self, wish: NewTopic) -> Topic:
        await self.controller.submit(CreateTopic(wish, uuid.uuid4()))
        return self.topic(wish.name)

    async def new_producer_id(self) -> int:
        """An id that no producer of this cluster has had."""
        for producer_id in self._producer_ids:
            return producer_id
        request = AllocateProducerIds(self.spec.broker_id, self.replicas.broker_epoch)
        block = await self.controller.submit(request)
        self._producer_ids = iter(range(block.first, block.first + block.count))
        return await self.new_producer_id()

    # Following the metadata

    def _on_records(self, records: list[Record], begins_anew: bool) -> None:
        try:
            self._take_in(records, begins_anew=begins_anew)
        except Exception:
            # Whoever does not know what the cluster is must not go on as if it did.
            _logger.exception("the metadata cannot be followed")
            self._dismiss()
            raise

    def _take_in(self, records: list[Record], *, begins_anew: bool) -> None:
        before = self.state
        if begins_anew:
            self.state = ClusterState()
            self._is_all_new = True
        for record in records:
            if isinstance(record, BrokerRecord) and self.state.is_active(record.broker_id):
                self._left_s[record.broker_id] = asyncio.get_running_loop().time()
            if isinstance(record, TopicRemovedRecord):
                self._deleted_topics.add(self.state.topic_names[record.topic_id])
            self.state.apply(record)
            if isinstance(record, PartitionRecord):
                self._changed.add(record.key)
            elif isinstance(record, ConfigRecord):
                self._note_config(record)
        if begins_anew:
            # A snapshot does not say what was deleted.
            self._deleted_topics |= {
                name
                for topic_id, name in before.topic_names.items()
                if topic_id not in self.state.topic_names
            }
        if self._is_following:
            self._follow()

    def _note_config(self, record: ConfigRecord) -> None:
        if record.owner_kind not in {TOPIC, MIRROR}:
            self._is_all_new = True
        elif record.owner_kind == TOPIC and (topic := self.state.topics.get(record.owner)):
            self._changed.update(partition.key for partition in topic.partitions.values())

    def _follow(self) -> None:
        if self._is_all_new:
            changed = list(self.state.partitions())
        else:
            changed = [
                self.state.partition(*key)
                for key in self._changed
                if key[0] in self.state.topic_names
            ]
        self._is_all_new = False
        self._changed.clear()
        self.replicas.follow(self.state, self.layers, changed)
        self._follow_coordinators()

    def _follow_coordinators(self) -> None:
        # Not those that begin now: what they load may be of topics created after the deletion.
        shards = self.groups.shards()
        for host in self.coordinators.values():
            host.follow()
        if self._deleted_topics:
            deleted, self._deleted_topics = self._deleted_topics, set()
            for shard in shards:
                shard.forget_topics(deleted)
