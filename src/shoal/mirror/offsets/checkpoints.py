"""What a mirror remembers about its own work, on the target: `__shoal_mirror_<name>`.

One record for each target partition; its key is JSON with `topic` and `partition`, its value
JSON with the fields of `Checkpoint`. Beside it stand the blocks of the partition's offset map
(`shoal.mirror.offsets.offset_map`): their key has `block` besides, the first source offset of it,
and
their value is not JSON. The topic has one partition and is compacted.

Rules:
- A checkpoint tells of one moment at which all below it was acknowledged. An old one is as true
  as a new one, only further back: so it may be written late, twice, or by a process that should
  be dead. Not so in the transactional mode, where the checkpoint *is* the position: there it is
  written in the transaction that it tells of, and nowhere else.
- They are read committed and to the end: whoever reads waits for transactions that are open.
  What a dead process left open would be waited for until its time is out, so those who may go
  on in its place abort it first (`shoal.mirror.run.transaction_session`).
- The first one is written before the first record: a target partition that is not empty and has
  none was not written by this mirror.
- Blocks of the map are written before the checkpoint that relies on them, or with it. What a
  map says above the checkpoint does not count.
- Who the source and the target were is part of it: a topic that was deleted and created again is
  another topic, and its copy another generation (`shoal.mirror.watch.generations`).
- Fields have the names beside their types (`shoal.model.serialised`). Format 2 has all of them;
  format 1, which has no generations and is read as the first one, may lack what is marked so.
"""

import asyncio
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, TypeVar
from uuid import UUID

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.isolation import Sieve, Standing
from shoal.client.errors import KafkaError, error_for
from shoal.client.produce.sequencing import Identity
from shoal.client.results import EARLIEST, LATEST
from shoal.mirror.offsets.offset_map import MapWriter, resumed_writer
from shoal.model.errors import ConfigError
from shoal.model.serialised import AbsentUpTo, check_version, from_plain, to_plain
from shoal.model.topics import TopicPartition
from shoal.wire.batch import iter_batches
from shoal.wire.records.records import Record, decode_records, encode_batch

