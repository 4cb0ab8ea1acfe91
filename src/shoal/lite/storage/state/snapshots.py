"""Snapshots of the producer state, so that recovery need not read the whole log.

    00000000000000000042.snapshot    the producers of all batches below offset 42

in Apache Kafka's format: version (1), CRC32C of what follows, the number of producers, and for
each 46 bytes, see `_ENTRY`.

Rules of this file:
- A snapshot is written when a segment begins, and at a clean shutdown. A damaged snapshot, or one
  above the log end, is removed: the state can be read from the log, only more slowly.
- A snapshot has only the last batch of each producer. `add_recent_batches` adds those before it,
  from batches that were read again, so that a producer may repeat any of its last five.
"""

import logging
import struct
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from shoal.lite.storage.files import DamagedFile, replace_file
from shoal.lite.storage.state.producer_state import (
    NO_OFFSET,
    REMEMBERED_BATCHES,
    ProducerState,
    ProducerStates,
    WrittenBatch,
)
from shoal.wire.records.crc import crc32c

SNAPSHOT_SUFFIX: Final = ".snapshot"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
# Producer id and epoch; last sequence, last offset and offset delta of the last batch; timestamp;
# epoch of the transaction coordinator; first offset of the open transaction.
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_SEQUENCES: Final = 1 << 31

_logger = logging.getLogger(__name__)


class ProducerSnapshot(NamedTuple):
    """The producers of all batches below an offset."""

    offset: int
    producers: dict[int, ProducerState]


def encode_snapshot(producers: ProducerStates) -> bytes:
    """The bytes of a snapshot file."""
    entries = [_entry(producer_id, producer) for producer_id, producer in producers.items()]
    body = _COUNT.pack(len(entries)) + b"".join(entries)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def _entry(producer_id: int, producer: ProducerState) -> bytes:
    last_offset, delta = NO_OFFSET, 0
    if producer.batches:
        batch = producer.batches[-1]
        last_offset, delta = batch.last_offset, batch.last_offset - batch.base_offset
    return _ENTRY.pack(
        producer_id,
        producer.epoch,
        producer.last_sequence,
        last_offset,
        delta,
        producer.timestamp_ms,
        producer.coordinator_epoch,
        producer.first_offset,
    )


def decode_snapshot(content: bytes, *, source: str) -> dict[int, ProducerState]:
    """The producers of a snapshot; `DamagedFile`, which names `source`, if it is invalid."""
    body = content[_HEAD.size :]
    if len(body) < _COUNT.size:
        raise DamagedFile(f"{source} is truncated")
    version, crc = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise DamagedFile(f"{source} is a snapshot of unsupported version {version}")
    (count,) = _COUNT.unpack_from(body)
    if crc32c(body) != crc or len(body) != _COUNT.size + count * _ENTRY.size:
        raise DamagedFile(f"{source} contradicts its checksum or its length")
    return {
        fields[0]: _build_producer(*fields[1:])
        for fields in _ENTRY.iter_unpack(body[_COUNT.size :])
    }


def _build_producer(epoch: int, *rest: int) -> ProducerState:
    """The state of a producer from the fields of an entry, without its producer id."""
    last_sequence, last_offset, delta, timestamp_ms, coordinator_epoch, first_offset = rest
    producer = ProducerState(
        epoch,
        coordinator_epoch=coordinator_epoch,
        first_offset=first_offset,
        timestamp_ms=timestamp_ms,
    )
    if last_offset >= 0:
        first_sequence = (last_sequence - delta) % _SEQUENCES
        producer.batches.append(
            WrittenBatch(
                first_sequence, last_sequence, last_offset - delta, last_offset, timestamp_ms
            )
        )
    return producer


def add_recent_batches(producer: ProducerState, recent: ProducerState | None) -> ProducerState:
    """A producer of a snapshot, with the earlier batches that were read from the log."""
    if (
        recent is not None
        and recent.epoch == producer.epoch
        and recent.batches
        and producer.batches
        and recent.batches[-1].last_offset == producer.batches[-1].last_offset
    ):
        producer.batches = deque(recent.batches, maxlen=REMEMBERED_BATCHES)
    return producer


class Snapshots:
    """The snapshot files of one partition's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, offset: int) -> Path:
        return self._folder / f"{offset:020d}{SNAPSHOT_SUFFIX}"

    def offsets(self) -> list[int]:
        """The offsets of all snapshots, ascending."""
        return sorted(int(path.stem) for path in self._folder.glob(f"*{SNAPSHOT_SUFFIX}"))

    def write(self, offset: int, producers: ProducerStates) -> None:
        """Write a snapshot; none at offset 0, where there are no producers."""
        if offset:
            replace_file(self.path(offset), encode_snapshot(producers), durable=False)

    def latest(self, highest_offset: int) -> ProducerSnapshot | None:
        """The last valid snapshot not above an offset; those above it are removed."""
        self.drop_above(highest_offset)
        for offset in reversed(self.offsets()):
            path = self.path(offset)
            try:
                return ProducerSnapshot(
                    offset, decode_snapshot(path.read_bytes(), source=str(path))
                )
            except DamagedFile as damaged:
                _logger.warning("removed a damaged snapshot: %s", damaged)
                path.unlink()
        return None

    def drop_above(self, highest_offset: int) -> None:
        """Remove snapshots above an offset: the log is truncated there."""
        for offset in self.offsets():
            if offset > highest_offset:
                self.path(offset).unlink()

    def keep(self, offsets: set[int]) -> None:
        """Remove all other snapshots except the last one."""
        for offset in self.offsets()[:-1]:
            if offset not in offsets:
                self.path(offset).unlink()
