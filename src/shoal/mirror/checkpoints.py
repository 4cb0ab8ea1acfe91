"""What a mirror remembers about its own work, on the target: `__shoal_mirror_<name>`.

One record for each target partition; its key is JSON with `topic` and `partition`, its value
JSON with the fields of `Checkpoint`. The topic has one partition and is compacted.

Rules:
- A checkpoint tells of one moment at which all below it was acknowledged. An old one is as true
  as a new one, only further back: so it may be written late, twice, or by a process that should
  be dead. Not so in the transactional mode, where the checkpoint *is* the position: there it is
  written in the transaction that it tells of, and nowhere else.
- They are read committed and to the end: whoever reads waits for transactions that are open.
- The first one is written before the first record: a target partition that is not empty and has
  none was not written by this mirror.
- Who the source and the target were is part of it: a topic that was deleted and made again is
  another topic.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import islice
from typing import Any, Final

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.delivery import Identity
from shoal.client.errors import KafkaError, error_for
from shoal.client.isolation import Sieve, Standing
from shoal.client.results import EARLIEST, LATEST
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import iter_batches
from shoal.wire.records import Record, decode_records, encode_batch

PREFIX: Final = "__shoal_mirror_"
FORMAT: Final = 1
NAME_LIMIT: Final = 200
# Checkpoints in one batch: well below what a topic takes by default.
BATCH_LIMIT: Final = 1000

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_CONFIGS: Final = {"cleanup.policy": "compact", "compression.type": "producer"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Below `source_offset` everything is at the target, where it ends at `target_offset`."""

    source_cluster: str | None
    source_topic_id: str | None
    target_topic_id: str | None
    delivery: str
    source_offset: int
    target_offset: int
    # Of the idempotent mode: who wrote, and the sequence that is next.
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = 0
    # Of compare-and-append, and of transactions: how often it was taken over.
    mirror_epoch: int = 0
    # Of transactions: the transactional.id that wrote last.
    lane: str = ""
    # Where the target's topic has another name.
    source_topic: str | None = None

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.producer_epoch)


Checkpoints = dict[TopicPartition, Checkpoint]


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > NAME_LIMIT:
        raise ConfigError(
            f"{name!r} cannot be the name of a mirror",
            remedy=f"use letters, digits, '.', '_' and '-', {NAME_LIMIT} at most",
        )


class CheckpointTopic:
    """The checkpoints of one mirror on its target."""

    def __init__(self, client: Client, name: str) -> None:
        check_name(name)
        self.name = name
        self._client = client
        self._partition = TopicPartition(PREFIX + name, 0)

    @property
    def partition(self) -> TopicPartition:
        return self._partition

    async def exists(self) -> bool:
        topic = self._partition.topic
        known = (await self._client.metadata([topic], refresh=True)).topics[topic]
        if known.error not in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION):
            raise error_for(known.error, topic=topic)
        return known.error == Code.NONE

    async def make(self) -> None:
        """Make the topic if it is missing."""
        if await self.exists():
            return
        topic = NewTopic(self._partition.topic, partitions=1, configs=_CONFIGS)
        try:
            await self._client.admin.create_topics([topic])
        except KafkaError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise

    async def read(self) -> Checkpoints:
        """The last checkpoint of each partition; none if the topic does not exist."""
        if not await self.exists():
            return {}
        tp, client = self._partition, self._client
        position = (await client.list_offsets({tp: EARLIEST}))[tp].offset
        ends = await client.list_offsets({tp: LATEST}, isolation="read_uncommitted")
        end = ends[tp].offset
        found: Checkpoints = {}
        while position < end:
            records, position = await self._read_from(position)
            for record in records:
                _take(found, record, tp.topic)
        return found

    async def _read_from(self, position: int) -> tuple[list[Record], int]:
        """Some records from there on, and the position behind them."""
        tp = self._partition

        async def attempt() -> tuple[list[Record], int]:
            part = (await self._client.fetch({tp: position}, isolation="read_committed"))[tp]
            if part.error_code != Code.NONE:
                raise error_for(part.error_code, topic=tp.topic, partition=tp.partition)
            records: list[Record] = []
            next_offset = position
            sieve = Sieve(part.aborted)
            for batch in iter_batches(part.records):
                if sieve.judge(batch) is Standing.DATA:
                    batch.check_crc()
                    records += [r for r in decode_records(batch) if r.offset >= position]
                next_offset = batch.next_offset
            return records, next_offset

        return await self._client.retrying(attempt)

    async def write(self, checkpoints: Mapping[TopicPartition, Checkpoint]) -> None:
        """Add these; returns when they are safe."""
        for batch in encode_checkpoints(checkpoints):
            await self._client.retrying(partial(self._write_once, batch))

    async def _write_once(self, batch: bytearray) -> None:
        tp = self._partition
        result = (await self._client.produce({tp: batch}, acks=-1))[tp]
        if not result.is_ok:
            raise result.error(tp)


def encode_checkpoints(checkpoints: Mapping[TopicPartition, Checkpoint]) -> Iterator[bytearray]:
    """The batches that tell of these."""
    now_ms = time.time_ns() // 1_000_000
    left = iter(checkpoints.items())
    while some := list(islice(left, BATCH_LIMIT)):
        yield encode_batch(
            [
                Record(number, now_ms, _key(tp), _value(checkpoint))
                for number, (tp, checkpoint) in enumerate(some)
            ]
        )


def _key(tp: TopicPartition) -> bytes:
    return json.dumps({"topic": tp.topic, "partition": tp.partition}).encode()


def _value(checkpoint: Checkpoint) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(checkpoint)}).encode()


def _checkpoint(value: dict[str, Any]) -> Checkpoint:
    if value["format"] != FORMAT:
        raise ValueError(f"it is of format {value['format']!r}, not {FORMAT}")
    # One of an earlier version may lack what has a default.
    return Checkpoint(
        **{each.name: value[each.name] for each in fields(Checkpoint) if each.name in value}
    )


def _take(found: Checkpoints, record: Record, topic: str) -> None:
    try:
        key: dict[str, Any] = json.loads(record.key or b"")
        tp = TopicPartition(str(key["topic"]), int(key["partition"]))
        if record.value is None:
            found.pop(tp, None)
            return
        value: dict[str, Any] = json.loads(record.value)
        found[tp] = _checkpoint(value)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the record at offset {record.offset} of {topic} is no checkpoint: {error!r}",
            remedy="name the mirror differently, or find out who else writes there",
        ) from error