PREFIX: Final = "__shoal_mirror_"
FORMAT: Final = 2
_READ_FORMATS: Final = (1, 2)
_OPTIONAL_IN_1: Final = AbsentUpTo(1)
NAME_LIMIT: Final = 200
# Of one write; more are several.
BATCH_LIMIT_BYTES: Final = 500_000
RECORD_EXTRA_BYTES: Final = 30

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_CONFIGS: Final = {"cleanup.policy": "compact", "compression.type": "producer"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Below `source_offset` everything is at the target, where it ends at `target_offset`."""

    source_cluster: Annotated[str | None, "source_cluster"]
    source_topic_id: Annotated[str | None, "source_topic_id"]
    target_topic_id: Annotated[str | None, "target_topic_id"]
    delivery: Annotated[str, "delivery"]
    source_offset: Annotated[int, "source_offset"]
    target_offset: Annotated[int, "target_offset"]
    # Of the idempotent mode: who wrote, and the sequence that is next.
    producer_id: Annotated[int, "producer_id", _OPTIONAL_IN_1] = -1
    producer_epoch: Annotated[int, "producer_epoch", _OPTIONAL_IN_1] = -1
    sequence: Annotated[int, "sequence", _OPTIONAL_IN_1] = 0
    # Of compare-and-append, and of transactions: how often it was taken over.
    mirror_epoch: Annotated[int, "mirror_epoch", _OPTIONAL_IN_1] = 0
    # Of transactions: the transactional.id that wrote last.
    lane: Annotated[str, "lane", _OPTIONAL_IN_1] = ""
    # Where the target's topic has another name.
    source_topic: Annotated[str | None, "source_topic", _OPTIONAL_IN_1] = None
    # The leader's epoch of the last batch that was read from the source.
    source_epoch: Annotated[int, "source_epoch", _OPTIONAL_IN_1] = -1
    # Where the source's topic came from itself, if a mirror made it.
    came_by: Annotated[tuple[str, ...], "came_by", _OPTIONAL_IN_1] = ()
    # The leader epochs below `source_offset`, each with the first offset that was read in it.
    source_epochs: Annotated[tuple[tuple[int, int], ...], "source_epochs", _OPTIONAL_IN_1] = ()
    # Records at the target that the source lost after they were copied.
    truncated: Annotated[int, "truncated", _OPTIONAL_IN_1] = 0
    # Which copy this is, counted from 1, why it began, and where: it is a new one when the topic
    # of the source or of the target was deleted and created again.
    generation: Annotated[int, "generation", _OPTIONAL_IN_1] = 1
    generation_reason: Annotated[str, "generation_reason", _OPTIONAL_IN_1] = ""
    generation_target_offset: Annotated[int, "generation_target_offset", _OPTIONAL_IN_1] = 0
    # The source offset at which this copy began; -1 where an older version did not write it.
    began_at: Annotated[int, "began_at", _OPTIONAL_IN_1] = -1
    # The target has lost records that it acknowledged: no start continues behind the hole.
    target_lost: Annotated[bool, "target_lost", _OPTIONAL_IN_1] = False
    # When this mirror first started, and how many partitions the source topic had when this copy
    # began: by these a later start knows what came into being since. 0 if it is not known.
    mirror_began_ms: Annotated[int, "mirror_began_ms", _OPTIONAL_IN_1] = 0
    source_partitions: Annotated[int, "source_partitions", _OPTIONAL_IN_1] = 0

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.producer_epoch)


Checkpoints = dict[TopicPartition, Checkpoint]
NewBlocks = Mapping[int, bytes | None]  # None takes a block away
_Key = TypeVar("_Key", int, TopicPartition)
_Kept = TypeVar("_Kept", bytes, Checkpoint)


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
        self.found: Checkpoints = {}
        self.blocks: dict[TopicPartition, dict[int, bytes]] = {}
        self._client = client
        self._partition = TopicPartition(PREFIX + name, 0)
        self._position: int | None = None
        # The topic's id when it was first looked at, and at the last look.
        self._topic_id: UUID | None = None
        self._present_id: UUID | None = None
        self._is_used = False
        self._reading = asyncio.Lock()

    @property
    def partition(self) -> TopicPartition:
        return self._partition

    async def exists(self) -> bool:
        topic = self._partition.topic
        known = (await self._client.metadata([topic], refresh=True)).topics[topic]
        if known.error not in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION):
            raise error_for(known.error, topic=topic)
        self._present_id = known.topic_id
        return known.error == Code.NONE

    async def is_lost(self) -> bool:
        """Whether the topic that was read or written is missing, or is another one now."""
        if not self._is_used:
            return False
        if not await self.exists():
            return True
        if self._topic_id is None:
            self._topic_id = self._present_id
        return self._present_id != self._topic_id

    def mark_restored(self, partitions: set[TopicPartition]) -> None:
        """These were written again to a topic that was made again, and nothing else is there."""
        # Its id is taken from the next look: metadata may not show the new topic yet.
        self._topic_id = self._position = None
        self.found = {tp: self.found[tp] for tp in partitions if tp in self.found}
        self.blocks = {tp: self.blocks[tp] for tp in partitions if tp in self.blocks}

    def remember(
        self,
        checkpoints: Mapping[TopicPartition, Checkpoint],
        blocks: Mapping[TopicPartition, NewBlocks] | None = None,
    ) -> None:
        """These were written, here or in a transaction that is committed."""
        self._is_used = True
        self.found.update(checkpoints)
        for tp, changed in (blocks or {}).items():
            for start, block in changed.items():
                _keep(self.blocks.setdefault(tp, {}), start, block)

    async def make(self) -> bool:
        """Make the topic if it is missing; returns whether it was."""
        if await self.exists():
            return False
        topic = NewTopic(self._partition.topic, partitions=1, configs=_CONFIGS)
        try:
            await self._client.admin.create_topics([topic])
        except KafkaError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    async def read(self) -> Checkpoints:
        """The last checkpoint of each partition; none if the topic does not exist.

        Reads what is new since the last time. `blocks` has the maps.
        """
        if not await self.exists():
            return {}
        async with self._reading:
            await self._read_to(await self._end("read_uncommitted"))
        return dict(self.found)

    async def read_decided(self) -> bool:
        """Read what no open transaction holds back, into `found`; whether that is all."""
        if not await self.exists():
            return True
        async with self._reading:
            stable = await self._end("read_committed")
            await self._read_to(stable)
            return stable >= await self._end("read_uncommitted")

    async def _end(self, isolation: str) -> int:
        tp = self._partition
        return (await self._client.list_offsets({tp: LATEST}, isolation=isolation))[tp].offset

    async def _read_to(self, end: int) -> None:
        tp = self._partition
        if self._position is None:
            self._position = (await self._client.list_offsets({tp: EARLIEST}))[tp].offset
        while self._position < end:
            records, self._position = await self._read_from(self._position)
            for record in records:
                self._take(record)

    def map_end(
        self, tp: TopicPartition, checkpoint: Checkpoint, *, is_new: bool
    ) -> tuple[MapWriter, NewBlocks]:
        """Where a target partition's offset map goes on, and the blocks that say so."""
        blocks = self.blocks.get(tp, {})
        if is_new:
            writer, void = MapWriter(checkpoint.source_offset), set(blocks)
        else:
            source_offset, target_offset = checkpoint.source_offset, checkpoint.target_offset
            first = checkpoint.generation_target_offset
            writer, void = resumed_writer(blocks, source_offset, target_offset, first=first)
        return writer, {**dict.fromkeys(void), **writer.unsaved()}

    def _take(self, record: Record) -> None:
        try:
            key: dict[str, Any] = json.loads(record.key or b"")
            tp = TopicPartition(str(key["topic"]), int(key["partition"]))
            if "block" in key:
                _keep(self.blocks.setdefault(tp, {}), int(key["block"]), record.value)
            else:
                checkpoint = None if record.value is None else _checkpoint(record.value)
                _keep(self.found, tp, checkpoint)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the record at offset {record.offset} of {self._partition.topic} "
                f"is no checkpoint of ours: {error}",
                remedy="name the mirror differently, or find out who else writes there",
            ) from error

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

    async def write(
        self,
        checkpoints: Mapping[TopicPartition, Checkpoint],
        blocks: Mapping[TopicPartition, NewBlocks] | None = None,
    ) -> None:
        """Add these, the blocks first; returns when they are safe."""
        for batch in encode_checkpoints(checkpoints, blocks):
            await self._client.retrying(partial(self._write_once, batch))
        self.remember(checkpoints, blocks)

    async def _write_once(self, batch: bytearray) -> None:
        tp = self._partition
        result = (await self._client.produce({tp: batch}, acks=-1))[tp]
        if not result.is_ok:
            raise result.error(tp)


