"""The checkpoints of a mirror, in the topic `__shoal_mirror_<name>` on its target.

One record per target partition: its key is JSON with `topic` and `partition`, its value is JSON
with the fields of `Checkpoint`. The blocks of the partition's offset map
(`shoal.mirror.offsets.offset_map`) are records of the same topic: their key also has `block`, the
first source offset of the block, and their value is not JSON. The topic has one partition and is
compacted.

Rules:
- A checkpoint describes a moment at which everything below it was acknowledged. An old checkpoint
  is as valid as a new one, only further back. So it may be written late, twice, or by a process
  that was declared dead. One of an earlier generation is not: it does not count, and a process
  that finds a later one writes neither its own nor the blocks of its map. With transactional
  delivery the checkpoint *is* the position: it is written only in the transaction that it
  describes.
- Checkpoints are read with read_committed and to the end: a reader waits for open transactions. A
  dead process would block it until its transaction timeout, so a process that may replace the dead
  one aborts that transaction first (`shoal.mirror.run.transaction_session`).
- The first checkpoint is written before the first record: a target partition that is not empty and
  has no checkpoint was not written by this mirror.
- Blocks of the map are written before the checkpoint that relies on them, or with it. Map entries
  above the checkpoint do not count.
- A checkpoint contains the identity of source and target: a recreated topic is another topic, and
  its copy another generation (`shoal.mirror.watch.generations`).
- Serialised field names are next to the types (`shoal.model.serialised`). Format 4 has `lost`,
  which format 3 lacks; both leave out fields that have their default. Format 2 has all fields.
  Format 1 has no generations and is read as the first one; it may lack the fields marked so.
- Many partitions are written as one batch, compressed by gzip, which every Kafka reads. Segments
  are small, because only closed ones are compacted: a start reads the present state once or twice,
  and one open segment. Of what it reads it decodes only the last record of each key (and
  generation).
"""

import asyncio
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Annotated, Any, Final, TypeVar
from uuid import UUID

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.client.errors import KafkaError, error_for
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.results import EARLIEST, LATEST
from shoal.mirror.offsets.offset_map import (
    MAP_LIMIT_BYTES,
    MAPS_LIMIT_BYTES,
    MapWriter,
    find_excess,
    resume_writer,
)
from shoal.model.errors import ConfigError
from shoal.model.serialised import AbsentUpTo, check_version, from_plain, to_plain
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch, iter_batches
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import Record, decode_records, encode_batch

PREFIX: Final = "__shoal_mirror_"
FORMAT: Final = 4
_READ_FORMATS: Final = (1, 2, 3, 4)
_OPTIONAL_IN_1: Final = AbsentUpTo(1)
_SINCE_4: Final = AbsentUpTo(3)
NAME_LIMIT: Final = 200
# Of one write; more data is split into several.
BATCH_LIMIT_BYTES: Final = 500_000
RECORD_EXTRA_BYTES: Final = 30

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
# In the key of a block, and in the value of a checkpoint.
_BLOCK: Final = b'"block"'
_GENERATION: Final = re.compile(rb'"generation": ?([0-9]+)')
# Records below this size in total hardly become shorter.
_COMPRESS_FROM_BYTES: Final = 1000
_CONFIGS: Final = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.3",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything below `source_offset` is at the target, below `target_offset`."""

    source_cluster: Annotated[str | None, "source_cluster"]
    source_topic_id: Annotated[str | None, "source_topic_id"]
    target_topic_id: Annotated[str | None, "target_topic_id"]
    delivery: Annotated[str, "delivery"]
    source_offset: Annotated[int, "source_offset"]
    target_offset: Annotated[int, "target_offset"]
    # Idempotent delivery: the producer, and its next sequence.
    producer_id: Annotated[int, "producer_id", _OPTIONAL_IN_1] = -1
    producer_epoch: Annotated[int, "producer_epoch", _OPTIONAL_IN_1] = -1
    sequence: Annotated[int, "sequence", _OPTIONAL_IN_1] = 0
    # Compare-and-append and transactions: how often the partition was taken over.
    mirror_epoch: Annotated[int, "mirror_epoch", _OPTIONAL_IN_1] = 0
    # Transactions: the transactional.id that wrote last.
    transactional_id: Annotated[str, "lane", _OPTIONAL_IN_1] = ""
    # If the target topic has another name.
    source_topic: Annotated[str | None, "source_topic", _OPTIONAL_IN_1] = None
    # The leader epoch of the last batch read from the source.
    source_epoch: Annotated[int, "source_epoch", _OPTIONAL_IN_1] = -1
    # The origins of the source topic, if it is a copy itself.
    came_by: Annotated[tuple[str, ...], "came_by", _OPTIONAL_IN_1] = ()
    # The leader epochs below `source_offset`, each with the first offset read in it.
    source_epochs: Annotated[tuple[tuple[int, int], ...], "source_epochs", _OPTIONAL_IN_1] = ()
    # Records at the target that the source lost after they were copied.
    truncated: Annotated[int, "truncated", _OPTIONAL_IN_1] = 0
    # Offsets that the source deleted before they were copied.
    lost: Annotated[int, "lost", _SINCE_4] = 0
    # The number of this copy, from 1, why it began, and its first target offset. A new generation
    # begins when the source or target topic is deleted and created again.
    generation: Annotated[int, "generation", _OPTIONAL_IN_1] = 1
    generation_reason: Annotated[str, "generation_reason", _OPTIONAL_IN_1] = ""
    generation_target_offset: Annotated[int, "generation_target_offset", _OPTIONAL_IN_1] = 0
    # The source offset at which this copy began; -1 if written by an older version.
    began_at: Annotated[int, "began_at", _OPTIONAL_IN_1] = -1
    # The target has lost acknowledged records: no start may continue after the gap.
    target_lost: Annotated[bool, "target_lost", _OPTIONAL_IN_1] = False
    # When this mirror was first started, and how many partitions the source topic had when this
    # copy began: a later start uses them to recognise new partitions. 0 if unknown.
    mirror_began_ms: Annotated[int, "mirror_began_ms", _OPTIONAL_IN_1] = 0
    source_partitions: Annotated[int, "source_partitions", _OPTIONAL_IN_1] = 0

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)


