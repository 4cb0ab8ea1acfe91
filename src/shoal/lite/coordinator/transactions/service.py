"""A broker's access to transaction coordinators: its own, and those of other brokers.

Rules of this file:
- The leader of a partition asks the coordinator before it writes a transaction's first batch:
  it *verifies* that the client has added the partition, or, in the second protocol, *adds* it.
- Errors on the way to the coordinator are mapped to retriable codes that every client knows.
"""

import asyncio
from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import Any, Protocol

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.dial import NodeAddress
from shoal.lite.coordinator.host import CoordinatorBroker, CoordinatorHost
from shoal.lite.coordinator.loaded_shard import LoadedShard
from shoal.lite.coordinator.topics import TRANSACTION_TOPIC
from shoal.lite.coordinator.transactions.coordinator import TransactionCoordinator, wall_ms
from shoal.lite.coordinator.transactions.machine import MachineSettings
from shoal.lite.coordinator.transactions.markers import (
    Marker,
    MarkerResults,
    MarkerSender,
    group_by_topic,
    markers_request,
)
from shoal.lite.coordinator.transactions.model import SECOND_PROTOCOL, ProducerIdAndEpoch
from shoal.lite.partitions.broker_links import BrokerLinks
from shoal.lite.partitions.partition import Partition
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.records.records import ControlType, encode_control_batch

_ADD_PARTITIONS = ApiKey.ADD_PARTITIONS_TO_TXN, 5
_WRITE_MARKERS = ApiKey.WRITE_TXN_MARKERS, 2
_ANSWER_S = 10.0
_MARKER_TIMEOUT_MS = 30_000
# Errors of the way to the coordinator; producers of any version retry the code they become.
_RETRIABLE = frozenset(
    {
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
    }
)


class CoordinatorAction(Enum):
    """What a broker asks of the coordinator; it depends on the version of the client's request."""

    VERIFY = "verify"
    # The client knows TRANSACTION_ABORTABLE.
    VERIFY_ABORTABLE = "verify, abortable"
    ADD = "add"


class TransactionBroker(CoordinatorBroker, Protocol):
    """The part of a broker that transactions use."""

    @property
    def broker_id(self) -> int: ...
    @property
    def transaction_version(self) -> int: ...
    async def new_producer_id(self) -> int: ...
    def partition(self, topic: str, index: int) -> Partition: ...