def encode_checkpoints(
    checkpoints: Mapping[TopicPartition, Checkpoint],
    blocks: Mapping[TopicPartition, NewBlocks] | None = None,
) -> Iterator[bytearray]:
    """The batches that tell of these, the blocks of offset maps first."""
    yield from map(encode_batch, _in_batches(_records(checkpoints, blocks or {})))


def _records(
    checkpoints: Mapping[TopicPartition, Checkpoint],
    blocks: Mapping[TopicPartition, NewBlocks],
) -> Iterator[Record]:
    now_ms = time.time_ns() // 1_000_000
    for tp, changed in blocks.items():
        for start, block in changed.items():
            yield Record(0, now_ms, _key(tp, block=start), block)
    for tp, checkpoint in checkpoints.items():
        yield Record(0, now_ms, _key(tp), _value(checkpoint))


def _in_batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """As few batches as fit the limit of a topic that has the default one."""
    batch: list[Record] = []
    size = 0
    for record in records:
        size += len(record.key or b"") + len(record.value or b"") + RECORD_EXTRA_BYTES
        if batch and size > BATCH_LIMIT_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(record)
    if batch:
        yield batch


def _key(tp: TopicPartition, **more: int) -> bytes:
    return json.dumps({"topic": tp.topic, "partition": tp.partition, **more}).encode()


def _keep(found: dict[_Key, _Kept], key: _Key, value: _Kept | None) -> None:
    """What a record of a compacted topic says: no value takes the key away."""
    if value is None:
        found.pop(key, None)
    else:
        found[key] = value


def _value(checkpoint: Checkpoint) -> bytes:
    return json.dumps({"format": FORMAT, **to_plain(checkpoint)}).encode()


def _checkpoint(text: bytes) -> Checkpoint:
    value: dict[str, Any] = json.loads(text)
    version = check_version(value.pop("format"), _READ_FORMATS)
    return from_plain(Checkpoint, value, version=version)