Checkpoints = dict[TopicPartition, Checkpoint]
NewBlocks = Mapping[int, bytes | None]  # None deletes a block
_Key = TypeVar("_Key", int, TopicPartition)
_Kept = TypeVar("_Kept", bytes, Checkpoint)


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > NAME_LIMIT:
        raise ConfigError(
            f"{name!r} is not a valid name of a mirror",
            remedy=f"use at most {NAME_LIMIT} letters, digits, '.', '_' and '-'",
        )


class CheckpointTopic:
    """The checkpoint topic of one mirror."""

    def __init__(self, client: Client, name: str, *, replication_factor: int = -1) -> None:
        """With -1 the target's default replication factor is used."""
        check_name(name)
        self.name = name
        self._replication_factor = replication_factor
        self.found: Checkpoints = {}
        self.blocks: dict[TopicPartition, dict[int, bytes]] = {}
        self._client = client
        self._partition = TopicPartition(PREFIX + name, 0)
        self._position: int | None = None
        # The topic's id when it was first read, and when it was last read.
        self._topic_id: UUID | None = None
        self._present_id: UUID | None = None
        self._is_used = False
        self._reading = asyncio.Lock()

    @property
    def partition(self) -> TopicPartition:
        return self._partition

    async def exists(self) -> bool:
        topic = self._partition.topic
        known = (await self._client.metadata_of([topic])).topics[topic]
        if known.error not in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION):
            raise error_for(known.error, topic=topic)
        self._present_id = known.topic_id
        return known.error == Code.NONE

    async def is_lost(self) -> bool:
        """Whether the topic that was read or written is missing or was recreated."""
        if not self._is_used:
            return False
        if not await self.exists():
            return True
        if self._topic_id is None:
            self._topic_id = self._present_id
        return self._present_id != self._topic_id

    def mark_restored(self, partitions: set[TopicPartition]) -> None:
        """The checkpoints of these were written to the recreated topic, which has no others."""
        # Its id is read later: metadata may not have the new topic yet.
        self._topic_id = self._position = None
        self.found = {tp: self.found[tp] for tp in partitions if tp in self.found}
        self.blocks = {tp: self.blocks[tp] for tp in partitions if tp in self.blocks}

    def remember(
        self,
        checkpoints: Mapping[TopicPartition, Checkpoint],
        blocks: Mapping[TopicPartition, NewBlocks] | None = None,
    ) -> None:
        """Record checkpoints that were written, here or in a committed transaction."""
        if checkpoints or any((blocks or {}).values()):
            self._is_used = True
        self.found.update(checkpoints)
        for tp, changed in (blocks or {}).items():
            for start, block in changed.items():
                _apply_value(self.blocks.setdefault(tp, {}), start, block)

    def limit_maps(
        self, blocks: Mapping[TopicPartition, NewBlocks]
    ) -> dict[TopicPartition, NewBlocks]:
        """Return blocks to write, and the deletion of older blocks that exceed the limit."""
        limited: dict[TopicPartition, NewBlocks] = {}
        for tp, changed in blocks.items():
            known = self.blocks.get(tp, {})
            limited[tp] = changed
            if any(start not in known for start in changed):
                merged = {**known, **{start: each for start, each in changed.items() if each}}
                excess = find_excess(merged, self._map_limit())
                limited[tp] = {**dict.fromkeys(excess), **changed}
        return limited

    def _map_limit(self) -> int:
        """How large the map of a partition may be: less than usual if all together are large."""
        count = max(1, len(self.blocks))
        if count * MAP_LIMIT_BYTES <= MAPS_LIMIT_BYTES:
            return MAP_LIMIT_BYTES  # the usual case, for which nothing is summed up
        size = sum(len(block) for blocks in self.blocks.values() for block in blocks.values())
        return MAP_LIMIT_BYTES if size <= MAPS_LIMIT_BYTES else MAPS_LIMIT_BYTES // count

    async def create_if_missing(self) -> bool:
        """Create the topic if it is missing; returns whether it was."""
        if await self.exists():
            return False
        topic = NewTopic(
            self._partition.topic,
            partitions=1,
            replication_factor=self._replication_factor,
            configs=_CONFIGS,
        )
        try:
            await self._client.admin.create_topics([topic])
        except KafkaError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    async def read(self) -> Checkpoints:
        """Return the last checkpoint of each partition; empty if the topic does not exist.

        Reads only records that are new since the last call. `blocks` has the maps.
        """
        if not await self.exists():
            return {}
        async with self._reading:
            await self._read_to(await self._end("read_uncommitted"))
        return dict(self.found)

    async def read_decided(self) -> bool:
        """Read up to the last stable offset, into `found`; whether that is the log end."""
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
        latest: dict[tuple[bytes | None, int], Record] = {}
        position = self._position
        while position < end:
            records, position = await self._read_from(position)
            for record in records:
                place = record.key, _find_generation(record)
                latest.pop(place, None)  # so that they stay in order
                latest[place] = record
        for record in latest.values():
            self._apply_record(record)
        self._position = position

    def resume_map(
        self, tp: TopicPartition, checkpoint: Checkpoint, *, is_new: bool
    ) -> tuple[MapWriter, NewBlocks]:
        """Create the writer that continues an offset map; returns it and the blocks to write."""
        blocks = self.blocks.get(tp, {})
        if is_new:
            writer, void = MapWriter(checkpoint.source_offset), set(blocks)
        else:
            source_offset, target_offset = checkpoint.source_offset, checkpoint.target_offset
            first = checkpoint.generation_target_offset
            writer, void = resume_writer(blocks, source_offset, target_offset, first=first)
        return writer, {**dict.fromkeys(void), **writer.blocks_to_save()}

    def _apply_record(self, record: Record) -> None:
        try:
            key: dict[str, Any] = json.loads(record.key or b"")
            tp = TopicPartition(str(key["topic"]), int(key["partition"]))
            if "block" in key:
                _apply_value(self.blocks.setdefault(tp, {}), int(key["block"]), record.value)
            else:
                checkpoint = None if record.value is None else _checkpoint(record.value)
                if checkpoint is None or not self._is_outdated(tp, checkpoint):
                    _apply_value(self.found, tp, checkpoint)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the record at offset {record.offset} of topic {self._partition.topic} "
                f"is not a valid checkpoint: {error}",
                remedy="choose another --name, or find out what else writes to the topic",
            ) from error

    async def _read_from(self, position: int) -> tuple[list[Record], int]:
        """Fetch some records from a position; returns them and the next position."""
        tp = self._partition

        async def attempt() -> tuple[list[Record], int]:
            part = (await self._client.fetch({tp: position}, isolation="read_committed"))[tp]
            if part.error_code != Code.NONE:
                raise error_for(part.error_code, topic=tp.topic, partition=tp.partition)
            records: list[Record] = []
            next_offset = position
            aborted_filter = AbortedFilter(part.aborted)
            for batch in iter_batches(part.records):
                if aborted_filter.classify(batch) is BatchKind.DATA:
                    batch.check_crc()
                    records += [r for r in decode_records(batch) if r.offset >= position]
                next_offset = batch.next_offset
            return records, next_offset

        return await self._client.with_retries(attempt)

    async def write(
        self,
        checkpoints: Mapping[TopicPartition, Checkpoint],
        blocks: Mapping[TopicPartition, NewBlocks] | None = None,
    ) -> None:
        """Write checkpoints, after their blocks; returns when they are acknowledged.

        Partitions of which another process has begun a later generation are left out.
        """
        if checkpoints:
            await self._read_new()
        outdated = {tp for tp, each in checkpoints.items() if self._is_outdated(tp, each)}
        checkpoints = {tp: each for tp, each in checkpoints.items() if tp not in outdated}
        blocks = {tp: each for tp, each in (blocks or {}).items() if tp not in outdated}
        for batch in encode_checkpoints(checkpoints, blocks):
            await self._client.with_retries(partial(self._write_once, batch))
        self.remember(checkpoints, blocks)

    async def _write_once(self, batch: bytearray) -> None:
        tp = self._partition
        result = (await self._client.produce({tp: batch}, acks=-1))[tp]
        if not result.is_ok:
            raise result.error(tp)
        if result.base_offset == self._position:
            self._position += Batch(memoryview(batch)).record_count  # not read again

    async def _read_new(self) -> None:
        """Read what others have written."""
        async with self._reading:
            end = partial(self._end, "read_committed")
            await self._read_to(await self._client.with_retries(end))

    def _is_outdated(self, tp: TopicPartition, checkpoint: Checkpoint) -> bool:
        """Whether a later generation of the copy has begun."""
        known = self.found.get(tp)
        return known is not None and checkpoint.generation < known.generation


