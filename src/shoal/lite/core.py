"""What a broker knows and does, without its sockets.

Rules of this file:
- The metadata decides: partitions are opened, configured and removed because a record says
  so, at start as well as later, never because a client asked.
- A partition that cannot be opened is offline, and says why; the others are served.
- A folder that belongs to no topic of the metadata is what a crash left of a deletion; it is
  removed at start.
"""

import base64
import logging
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from shoal.lite.codes import Code, Refused
from shoal.lite.configs import Layers, topic_rules
from shoal.lite.controller.controller import ControllerSettings
from shoal.lite.controller.embedded import EmbeddedController
from shoal.lite.controller.lookup import existing_topic
from shoal.lite.controller.records import (
    ConfigRecord,
    PartitionRecord,
    Record,
    TopicRemovedRecord,
)
from shoal.lite.controller.requests import (
    AllocateProducerIds,
    BrokersDied,
    CreateTopic,
    Heartbeat,
    NewTopic,
    RegisterBroker,
)
from shoal.lite.controller.state import ALL_BROKERS, TOPIC, ClusterState, Topic
from shoal.lite.controller.status import why_offline
from shoal.lite.log.files import DamagedFile, replace_file
from shoal.lite.log.partition_log import Ended, LogOffline, PartitionLog
from shoal.lite.log.scan import DamagedLog
from shoal.lite.partition import Partition
from shoal.lite.shutdown_marker import ShutdownMarker, current_boot_id
from shoal.lite.spec import BrokerSpec
from shoal.model.topics import TopicPartition

PARTITION_METADATA = "partition.metadata"
_DELETED_SUFFIX = "-delete"
_logger = logging.getLogger(__name__)


