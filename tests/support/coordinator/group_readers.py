"""Members of a group by the clients that people run, each in a thread of its own, all alike.

A reader polls, remembers what it read and what it was assigned, and commits after each poll.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any, Self

import aiokafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaException
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError as PythonError

from shoal.client import Client, GroupConsumer
from shoal.client.errors import ClientError

RANGE, COOPERATIVE = "range", "cooperative-sticky"
SESSION_MS = 30_000
HEARTBEAT_MS = 200
_POLL_S = 0.2
_END_S = 30.0
_logger = logging.getLogger(__name__)


class Reader:
    """One member; `assigned` and `read` may be looked at from any thread."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        strategy: str = RANGE,
        instance: str | None = None,
    ) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.strategy, self.instance = strategy, instance
        self.assigned: set[int] = set()
        # How often the group gave or took something.
        self.changes = 0
        self.read: list[tuple[int, int]] = []
        self.failures: list[BaseException] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run_guarded)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the group, unless the member is static."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)
        assert not self._thread.is_alive()
        if self.failures:
            raise self.failures[0]

    def _run_guarded(self) -> None:
        try:
            self.run()
        except BaseException as failure:  # noqa: BLE001 - reported by stop
            self.failures.append(failure)

    def run(self) -> None:
        raise NotImplementedError

    def _on_assigned(self, partitions: Iterable[Any]) -> None:
        self.changes += 1
        self.assigned |= {int(tp.partition) for tp in partitions}

    def _on_revoked(self, partitions: Iterable[Any]) -> None:
        self.changes += 1
        self.assigned -= {int(tp.partition) for tp in partitions}


class OwnReader(Reader):
    """Ours."""

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        properties = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "group.instance.id": self.instance or "",
            "partition.assignment.strategy": self.strategy,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": "earliest",
        }
        async with Client(properties) as client:
            member = GroupConsumer(
                client, [self.topic], on_assigned=self._on_assigned, on_revoked=self._on_revoked
            )
            async with member:
                while not self._end.is_set():
                    for item in await member.poll_records(int(_POLL_S * 1000)):
                        self.read.append((item.partition, item.record.offset))
                    try:
                        await member.commit()
                    except ClientError as error:
                        _logger.info("not committed: %s", error)


class RdKafkaReader(Reader):
    """librdkafka."""

    def run(self) -> None:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "partition.assignment.strategy": self.strategy,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
        if self.instance is not None:
            settings["group.instance.id"] = self.instance
        with Consumer(settings) as consumer:
            consumer.subscribe(
                [self.topic],
                on_assign=lambda _, partitions: self._on_assigned(partitions),
                on_revoke=lambda _, partitions: self._on_revoked(partitions),
            )
            while not self._end.is_set():
                messages = [one for one in consumer.consume(100, _POLL_S) if one.error() is None]
                self.read += [(one.partition() or 0, one.offset() or 0) for one in messages]
                if messages:
                    try:
                        consumer.commit(asynchronous=False)
                    except KafkaException as error:
                        _logger.info("not committed: %s", error)


class AioReader(Reader, aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """aiokafka."""

    def run(self) -> None:
        asyncio.run(self._run())

    def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        self._on_assigned(assigned)

    def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        self._on_revoked(revoked)

    async def _run(self) -> None:
        assert self.strategy == RANGE
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance,
            partition_assignment_strategy=(AioRange,),
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        consumer.subscribe([self.topic], listener=self)
        await consumer.start()
        try:
            while not self._end.is_set():
                for records in (await consumer.getmany(timeout_ms=int(_POLL_S * 1000))).values():
                    self.read += [(one.partition, one.offset) for one in records]
                try:
                    await consumer.commit()
                except AioError as error:
                    _logger.info("not committed: %s", error)
        finally:
            await consumer.stop()


class PythonReader(Reader, kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """kafka-python."""

    def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        self._on_assigned(assigned)

    def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        self._on_revoked(revoked)

    def run(self) -> None:
        assignor = RangePartitionAssignor if self.strategy == RANGE else CooperativeStickyAssignor
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance,
            partition_assignment_strategy=(assignor,),
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            # A member that leads before it knows the topic assigns nothing, for minutes.
            while not consumer.partitions_for_topic(self.topic) and not self._end.is_set():
                self._end.wait(_POLL_S)
            consumer.subscribe([self.topic], listener=self)
            while not self._end.is_set():
                for records in consumer.poll(timeout_ms=int(_POLL_S * 1000)).values():
                    self.read += [(one.partition, one.offset) for one in records]
                try:
                    consumer.commit()
                except PythonError as error:
                    _logger.info("not committed: %s", error)
        finally:
            consumer.close()


READERS: dict[str, Callable[..., Reader]] = {
    "own": OwnReader,
    "librdkafka": RdKafkaReader,
    "aiokafka": AioReader,
    "kafka-python": PythonReader,
}