def encode_checkpoints(
    checkpoints: Mapping[TopicPartition, Checkpoint],
    blocks: Mapping[TopicPartition, NewBlocks] | None = None,
) -> Iterator[bytearray]:
    """Encode checkpoints to batches, with the blocks of offset maps first."""
    for records in _in_batches(_records(checkpoints, blocks or {})):
        is_large = sum(map(_size, records)) >= _COMPRESS_FROM_BYTES
        yield encode_batch(records, codec=Codec.GZIP if is_large else Codec.NONE)


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
    """Group records into batches below the default max.message.bytes."""
    batch: list[Record] = []
    size = 0
    for record in records:
        size += _size(record)
        if batch and size > BATCH_LIMIT_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(record)
    if batch:
        yield batch


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"") + RECORD_EXTRA_BYTES


def _key(tp: TopicPartition, **more: int) -> bytes:
    # As all versions write it: compaction compares the bytes.
    return json.dumps({"topic": tp.topic, "partition": tp.partition, **more}).encode()


def _apply_value(found: dict[_Key, _Kept], key: _Key, value: _Kept | None) -> None:
    """Apply a record of a compacted topic: a tombstone deletes the key."""
    if value is None:
        found.pop(key, None)
    else:
        found[key] = value


def _find_generation(record: Record) -> int:
    """The generation of a checkpoint, without decoding it."""
    is_block = _BLOCK in (record.key or b"")
    found = None if is_block else _GENERATION.search(record.value or b"")
    return 1 if found is None else int(found[1])


def _value(checkpoint: Checkpoint) -> bytes:
    plain = to_plain(checkpoint)
    changed = {name: each for name, each in plain.items() if each != _DEFAULTS.get(name, _NONE)}
    return json.dumps({"format": FORMAT, **changed}, separators=(",", ":")).encode()


def _checkpoint(text: bytes) -> Checkpoint:
    value: dict[str, Any] = json.loads(text)
    version = check_version(value.pop("format"), _READ_FORMATS)
    if version >= _FIRST_WITHOUT_DEFAULTS:
        value = {**_DEFAULTS, **value}
    return from_plain(Checkpoint, value, version=version)


def _find_defaults() -> dict[str, Any]:
    """The default of each field that has one, by its serialised name."""
    needed = {each.name for each in fields(Checkpoint) if each.default is MISSING}
    blank = to_plain(Checkpoint(None, None, None, "", 0, 0))
    return {name: value for name, value in blank.items() if name not in needed}


_FIRST_WITHOUT_DEFAULTS: Final = 3
_NONE: Final = object()
_DEFAULTS: Final = _find_defaults()
