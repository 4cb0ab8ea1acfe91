"""Brings the markers of decided transactions to the leaders of their partitions.

Rules of this file:
- A marker is sent until it is written, however long a partition has no leader; only a partition
  that is deleted needs none. Apache Kafka gives up on a partition without a leader
  (KAFKA-20734), and the transaction stays open there for good.
- One request to a broker is on its way at a time; what comes meanwhile goes along in the next.
- A partition that is at a higher epoch of the producer has no part of the transaction open.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.lite.base.codes import Code, Refused
from shoal.lite.metadata.data.records import NO_LEADER
from shoal.lite.metadata.data.state import ClusterState
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import log_only, record_failure, run_once

_RETRY_S = 0.05
_DONE = frozenset({Code.NONE, Code.INVALID_PRODUCER_EPOCH, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT})
_logger = logging.getLogger(__name__)


class Marker(NamedTuple):
    """The end of a transaction, as partitions get it."""

    producer_id: int
    epoch: int
    is_commit: bool
    coordinator_epoch: int
    protocol: int


Written = dict[TopicPartition, Code]
# Writes markers at the leader with this id; what became of each, in the same order.
Write = Callable[[int, list[tuple[Marker, list[TopicPartition]]]], Awaitable[list[Written]]]


@dataclass(slots=True)
class _Parcel:
    marker: Marker
    partitions: list[TopicPartition]
    future: "asyncio.Future[Written]"


class MarkerCourier:
    """The way of markers from this broker to all others."""

    def __init__(self, state: Callable[[], ClusterState], write: Write) -> None:
        self._state = state
        self._write = write
        self._queues: dict[int, list[_Parcel]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}

    async def deliver(self, marker: Marker, partitions: Iterable[TopicPartition]) -> None:
        """Returns when the marker is written everywhere; `Refused` if we are not to write it."""
        left = set(partitions)
        while True:
            by_leader = self._by_leader(left)
            results = await asyncio.gather(
                *(self._sent(leader, marker, part) for leader, part in by_leader.items())
            )
            for result in results:
                self._note(marker, result, left)
            if not left:
                return
            await asyncio.sleep(_RETRY_S)

    def _note(self, marker: Marker, result: Written, left: set[TopicPartition]) -> None:
        for partition, code in result.items():
            if code == Code.TRANSACTION_COORDINATOR_FENCED:
                message = f"{partition} has heard of a later coordinator"
                raise Refused(Code.NOT_COORDINATOR, message)
            if code in _DONE:
                left.discard(partition)
            else:
                _logger.info("%s not written to %s yet: %s", marker, partition, code.name)

    def _by_leader(self, left: set[TopicPartition]) -> dict[int, list[TopicPartition]]:
        topics = self._state().topics
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in list(left):
            topic = topics.get(partition.topic)
            record = topic and topic.partitions.get(partition.partition)
            if not record:
                left.discard(partition)
            elif record.leader != NO_LEADER:
                by_leader.setdefault(record.leader, []).append(partition)
        return by_leader

    def _sent(
        self, leader: int, marker: Marker, partitions: list[TopicPartition]
    ) -> "asyncio.Future[Written]":
        parcel = _Parcel(marker, partitions, asyncio.get_running_loop().create_future())
        self._queues.setdefault(leader, []).append(parcel)
        if leader not in self._senders:
            self._senders[leader] = run_once(
                "transaction marker sender", self._empty(leader), on_failure=log_only
            )
        return parcel.future

    async def _empty(self, leader: int) -> None:
        try:
            while parcels := self._queues.pop(leader, None):
                results = await self._results(leader, parcels)
                for parcel, result in zip(parcels, results, strict=True):
                    if not parcel.future.done():
                        parcel.future.set_result(result)
        finally:
            del self._senders[leader]

    async def _results(self, leader: int, parcels: list[_Parcel]) -> list[Written]:
        items = [(parcel.marker, parcel.partitions) for parcel in parcels]
        try:
            return await self._write(leader, items)
        except Refused as refused:
            _logger.info("broker %d was not told of markers: %s", leader, refused)
            code = refused.code
        except Exception as error:  # noqa: BLE001 - those who wait for the parcels must hear of it
            record_failure("transaction marker sender", error, "the markers are sent again")
            code = Code.UNKNOWN_SERVER_ERROR
        return [dict.fromkeys(parcel.partitions, code) for parcel in parcels]

    async def close(self) -> None:
        senders = list(self._senders.values())
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)


def markers_request(items: Iterable[tuple[Marker, list[TopicPartition]]]) -> dict[str, Any]:
    """The values of a WriteTxnMarkers request."""
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "producer_epoch": marker.epoch,
                "transaction_result": marker.is_commit,
                "topics": [
                    {"name": name, "partition_indexes": indexes}
                    for name, indexes in by_topic(partitions).items()
                ],
                "coordinator_epoch": marker.coordinator_epoch,
                "transaction_version": marker.protocol,
            }
            for marker, partitions in items
        ]
    }


def by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
