"""Converts message sets of formats 0 and 1, written before Kafka 0.11, to batches.

    message = offset 8, size 4, CRC-32 4, magic 1, attributes 1, timestamp 8 (format 1 only),
              key, value (each a length of 4 bytes, -1 for null, and bytes)

Attributes: bits 0 to 2 codec, 3 the timestamp is the broker's append time. A compressed message
is a wrapper: its value is a message set of the same format. The wrapper's offset is that of its
last message; in format 1 the offsets inside are relative.

Rules of this file:
- Offsets, keys, values and codec are kept. Format 0 has no timestamps: they become -1, as in a
  conversion by a broker. An append time becomes the create time, because it differs from message to
  message, and a batch has only one append time.
- A wrapper becomes one batch; uncompressed messages are collected into batches of `RUN_BYTES`.
- Every CRC is checked, and every length is checked before it is used.
- An incomplete last message is left out: a fetch returns a slice of the log.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from shoal.model.errors import UsageError
from shoal.wire.batch import (
    CODEC_MASK,
    LENGTH_END,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    Batch,
    batch_at,
)
from shoal.wire.errors import CorruptBatch, Malformed, Truncated
from shoal.wire.records.compression import Codec, decompress
from shoal.wire.records.records import DEFAULT_LIMIT_BYTES, Record, encode_batch

OLD_FORMATS: Final = (0, 1)
RUN_BYTES: Final = 128 << 10

_MAGIC_AT: Final = 16
_ENTRY: Final = struct.Struct(">qi")
_MESSAGE: Final = struct.Struct(">Ibb")  # after offset and size
_TIMESTAMP: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_LEAST_SIZE: Final = {0: 14, 1: 22}
_CRC_SIZE: Final = 4


class ReadBatch(NamedTuple):
    """A batch, and the stored format of its messages; 2 if it was not converted."""

    batch: Batch
    stored_format: int


class _Message(NamedTuple):
    offset: int
    magic: int
    codec: int
    is_stamped: bool
    timestamp: int
    key: bytes | None
    value: bytes | None

    def record(self) -> Record:
        return Record(self.offset, self.timestamp, self.key, self.value)


def read_batches(record_set: memoryview) -> Iterator[ReadBatch]:
    """The complete batches of a record set in order; old formats are converted."""
    position = 0
    run: list[_Message] = []
    run_bytes = 0
    while len(record_set) - position > _MAGIC_AT:
        magic = record_set[position + _MAGIC_AT]
        if magic not in OLD_FORMATS:
            yield from _convert_run(run)
            run, run_bytes = [], 0
            batch = batch_at(record_set, position)
            if batch is None:
                return
            yield ReadBatch(batch, batch.magic)
            position += batch.size
            continue
        message, next_position = _read_message(record_set, position)
        if message is None:
            break
        is_other = run and run[-1].magic != message.magic
        if message.codec != Codec.NONE or is_other or run_bytes >= RUN_BYTES:
            yield from _convert_run(run)
            run, run_bytes = [], 0
        if message.codec != Codec.NONE:
            yield _convert_wrapper(message)
        else:
            run.append(message)
            run_bytes += next_position - position
        position = next_position
    yield from _convert_run(run)


def _read_message(view: memoryview, position: int) -> tuple[_Message | None, int]:
    """A message and the position after it; None if it is incomplete."""
    offset, size = _ENTRY.unpack_from(view, position)
    start = position + LENGTH_END
    magic = view[position + _MAGIC_AT]
    if magic not in OLD_FORMATS or size < _LEAST_SIZE[magic]:
        raise Malformed(
            f"a message of format {magic} has an invalid size: {size} bytes", position=position + 8
        )
    end = start + size
    if end > len(view):
        return None, position
    crc, _, attributes = _MESSAGE.unpack_from(view, start)
    computed = zlib.crc32(view[start + _CRC_SIZE : end])
    if computed != crc:
        message = (
            f"the checksum of offset {offset} is {computed:#010x}, its message has {crc:#010x}"
        )
        raise CorruptBatch(message, position=start)
    body = start + _MESSAGE.size
    timestamp = NO_TIMESTAMP
    if magic:
        (timestamp,) = _TIMESTAMP.unpack_from(view, body)
        body += _TIMESTAMP.size
    key, body = _read_bytes(view, body, end)
    value, body = _read_bytes(view, body, end)
    if body != end:
        raise Malformed(f"{end - body} bytes after the value of a message", position=body)
    is_stamped = bool(magic and attributes & TIMESTAMP_TYPE_BIT)
    codec = attributes & CODEC_MASK
    return _Message(offset, magic, codec, is_stamped, timestamp, key, value), end


def _read_bytes(view: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    start = position + _LENGTH.size
    if start > end:
        raise Truncated("a message ends inside a length", position=position)
    (length,) = _LENGTH.unpack_from(view, position)
    if length == -1:
        return None, start
    if not 0 <= length <= end - start:
        message = f"a field of {length} bytes, but the message has {end - start} left"
        raise Malformed(message, position=position)
    return bytes(view[start : start + length]), start + length


def _convert_run(run: Sequence[_Message]) -> Iterator[ReadBatch]:
    if run:
        records = [message.record() for message in run]
        yield ReadBatch(_encode(records, Codec.NONE), run[0].magic)


def _convert_wrapper(wrapper: _Message) -> ReadBatch:
    """Convert the messages inside a compressed one to a batch."""
    data = b"" if wrapper.value is None else wrapper.value
    if wrapper.magic == 0 and wrapper.codec == Codec.LZ4:
        data = _correct_lz4_checksum(data)
    inner = list(_read_inner(wrapper, data))
    if not inner:
        raise Malformed(f"the compressed message at offset {wrapper.offset} contains no messages")
    base = wrapper.offset - inner[-1].offset if wrapper.magic else 0
    timestamp = wrapper.timestamp if wrapper.is_stamped else None
    records = [
        message.record()._replace(
            offset=base + message.offset,
            timestamp=message.timestamp if timestamp is None else timestamp,
        )
        for message in inner
    ]
    return ReadBatch(_encode(records, wrapper.codec), wrapper.magic)


def _read_inner(wrapper: _Message, data: bytes) -> Iterator[_Message]:
    view = memoryview(bytes(decompress(wrapper.codec, data, limit_bytes=DEFAULT_LIMIT_BYTES)))
    position = 0
    while position < len(view):
        if len(view) - position <= _MAGIC_AT:
            raise Truncated("a compressed message ends inside a header", position=position)
        message, position = _read_message(view, position)
        if message is None:
            raise Truncated("a compressed message ends inside a message", position=position)
        if message.codec != Codec.NONE or message.magic != wrapper.magic:
            raise Malformed(
                f"the compressed message at offset {wrapper.offset} contains a compressed one"
            )
        yield message


def _encode(records: list[Record], codec: int) -> Batch:
    first = records[0].offset
    if first < 0 or any(one.offset >= other.offset for one, other in pairwise(records)):
        raise Malformed(f"the offsets of messages do not increase from {first} on")
    try:
        encoded = encode_batch(records, codec=codec, base_offset=first, keep_offsets=True)
    except UsageError as error:
        raise Malformed(
            f"messages from offset {first} on do not fit into a batch: {error}"
        ) from None
    return Batch(memoryview(encoded))


# Kafka before 0.10 computed the checksum of an LZ4 frame's header over the magic number too
# (KAFKA-3160), which no other decoder accepts.

_LZ4_MAGIC_SIZE: Final = 4
_LZ4_HAS_SIZE_BIT: Final = 0b1000
_PRIMES: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
_MASK: Final = 0xFFFFFFFF


def _correct_lz4_checksum(data: bytes) -> bytes:
    if len(data) < 7:
        return data
    end = _LZ4_MAGIC_SIZE + (10 if data[_LZ4_MAGIC_SIZE] & _LZ4_HAS_SIZE_BIT else 2)
    checksum = xxh32_short(data[_LZ4_MAGIC_SIZE:end]) >> 8 & 0xFF
    return data[:end] + bytes([checksum]) + data[end + 1 :]


def xxh32_short(data: bytes) -> int:
    """XXH32 with seed 0 for fewer than 16 bytes."""
    prime_1, prime_2, prime_3, prime_4, prime_5 = _PRIMES
    result = prime_5 + len(data)
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        result += int.from_bytes(data[position : position + 4], "little") * prime_3
        result = _rotate(result & _MASK, 17) * prime_4 & _MASK
    for byte in data[whole:]:
        result = _rotate((result + byte * prime_5) & _MASK, 11) * prime_1 & _MASK
    result = (result ^ result >> 15) * prime_2 & _MASK
    result = (result ^ result >> 13) * prime_3 & _MASK
    return result ^ result >> 16


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