class TransactionService:
    """The transaction coordinators of one broker, and its requests to other coordinators."""

    def __init__(self, broker: TransactionBroker) -> None:
        self._broker = broker
        self._verification_links = BrokerLinks(broker.broker_id)
        self._marker_links = BrokerLinks(broker.broker_id)
        self._marker_sender = MarkerSender(lambda: broker.state, self._send_markers)
        self.host: CoordinatorHost[TransactionCoordinator] = CoordinatorHost(
            broker, TRANSACTION_TOPIC, self._coordinator
        )

    async def close(self) -> None:
        """Close connections and senders; call it after the host is closed."""
        await self._marker_sender.close()
        await self._verification_links.close()
        await self._marker_links.close()

    def _coordinator(self, loaded: LoadedShard[TransactionCoordinator]) -> TransactionCoordinator:
        layers = self._broker.layers
        settings = MachineSettings(
            transaction_max_timeout_ms=layers.integer("transaction.max.timeout.ms"),
            transactional_id_expiration_ms=layers.integer("transactional.id.expiration.ms"),
        )
        return TransactionCoordinator(loaded, self, settings)

    # For coordinators

    @property
    def transaction_version(self) -> int:
        """The finalized transaction.version of the cluster."""
        return self._broker.transaction_version

    async def new_producer_id(self) -> int:
        return await self._broker.new_producer_id()

    async def deliver(self, marker: Marker, partitions: Iterable[TopicPartition]) -> None:
        await self._marker_sender.deliver(marker, partitions)

    # For leaders of partitions

    async def verify_or_add(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        partitions: list[TopicPartition],
        action: CoordinatorAction,
    ) -> dict[TopicPartition, Code]:
        """Verify or add partitions; return the code for the client for each of them."""
        try:
            codes = await self._ask_coordinator(transactional_id, identity, partitions, action)
        except ApiError as error:
            codes = dict.fromkeys(partitions, error.code)
        return {partition: _to_producer_code(codes[partition], action) for partition in partitions}

    async def _ask_coordinator(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        partitions: list[TopicPartition],
        action: CoordinatorAction,
    ) -> dict[TopicPartition, Code]:
        coordinator = await self.host.locate(transactional_id)
        if coordinator.broker_id == self._broker.broker_id:
            shard = self.host.shard_for(transactional_id)
            if action is CoordinatorAction.ADD:
                code = await shard.add_partitions(
                    transactional_id, identity, partitions, SECOND_PROTOCOL
                )
                return dict.fromkeys(partitions, code)
            verdict = shard.machine.verify(transactional_id, identity, partitions)
            return dict.fromkeys(partitions, verdict) if isinstance(verdict, Code) else verdict
        values = {
            "transactions": [
                {
                    "transactional_id": transactional_id,
                    "producer_id": identity.producer_id,
                    "producer_epoch": identity.epoch,
                    "verify_only": action is not CoordinatorAction.ADD,
                    "topics": [
                        {"name": name, "partitions": indexes}
                        for name, indexes in group_by_topic(partitions).items()
                    ],
                }
            ]
        }
        peer = NodeAddress(coordinator.broker_id, coordinator.host, coordinator.port)
        response = await self._verification_links.request(
            peer, _ADD_PARTITIONS, values, timeout_s=_ANSWER_S
        )
        if response.error_code:
            code = Code(response.error_code)
            raise ApiError(
                code,
                f"broker {peer.node_id}, the coordinator of transactional id {transactional_id!r}, "
                f"returned {code.name}",
            )
        return {
            TopicPartition(topic.name, part.partition_index): Code(part.partition_error_code)
            for result in response.results_by_transaction
            for topic in result.topic_results
            for part in topic.results_by_partition
        }

    # Markers

    async def _send_markers(
        self, leader: int, items: list[tuple[Marker, list[TopicPartition]]]
    ) -> list[MarkerResults]:
        if leader == self._broker.broker_id:
            return await self.write_markers(items)
        broker = self._broker.state.brokers.get(leader)
        if broker is None:
            raise ApiError(Code.BROKER_NOT_AVAILABLE, f"broker {leader} is not registered")
        response = await self._marker_links.request(
            NodeAddress(leader, broker.host, broker.port),
            _WRITE_MARKERS,
            markers_request(items),
            timeout_s=_MARKER_TIMEOUT_MS / 1000 + _ANSWER_S,
        )
        return [_decode_marker_results(marker) for marker in response.markers]

    async def write_markers(
        self, items: Iterable[tuple[Marker, list[TopicPartition]]]
    ) -> list[MarkerResults]:
        """Write markers to partitions that this broker leads; wait until they are committed."""
        results: list[dict[TopicPartition, Code | asyncio.Future[Code]]] = [
            {partition: self._write_marker(marker, partition) for partition in partitions}
            for marker, partitions in items
        ]
        return [
            {
                partition: code if isinstance(code, Code) else await code
                for partition, code in result.items()
            }
            for result in results
        ]

    def _write_marker(
        self, marker: Marker, partition: TopicPartition
    ) -> "Code | asyncio.Future[Code]":
        batch = encode_control_batch(
            ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
            timestamp=wall_ms(),
            coordinator_epoch=marker.coordinator_epoch,
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
        )
        future: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        try:
            self._broker.partition(*partition).append_marker(
                memoryview(batch),
                is_bumped=marker.protocol >= SECOND_PROTOCOL,
                timeout_ms=_MARKER_TIMEOUT_MS,
                on_acked=partial(_resolve, future),
            )
        except ApiError as error:
            return error.code
        return future


def _resolve(future: "asyncio.Future[Code]", code: Code) -> None:
    if not future.done():
        future.set_result(code)


def _decode_marker_results(marker: Any) -> MarkerResults:
    return {
        TopicPartition(topic.name, part.partition_index): Code(part.error_code)
        for topic in marker.topics
        for part in topic.partitions
    }


def _to_producer_code(code: Code, action: CoordinatorAction) -> Code:
    """Map a coordinator's code to the one that a partition's leader returns to a producer."""
    if code == Code.PRODUCER_FENCED:
        return Code.INVALID_PRODUCER_EPOCH
    if code == Code.TRANSACTION_ABORTABLE and action is CoordinatorAction.VERIFY:
        return Code.INVALID_TXN_STATE
    return Code.NOT_ENOUGH_REPLICAS if code in _RETRIABLE else code
