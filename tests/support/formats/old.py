"""Message sets of the formats 0 and 1 as brokers store them, made by kafka-python."""

import struct
import zlib
from collections.abc import Sequence

from kafka.record.legacy_records import LegacyRecordBatchBuilder

from shoal.wire.batch import TIMESTAMP_TYPE_BIT
from shoal.wire.records.compression import Codec, compress
from shoal.wire.records.message_sets import xxh32_short
from shoal.wire.records.records import Record

OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
_OFFSET = struct.Struct(">q")


def old_records(base_offset: int, count: int) -> list[Record]:
    """Records whose values tell their offsets; some keys and values are null."""
    return [
        Record(
            offset=base_offset + index,
            timestamp=1_500_000_000_000 + base_offset + index,
            key=None if index % 3 == 1 else f"key-{base_offset + index}".encode(),
            value=None if index % 5 == 4 else f"{base_offset + index:010d}".encode(),
        )
        for index in range(count)
    ]


def message_set(magic: int, codec: int, records: Sequence[Record]) -> bytearray:
    """One wrapper if it is compressed, else one message after the other."""
    if (magic, codec) == (0, Codec.LZ4):
        return _oldest_lz4(message_set(0, Codec.NONE, records), records[-1].offset)
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    is_relative = magic == 1 and codec != Codec.NONE
    for record in records:
        offset = record.offset - records[0].offset if is_relative else record.offset
        timestamp = record.timestamp if magic else None
        assert builder.append(offset, timestamp, record.key, record.value) is not None
    stored = bytearray(builder.build())
    if codec != Codec.NONE:
        _OFFSET.pack_into(stored, 0, records[-1].offset)
    return stored


def _oldest_lz4(inner: bytearray, last_offset: int) -> bytearray:
    """A wrapper with the frame of Kafka before 0.10: its checksum covers the magic number too."""
    frame = bytearray(compress(Codec.LZ4, inner))
    end = 14 if frame[4] & 0b1000 else 6
    frame[end] = xxh32_short(bytes(frame[:end])) >> 8 & 0xFF
    body = struct.pack(">bbii", 0, Codec.LZ4, -1, len(frame)) + frame
    head = struct.pack(">qiI", last_offset, len(body) + 4, zlib.crc32(body))
    return bytearray(head + body)


def stamp(wrapper: bytearray, append_time_ms: int) -> bytearray:
    """A single message of format 1 with the broker's append time."""
    wrapper[17] |= TIMESTAMP_TYPE_BIT
    _OFFSET.pack_into(wrapper, 18, append_time_ms)
    wrapper[12:16] = zlib.crc32(wrapper[16:]).to_bytes(4, "big")
    return wrapper


def as_read(magic: int, records: Sequence[Record]) -> list[Record]:
    """What a reader sees: format 0 has no timestamps."""
    return [record if magic else record._replace(timestamp=-1) for record in records]
