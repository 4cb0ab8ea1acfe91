"""Sends the markers of ended transactions to the leaders of their partitions.

Rules of this file:
- A marker is sent until it is written, however long a partition has no leader; only a deleted
  partition needs none. Apache Kafka gives up on a partition without a leader (KAFKA-20734), and
  the transaction stays open there forever.
- One request per broker is in flight; markers that are added meanwhile go into the next one.
- A partition that knows a higher epoch of the producer has no open part of the transaction.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import NO_LEADER
from shoal.lite.metadata.data.state import ClusterState
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import log_only, record_failure, run_once

_RETRY_S = 0.05
_DONE = frozenset({Code.NONE, Code.INVALID_PRODUCER_EPOCH, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT})
_logger = logging.getLogger(__name__)


class Marker(NamedTuple):
    """A transaction marker to be written to partitions."""

    producer_id: int
    epoch: int
    is_commit: bool
    coordinator_epoch: int
    protocol: int


MarkerResults = dict[TopicPartition, Code]
# Writes markers at the leader with this id; returns their results in the same order.
Write = Callable[[int, list[tuple[Marker, list[TopicPartition]]]], Awaitable[list[MarkerResults]]]


@dataclass(slots=True)
class _QueuedMarker:
    marker: Marker
    partitions: list[TopicPartition]
    future: "asyncio.Future[MarkerResults]"


class MarkerSender:
    """Sends markers from this broker to all leaders."""

    def __init__(self, state: Callable[[], ClusterState], write: Write) -> None:
        self._state = state
        self._write = write
        self._queues: dict[int, list[_QueuedMarker]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}

    async def deliver(self, marker: Marker, partitions: Iterable[TopicPartition]) -> None:
        """Write a marker to all partitions; `ApiError` if this coordinator is fenced."""
        remaining = set(partitions)
        while True:
            by_leader = self._by_leader(remaining)
            results = await asyncio.gather(
                *(self._enqueue(leader, marker, part) for leader, part in by_leader.items())
            )
            for result in results:
                self._apply_results(marker, result, remaining)
            if not remaining:
                return
            await asyncio.sleep(_RETRY_S)

    def _apply_results(
        self, marker: Marker, result: MarkerResults, remaining: set[TopicPartition]
    ) -> None:
        for partition, code in result.items():
            if code == Code.TRANSACTION_COORDINATOR_FENCED:
                message = f"{partition} knows a later coordinator epoch"
                raise ApiError(Code.NOT_COORDINATOR, message)
            if code in _DONE:
                remaining.discard(partition)
            else:
                _logger.info("%s is not written to %s yet: %s", marker, partition, code.name)

    def _by_leader(self, remaining: set[TopicPartition]) -> dict[int, list[TopicPartition]]:
        topics = self._state().topics
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in list(remaining):
            topic = topics.get(partition.topic)
            record = topic and topic.partitions.get(partition.partition)
            if not record:
                remaining.discard(partition)
            elif record.leader != NO_LEADER:
                by_leader.setdefault(record.leader, []).append(partition)
        return by_leader

    def _enqueue(
        self, leader: int, marker: Marker, partitions: list[TopicPartition]
    ) -> "asyncio.Future[MarkerResults]":
        queued = _QueuedMarker(marker, partitions, asyncio.get_running_loop().create_future())
        self._queues.setdefault(leader, []).append(queued)
        if leader not in self._senders:
            self._senders[leader] = run_once(
                "transaction marker sender", self._send_queued(leader), on_failure=log_only
            )
        return queued.future

    async def _send_queued(self, leader: int) -> None:
        try:
            while batch := self._queues.pop(leader, None):
                results = await self._write_batch(leader, batch)
                for queued, result in zip(batch, results, strict=True):
                    if not queued.future.done():
                        queued.future.set_result(result)
        finally:
            del self._senders[leader]

    async def _write_batch(self, leader: int, batch: list[_QueuedMarker]) -> list[MarkerResults]:
        items = [(queued.marker, queued.partitions) for queued in batch]
        try:
            return await self._write(leader, items)
        except ApiError as error:
            _logger.info("cannot send transaction markers to broker %d: %s", leader, error)
            code = error.code
        except Exception as error:  # noqa: BLE001 - those who wait for the markers need a result
            record_failure("transaction marker sender", error, "the markers are sent again")
            code = Code.UNKNOWN_SERVER_ERROR
        return [dict.fromkeys(queued.partitions, code) for queued in batch]

    async def close(self) -> None:
        senders = list(self._senders.values())
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)


def markers_request(items: Iterable[tuple[Marker, list[TopicPartition]]]) -> dict[str, Any]:
    """Return the values of a WriteTxnMarkers request."""
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "producer_epoch": marker.epoch,
                "transaction_result": marker.is_commit,
                "topics": [
                    {"name": name, "partition_indexes": indexes}
                    for name, indexes in group_by_topic(partitions).items()
                ],
                "coordinator_epoch": marker.coordinator_epoch,
                "transaction_version": marker.protocol,
            }
            for marker, partitions in items
        ]
    }


def group_by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
