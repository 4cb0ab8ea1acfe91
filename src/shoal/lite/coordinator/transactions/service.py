"""A broker's way to transaction coordinators: its own, and those of other brokers.

Rules of this file:
- The leader of a partition asks the coordinator before a transaction's first batch is written:
  *verify* that the client has announced the partition, or, by the second protocol, *add* it.
- What goes wrong on the way there is told so that clients try again, in words that they know.
"""

import asyncio
from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import Any, Protocol

from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.dial import Peer
from shoal.lite.coordinator.host import CoordinatorHost, Home
from shoal.lite.coordinator.loaded_shard import Seat
from shoal.lite.coordinator.topics import TRANSACTION_TOPIC
from shoal.lite.coordinator.transactions.coordinator import TransactionCoordinator, wall_ms
from shoal.lite.coordinator.transactions.machine import MachineSettings
from shoal.lite.coordinator.transactions.markers import (
    Marker,
    MarkerCourier,
    Written,
    by_topic,
    markers_request,
)
from shoal.lite.coordinator.transactions.model import SECOND_PROTOCOL, Identity
from shoal.lite.partitions.node_links import NodeLinks
from shoal.lite.partitions.partition import Partition
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.records.records import ControlType, encode_control_batch

_ADD_PARTITIONS = ApiKey.ADD_PARTITIONS_TO_TXN, 5
_WRITE_MARKERS = ApiKey.WRITE_TXN_MARKERS, 2
_ANSWER_S = 10.0
_MARKER_TIMEOUT_MS = 30_000
# What clients try again, whatever their age.
_ON_THE_WAY = frozenset(
    {
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
    }
)


class Asked(Enum):
    """What a client's version lets its broker ask of the coordinator, and tell the client."""

    VERIFY = "verify"
    # TRANSACTION_ABORTABLE is known to the client.
    VERIFY_ABORTABLE = "verify, abortable"
    ADD = "add"


class Broker(Home, Protocol):
    """What transactions need of a broker."""

    @property
    def broker_id(self) -> int: ...
    @property
    def transaction_version(self) -> int: ...
    async def new_producer_id(self) -> int: ...
    def partition(self, topic: str, index: int) -> Partition: ...


class Transactions:
    """The transaction coordinators of one broker, and how it reaches the others."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._asking = NodeLinks(broker.broker_id)
        self._telling = NodeLinks(broker.broker_id)
        self._courier = MarkerCourier(lambda: broker.state, self._write_at)
        self.host: CoordinatorHost[TransactionCoordinator] = CoordinatorHost(
            broker, TRANSACTION_TOPIC, self._coordinator
        )

    async def close(self) -> None:
        """After the host."""
        await self._courier.close()
        await self._asking.close()
        await self._telling.close()

    def _coordinator(self, seat: Seat[TransactionCoordinator]) -> TransactionCoordinator:
        layers = self._broker.layers
        settings = MachineSettings(
            transaction_max_timeout_ms=layers.integer("transaction.max.timeout.ms"),
            transactional_id_expiration_ms=layers.integer("transactional.id.expiration.ms"),
        )
        return TransactionCoordinator(seat, self, settings)

    # For coordinators

    @property
    def transaction_version(self) -> int:
        """Which protocol the cluster has agreed on."""
        return self._broker.transaction_version

    async def new_producer_id(self) -> int:
        return await self._broker.new_producer_id()

    async def deliver(self, marker: Marker, partitions: Iterable[TopicPartition]) -> None:
        await self._courier.deliver(marker, partitions)

    # For leaders of partitions

    async def join(
        self,
        transactional_id: str,
        identity: Identity,
        partitions: list[TopicPartition],
        asked: Asked,
    ) -> dict[TopicPartition, Code]:
        """Verify or add partitions; what to tell the client about each."""
        try:
            codes = await self._ask(transactional_id, identity, partitions, asked)
        except Refused as refused:
            codes = dict.fromkeys(partitions, refused.code)
        return {partition: _told(codes[partition], asked) for partition in partitions}

    async def _ask(
        self,
        transactional_id: str,
        identity: Identity,
        partitions: list[TopicPartition],
        asked: Asked,
    ) -> dict[TopicPartition, Code]:
        coordinator = await self.host.locate(transactional_id)
        if coordinator.broker_id == self._broker.broker_id:
            shard = self.host.shard_for(transactional_id)
            if asked is Asked.ADD:
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
                    "verify_only": asked is not Asked.ADD,
                    "topics": [
                        {"name": name, "partitions": indexes}
                        for name, indexes in by_topic(partitions).items()
                    ],
                }
            ]
        }
        peer = Peer(coordinator.broker_id, coordinator.host, coordinator.port)
        response = await self._asking.ask(peer, _ADD_PARTITIONS, values, timeout_s=_ANSWER_S)
        if response.error_code:
            raise Refused(Code(response.error_code), "the coordinator refuses")
        return {
            TopicPartition(topic.name, part.partition_index): Code(part.partition_error_code)
            for result in response.results_by_transaction
            for topic in result.topic_results
            for part in topic.results_by_partition
        }

    # Markers

    async def _write_at(
        self, leader: int, items: list[tuple[Marker, list[TopicPartition]]]
    ) -> list[Written]:
        if leader == self._broker.broker_id:
            return await self.write_here(items)
        broker = self._broker.state.brokers.get(leader)
        if broker is None:
            raise Refused(Code.BROKER_NOT_AVAILABLE, f"broker {leader} is not known")
        response = await self._telling.ask(
            Peer(leader, broker.host, broker.port),
            _WRITE_MARKERS,
            markers_request(items),
            timeout_s=_MARKER_TIMEOUT_MS / 1000 + _ANSWER_S,
        )
        return [_written(marker) for marker in response.markers]

    async def write_here(
        self, items: Iterable[tuple[Marker, list[TopicPartition]]]
    ) -> list[Written]:
        """Write markers to partitions that this broker leads; waits for their followers."""
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
        except Refused as refused:
            return refused.code
        return future


def _resolve(future: "asyncio.Future[Code]", code: Code) -> None:
    if not future.done():
        future.set_result(code)


def _written(marker: Any) -> Written:
    return {
        TopicPartition(topic.name, part.partition_index): Code(part.error_code)
        for topic in marker.topics
        for part in topic.partitions
    }


def _told(code: Code, asked: Asked) -> Code:
    """A coordinator's word as a producer gets it from a partition's leader."""
    if code == Code.PRODUCER_FENCED:
        return Code.INVALID_PRODUCER_EPOCH
    if code == Code.TRANSACTION_ABORTABLE and asked is Asked.VERIFY:
        return Code.INVALID_TXN_STATE
    return Code.NOT_ENOUGH_REPLICAS if code in _ON_THE_WAY else code