class BrokerCore:
    """One broker's part of the cluster."""

    def __init__(self, spec: BrokerSpec) -> None:
        """Open the metadata. `start` opens the partitions."""
        self.spec = spec
        spec.path.mkdir(parents=True, exist_ok=True)
        settings = ControllerSettings(properties=spec.properties)
        self.controller = EmbeddedController(spec.metadata_path, spec.cluster_id, settings)
        self._incarnation = uuid.uuid4().hex
        self._marker = ShutdownMarker(spec.path)
        self._ended = Ended.CLEANLY
        self._partitions: dict[TopicPartition, Partition] = {}
        self._offline: dict[TopicPartition, str] = {}
        self._producer_ids: Iterable[int] = iter(())
        self._epoch = -1

    @property
    def state(self) -> ClusterState:
        return self.controller.state

    @property
    def layers(self) -> Layers:
        """Where to look for a setting's value."""
        return Layers(
            dynamic=self.state.broker_configs(str(self.spec.broker_id)),
            dynamic_default=self.state.broker_configs(ALL_BROKERS),
            static=self.spec.properties,
        )

    async def start(self, port: int) -> None:
        """Open all partitions and enter the cluster; `port` is where clients are served."""
        self._ended = self._marker.begin(self._incarnation)
        _logger.info("the last process of this broker ended: %s", self._ended.value)
        self._remove_strays()
        await self._register(port)
        for topic in self.state.topics.values():
            for record in topic.partitions.values():
                self._on_partition(record)
        # What is made from now on is new: there is nothing to recover.
        self._ended = Ended.CLEANLY
        self.controller.listen(self._on_record)

    async def _register(self, port: int) -> None:
        before = self.state.brokers.get(self.spec.broker_id)
        if before is not None:
            # The folder is ours alone, so the process before us has ended.
            await self.controller.submit(BrokersDied({before.broker_id: before.incarnation}))
        request = RegisterBroker(
            self.spec.broker_id,
            self._incarnation,
            self.spec.host,
            port,
            boot_id=current_boot_id(),
            directory_id=self._marker.directory_id,
            clean_incarnation=self._marker.clean_incarnation,
        )
        self._epoch = (await self.controller.submit(request)).broker_epoch
        # The state is the controller's own, so this broker is caught up with it.
        beat = Heartbeat(self.spec.broker_id, self._epoch, self.state.applied_count)
        await self.controller.submit(beat)

    def stop(self) -> None:
        """Bring everything to the disk and let go of it."""
        clean = True
        for partition in self._partitions.values():
            try:
                partition.log.flush()
                partition.log.close()
            except (LogOffline, OSError):
                clean = False
                _logger.exception("%s was not closed cleanly", partition.log.folder.name)
        self.controller.close()
        if clean:
            self._marker.end_cleanly()

    # Looking things up

    def topic(self, name: str) -> Topic:
        return existing_topic(self.state, name)

    def partition(self, topic: str, index: int) -> Partition:
        """The partition; `Refused` if there is none here, or if it is offline."""
        key = TopicPartition(topic, index)
        partition = self._partitions.get(key)
        if partition is None:
            if key in self._offline:
                raise LogOffline(self._offline[key])
            message = "This server does not host this topic-partition."
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, message)
        if partition.record.leader != self.spec.broker_id:
            reason = why_offline(partition.record) or "another broker leads"
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{key}: {reason}")
        return partition

    def topic_name(self, topic_id: UUID | None) -> str:
        """The name behind a topic's id; `Refused` if there is no such topic."""
        name = None if topic_id is None else self.state.topic_names.get(topic_id)
        if name is None:
            raise Refused(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return name

    # Changing things

    async def create_topic(self, wish: NewTopic) -> Topic:
        await self.controller.submit(CreateTopic(wish, uuid.uuid4()))
        return self.topic(wish.name)

    async def new_producer_id(self) -> int:
        """An id that no producer of this cluster has had."""
        for producer_id in self._producer_ids:
            return producer_id
        request = AllocateProducerIds(self.spec.broker_id, self._epoch)
        block = await self.controller.submit(request)
        self._producer_ids = iter(range(block.first, block.first + block.count))
        return await self.new_producer_id()

    # Following the metadata

    def _on_record(self, record: Record) -> None:
        if isinstance(record, PartitionRecord):
            self._on_partition(record)
        elif isinstance(record, TopicRemovedRecord):
            self._on_topic_removed(record.topic_id)
        elif isinstance(record, ConfigRecord):
            self._on_config(record)

    def _on_partition(self, record: PartitionRecord) -> None:
        if self.spec.broker_id not in record.replicas:
            return
        name = self.state.topic_names[record.topic_id]
        key = TopicPartition(name, record.partition)
        partition = self._partitions.get(key)
        if partition is not None:
            partition.record = record
            return
        rules = topic_rules(self.layers, self.state.topic_configs(name))
        folder = self.spec.path / str(key)
        try:
            log = PartitionLog(folder, rules.log, ended=self._ended)
            _write_partition_metadata(folder, record.topic_id)
        except (DamagedFile, DamagedLog, OSError) as error:
            self._offline[key] = f"{key} is offline: {error}"
            _logger.exception("%s cannot be opened", key)
            return
        self._partitions[key] = Partition(name, record, log, rules)

    def _on_topic_removed(self, topic_id: UUID) -> None:
        gone = [
            key
            for key, partition in self._partitions.items()
            if partition.record.topic_id == topic_id
        ]
        for key in gone:
            partition = self._partitions.pop(key)
            partition.leave()
            partition.log.close()
            # Out of the way first, so that a topic of the same name finds no trace of it.
            folder = partition.log.folder
            doomed = folder.with_name(f"{folder.name}.{topic_id.hex}{_DELETED_SUFFIX}")
            folder.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        for key in [key for key in self._offline if key.topic not in self.state.topics]:
            del self._offline[key]

    def _on_config(self, record: ConfigRecord) -> None:
        for key, partition in self._partitions.items():
            if record.owner_kind != TOPIC or record.owner == key.topic:
                rules = topic_rules(self.layers, self.state.topic_configs(key.topic))
                partition.configure(rules)

    def _remove_strays(self) -> None:
        for folder in self.spec.path.iterdir():
            if folder.is_dir() and self._is_stray(folder):
                _logger.info("removing %s, which belongs to no topic", folder.name)
                shutil.rmtree(folder)

    def _is_stray(self, folder: Path) -> bool:
        if folder.name.endswith(_DELETED_SUFFIX):
            return True
        with suppress(OSError, ValueError):
            text = (folder / PARTITION_METADATA).read_text()
            encoded = text.rpartition("topic_id: ")[2].strip()
            return UUID(bytes=base64.urlsafe_b64decode(encoded + "==")) not in (
                self.state.topic_names
            )
        return False


def _write_partition_metadata(folder: Path, topic_id: UUID) -> None:
    """Apache Kafka's file that ties a folder to a topic's id."""
    path = folder / PARTITION_METADATA
    if not path.exists():
        content = f"version: 0\ntopic_id: {kafka_uuid(topic_id)}"
        replace_file(path, content.encode(), durable=False)


def kafka_uuid(value: UUID) -> str:
    """A UUID as Apache Kafka writes it."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
