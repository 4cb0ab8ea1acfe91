"""Heartbeats at the target, in the topic and format of MirrorMaker 2, so that its tools read them.

key      source alias, target alias: strings with a two-byte length prefix
value    version (two bytes, 0), milliseconds since 1970 (eight bytes)
"""

import struct
import time

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import KafkaError
from shoal.mirror.mm2.naming import HEARTBEATS, Naming
from shoal.model.topics import TopicPartition
from shoal.wire.records.records import Record, encode_batch

_VALUE = struct.Struct(">hq")
_VERSION = 0


class Heartbeats:
    """Emits the heartbeats of a flow to the target."""

    def __init__(self, target: Client, naming: Naming) -> None:
        self._target = target
        self._key = heartbeat_key(naming.source_alias, naming.target_alias)
        self._is_created = False

    async def emit(self) -> None:
        """Write one heartbeat; creates the topic before the first."""
        if not self._is_created:
            await self._create_topic()
        now_ms = time.time_ns() // 1_000_000
        tp = TopicPartition(HEARTBEATS, 0)
        batch = encode_batch([Record(0, now_ms, self._key, heartbeat_value(now_ms))])
        result = (await self._target.produce({tp: batch}, acks=-1))[tp]
        if not result.is_ok:
            raise result.error(tp)

    async def _create_topic(self) -> None:
        topic = NewTopic(HEARTBEATS, partitions=1, configs={"cleanup.policy": "compact"})
        try:
            await self._target.admin.create_topics([topic])
        except KafkaError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise
        self._is_created = True
        await self._target.leader(TopicPartition(HEARTBEATS, 0))


def heartbeat_key(source_alias: str, target_alias: str) -> bytes:
    parts = (alias.encode() for alias in (source_alias, target_alias))
    return b"".join(struct.pack(">h", len(part)) + part for part in parts)


def heartbeat_value(timestamp_ms: int) -> bytes:
    return _VALUE.pack(_VERSION, timestamp_ms)
