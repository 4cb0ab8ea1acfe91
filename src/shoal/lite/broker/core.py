"""A broker's state and actions, without its sockets.

Rules of this file:
- A broker replays the metadata log. Records from before its registration are history: they are
  applied to the state and have no other effect.
- A starting broker registers, becomes leader only after it has caught up with the metadata, and
  then sends heartbeats. A stopping broker first gives up its leaderships (controlled shutdown).
- Every change of the cluster is requested from the controller, and is visible in the state here
  when the request is answered.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import Layers
from shoal.lite.base.folder_lock import lock_folder
from shoal.lite.base.hooks import tracer
from shoal.lite.base.spec import BrokerSpec, own_settings
from shoal.lite.broker.fetch.replica_host import BrokerFetchHost
from shoal.lite.broker.traffic import Traffic
from shoal.lite.broker.unserved import UnservedReports
from shoal.lite.coordinator.groups.shard import GroupShard
from shoal.lite.coordinator.host import CoordinatorHost
from shoal.lite.coordinator.topics import GROUP_TOPIC, KeyType
from shoal.lite.coordinator.transactions.service import TransactionService
from shoal.lite.metadata.data.records import (
    BrokerRecord,
    ConfigRecord,
    PartitionRecord,
    Record,
    TopicRemovedRecord,
)
from shoal.lite.metadata.data.requests import (
    FENCED_CODES,
    NO_EPOCH,
    AllocateProducerIds,
    ControllerRequest,
    CreateTopic,
    Heartbeat,
    HeartbeatAnswer,
    NewTopicSpec,
    RegisterBroker,
    RegistrationAnswer,
)
from shoal.lite.metadata.data.state import ALL_BROKERS, MIRROR, TOPIC, ClusterState, Topic
from shoal.lite.metadata.rules.features import TRANSACTION_VERSION
from shoal.lite.metadata.rules.lookup import require_topic
from shoal.lite.metadata.server.link import ControllerLink
from shoal.lite.partitions.admission.refusals import Refusals
from shoal.lite.partitions.identity import check_identity, write_identity
from shoal.lite.partitions.partition import Partition
from shoal.lite.partitions.replicas import Replicas
from shoal.lite.partitions.sessions.replica_session import ReplicaSessions
from shoal.lite.raft.model import ReplicaKey
from shoal.lite.replication.fetch_sessions import FetchSessions
from shoal.lite.storage.recovery.shutdown_marker import ShutdownMarker, current_boot_id
from shoal.model.errors import SystemFailure
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import RestartBackoff, keep_running

A = TypeVar("A")
# The retry interval while no controller answers and while the broker is fenced.
_RETRY_S = 0.02
# Shorter than a session, so that one failed heartbeat does not end it.
_HEARTBEAT_BACKOFF = RestartBackoff(first_s=0.02, longest_s=1.0)
_SHUTDOWN_PATIENCE_S = 5.0
_SESSIONS_WAITED = 1.5
# Registration errors that pass: another process has the broker id and may be stopping, or the
# broker's metadata is outdated.
_TRANSIENT_ERRORS = frozenset({Code.DUPLICATE_BROKER_REGISTRATION, Code.STALE_BROKER_EPOCH})
_LINGER_S = 10.0
_logger = logging.getLogger(__name__)


class BrokerCore:
    """One broker's part of the cluster."""

    def __init__(self, spec: BrokerSpec, on_shutdown_required: Callable[[], None]) -> None:
        """`on_shutdown_required` is called if this process must stop; see `_require_shutdown`."""
        self.spec = spec
        # The settings that this broker was started with, by Apache Kafka's names.
        self._static = spec.properties
        self._lock = lock_folder(spec.path)
        check_identity(spec.path, spec.cluster_id, spec.broker_id)
        self._on_shutdown_required = on_shutdown_required
        self._marker = ShutdownMarker(spec.path)
        self._ended = self._marker.begin(spec.incarnation)
        _logger.info("how the previous process of this broker ended: %s", self._ended.value)
        self.state = ClusterState()
        key = ReplicaKey(spec.broker_id, UUID(self._marker.directory_id))
        write_identity(spec.path, spec.cluster_id, *key)
        self.controller = ControllerLink(key, spec.cluster_id, spec.controllers, self._on_records)
        self.replicas = Replicas(spec.broker_id, spec.path, self.controller.submit)
        # By key type; each coordinates the keys of the partitions that this broker leads.
        self.groups: CoordinatorHost[GroupShard] = CoordinatorHost(
            self, GROUP_TOPIC, partial(GroupShard, self)
        )
        self.transactions = TransactionService(self)
        self.coordinators: dict[KeyType, CoordinatorHost[Any]] = {
            KeyType.GROUP: self.groups,
            KeyType.TRANSACTION: self.transactions.host,
        }
        self._is_registered = False
        self._needs_full_update = True
        self._deleted_topics: set[str] = set()
        self._changed_partitions: set[tuple[UUID, int]] = set()
        # When brokers that were active became inactive, by the event loop's clock.
        self._fenced_at_s: dict[int, float] = {}
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._is_shutdown_required = False
        # Why the last heartbeat failed.
        self._heartbeat_error = ""
        self.fetch_sessions = FetchSessions(
            self.layers.integer("max.incremental.fetch.session.cache.slots")
        )
        session_ids = Random()  # noqa: S311 - ids are not secret
        self.replica_sessions = ReplicaSessions(BrokerFetchHost(self), session_ids)
        self._producer_ids: Iterable[int] = iter(())
        self.refusals = Refusals()
        self.unserved = UnservedReports()
        self.traffic = Traffic()

    @property
    def broker_id(self) -> int:
        return self.spec.broker_id

    @property
    def transaction_version(self) -> int:
        """The finalized transaction.version of the cluster."""
        return self.state.features()[TRANSACTION_VERSION]

    @property
    def layers(self) -> Layers:
        """The layers in which settings are looked up."""
        return Layers(
            dynamic=self.state.broker_configs(str(self.spec.broker_id)),
            dynamic_default=self.state.broker_configs(ALL_BROKERS),
            static=self._static,
        )

    # Starting and ending

    async def register(self, port: int) -> None:
        """Register, still fenced, and open all replicas. `port` is the listener of clients."""
        self._static = own_settings(self.spec, port) | self.spec.properties
        self.controller.start()
        if tracer.current is not None:
            tracer.current.event("registers with the controller")
        registered = await self._register_with_controller(port)
        self.replicas.broker_epoch = registered.broker_epoch
        self._is_registered = True
        self._fenced_at_s.clear()
        self.replicas.open(self.state, self.layers, self._ended)
        self._marker.run(self.spec.incarnation, has_all_logs=not self.replicas.offline)
        self._needs_full_update = False
        self._changed_partitions.clear()
        self._update_coordinators()
        self.replicas.on_opened = self._update_coordinators
        if report := self.replicas.loss_report():
            try:
                await self._submit_with_retry(report)
            except ApiError as error:
                raise self._registration_error(error) from error
            self.replicas.mark_losses_reported()

    async def _register_with_controller(self, port: int) -> RegistrationAnswer:
        patience_s = _SESSIONS_WAITED * self.layers.integer("broker.session.timeout.ms") / 1000
        deadline_s: float | None = None
        while True:
            # The metadata here may be behind; the missing records arrive before a rejection.
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
                return await self._submit_with_retry(request)
            except ApiError as error:
                # The previous process may have died unnoticed; then its session expires soon. The
                # time counts from the first answer, because controllers may start later.
                now_s = asyncio.get_running_loop().time()
                deadline_s = now_s + patience_s if deadline_s is None else deadline_s
                if error.code not in _TRANSIENT_ERRORS or now_s >= deadline_s:
                    raise self._registration_error(error) from error
            await asyncio.sleep(_RETRY_S)

    def _registration_error(self, error: ApiError) -> SystemFailure:
        remedy = None
        if error.code == Code.INVALID_REGISTRATION:
            remedy = (
                f"restore the newer folder; or delete {self._marker.path}: the folder is then "
                "treated as empty, and the broker copies what it lacks from the other brokers"
            )
        return SystemFailure(f"the controller rejected this broker: {error}", remedy=remedy)

    async def _submit_with_retry(self, request: ControllerRequest[A]) -> A:
        """Submit a request, and retry until a controller answers."""
        while True:
            try:
                return await self.controller.submit(request)
            except ApiError as error:
                if error.code != Code.NOT_CONTROLLER:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def wait_until_unfenced(self) -> None:
        """Send heartbeats until the controller unfences this broker, and from then on."""
        while True:
            answer = await self._send_heartbeat()
            if answer is not None and not answer.is_fenced:
                break
            if self._is_shutdown_required:
                raise SystemFailure(
                    f"the controller fenced broker {self.spec.broker_id} while it started: another "
                    "process registered with this broker id, or the broker was removed",
                    remedy="start it again, if no other process is to have this broker id",
                )
            await asyncio.sleep(_RETRY_S)
        # Without heartbeats the controller would fence this broker although it works.
        self._heartbeat_task = keep_running(
            "heartbeat", self._send_heartbeats, backoff=_HEARTBEAT_BACKOFF
        )

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self.layers.integer("broker.heartbeat.interval.ms") / 1000)
            answer = await self._send_heartbeat()
            while answer is None or answer.is_fenced:
                await asyncio.sleep(_RETRY_S)
                answer = await self._send_heartbeat()

    async def _send_heartbeat(self, *, want_shutdown: bool = False) -> HeartbeatAnswer | None:
        beat = Heartbeat(
            self.spec.broker_id,
            self.replicas.broker_epoch,
            self.state.applied_count,
            want_shutdown=want_shutdown,
        )
        try:
            answer = await self.controller.submit(beat)
        except ApiError as error:
            # Heartbeats are retried many times a second: log the same error once.
            if (reason := str(error)) != self._heartbeat_error:
                _logger.warning("a heartbeat failed: %s", reason)
                self._heartbeat_error = reason
            if error.code in FENCED_CODES:
                self._require_shutdown("fenced by the controller")
            return None
        self._heartbeat_error = ""
        if answer.should_shut_down and not want_shutdown:
            self._require_shutdown("fenced by the controller")
        return answer

    def _require_shutdown(self, reason: str) -> None:
        """Ask the owner of this process to stop it."""
        _logger.warning("%s; shutting down", reason)
        self._is_shutdown_required = True
        self._on_shutdown_required()

    async def stop(self) -> None:
        """Stop cleanly: give up all leaderships, then flush and close all logs."""
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._heartbeat_task
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_PATIENCE_S):
                await self._send_heartbeat(want_shutdown=True)
        await self.controller.close()
        for host in self.coordinators.values():
            await host.close()
        await self.transactions.close()
        if await self.replicas.close():
            self._marker.end_cleanly()

    # Looking things up

    def topic(self, name: str) -> Topic:
        return require_topic(self.state, name)

    def partition(self, topic: str, index: int) -> Partition:
        """Return the replica; `ApiError` if this broker has none, or if it is offline."""
        try:
            return self.replicas.partition(TopicPartition(topic, index))
        except ApiError as error:
            known = self.state.topics.get(topic)
            if error.code != Code.UNKNOWN_TOPIC_OR_PARTITION or known is None:
                raise
            if index not in known.partitions:
                raise
            message = f"broker {self.spec.broker_id} has no replica of {topic}-{index}"
            raise ApiError(Code.NOT_LEADER_OR_FOLLOWER, message) from error

    def topic_name(self, topic_id: UUID | None) -> str:
        """Return the name of a topic id; `ApiError` if the topic does not exist."""
        name = None if topic_id is None else self.state.topic_names.get(topic_id)
        if name is None:
            raise ApiError(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return name

    def brokers_for_clients(self) -> list[BrokerRecord]:
        """Return the brokers listed in Metadata answers: active ones, and recently active ones.

        librdkafka immediately forgets a broker that is not listed, including where the partitions
        that it led have just moved to; it takes a second or two to find them again.
        """
        now_s = asyncio.get_running_loop().time()
        return [
            broker
            for broker in self.state.brokers.values()
            if self.state.is_active(broker.broker_id)
            or now_s - self._fenced_at_s.get(broker.broker_id, -_LINGER_S) < _LINGER_S
        ]

    # Changing things

    async def create_topic(self, new_topic: NewTopicSpec) -> Topic:
        await self.controller.submit(CreateTopic(new_topic, uuid.uuid4()))
        return self.topic(new_topic.name)

    async def new_producer_id(self) -> int:
        """Return a producer id that was never used in this cluster."""
        for producer_id in self._producer_ids:
            return producer_id
        request = AllocateProducerIds(self.spec.broker_id, self.replicas.broker_epoch)
        block = await self.controller.submit(request)
        self._producer_ids = iter(range(block.first, block.first + block.count))
        return await self.new_producer_id()

    # Applying the metadata

    def _on_records(self, records: list[Record], is_snapshot: bool) -> None:
        try:
            self._apply_records(records, is_snapshot=is_snapshot)
        except Exception:
            # A broker with wrong metadata must not continue to serve.
            _logger.exception("the metadata cannot be applied")
            self._require_shutdown("the metadata cannot be applied")
            raise

    def _apply_records(self, records: list[Record], *, is_snapshot: bool) -> None:
        before = self.state
        if is_snapshot:
            self.state = ClusterState()
            self._needs_full_update = True
        for record in records:
            if isinstance(record, BrokerRecord) and self.state.is_active(record.broker_id):
                self._fenced_at_s[record.broker_id] = asyncio.get_running_loop().time()
            if isinstance(record, TopicRemovedRecord):
                self._deleted_topics.add(self.state.topic_names[record.topic_id])
            self.state.apply(record)
            if isinstance(record, PartitionRecord):
                self._changed_partitions.add(record.key)
            elif isinstance(record, ConfigRecord):
                self._on_config_changed(record)
        if is_snapshot:
            # A snapshot does not contain deletions: compare with the state before it.
            self._deleted_topics |= {
                name
                for topic_id, name in before.topic_names.items()
                if topic_id not in self.state.topic_names
            }
        if self._is_registered:
            self._update_replicas()

    def _on_config_changed(self, record: ConfigRecord) -> None:
        if record.owner_kind not in {TOPIC, MIRROR}:
            self._needs_full_update = True
        elif record.owner_kind == TOPIC and (topic := self.state.topics.get(record.owner)):
            self._changed_partitions.update(
                partition.key for partition in topic.partitions.values()
            )

    def _update_replicas(self) -> None:
        if self._needs_full_update:
            changed = list(self.state.partitions())
        else:
            changed = [
                self.state.partition(*key)
                for key in self._changed_partitions
                if key[0] in self.state.topic_names
            ]
        self._needs_full_update = False
        self._changed_partitions.clear()
        self.replicas.apply_metadata(self.state, self.layers, changed)
        self._update_coordinators()

    def _update_coordinators(self) -> None:
        # Not the shards that start to load now: their offsets may be of topics that were created
        # again after the deletion.
        shards = self.groups.shards()
        for host in self.coordinators.values():
            host.apply_metadata()
        if self._deleted_topics:
            deleted, self._deleted_topics = self._deleted_topics, set()
            for shard in shards:
                shard.forget_topics(deleted)
