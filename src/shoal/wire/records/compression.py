"""The four compression codecs of record batches, with a limit on the size of the output.

The formats that clients write, and that are read here:

    gzip     one or several members
    snappy   raw block (librdkafka) or blocks in the frame of snappy-java (Java and others)
    lz4      frames; blocks independent or linked, with or without sizes and checksums
    zstd     frames with or without their content size

The formats written here can be read by all clients: snappy as one raw block; lz4 with independent
blocks and without a content checksum, because Java refuses linked blocks and computes that checksum
differently.

Sizes that a frame announces are hints: they choose the size of the first buffer, at most
`_FIRST_RATIO` times the input. A buffer that is too small grows up to the caller's limit. So memory
depends on the actual output, never on an announced size.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam

from shoal.wire.errors import LimitExceeded, Malformed, Truncated, UnsupportedCodec

Bytes = bytes | bytearray | memoryview

_FIRST_RATIO = 32
_FIRST_AT_LEAST_BYTES = 4096
_GROWTH = 4
# The message of cramjam for a full output buffer; tests check it for every codec.
_OUTPUT_FULL = "failed to write whole buffer"

# A snappy copy of 64 bytes takes 3 bytes, so this is the largest ratio.
_SNAPPY_RATIO = 22
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = 16
_INT32 = struct.Struct(">i")

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_STORED_BIT = 1 << 31
_LZ4_LEVEL = 1  # the fast compressor, as Java and librdkafka by default
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK_MAX_BYTES = 128 * 1024
_ZSTD_LEVEL = 3
_GZIP_LEVEL = 6


class Codec(IntEnum):
    """The codecs in a batch's attributes, by the names of Kafka's `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: int, data: Bytes, *, level: int | None = None) -> bytes:
    """Compress a records section so that every Kafka client can read it.

    The default level is that of the clients; snappy has no levels.
    """
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL if level is None else level))
    if codec == Codec.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == Codec.LZ4:
        compressor = cramjam.lz4.Compressor(
            level=_LZ4_LEVEL if level is None else level, content_checksum=False, block_linked=False
        )
        compressor.compress(bytes(data))  # it accepts only bytes
        return bytes(compressor.finish())
    if codec == Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))
    raise _codec_error(codec)


def decompress(codec: int, data: Bytes, *, limit_bytes: int) -> Bytes:
    """Decompress `data`; `LimitExceeded` if the result has more than `limit_bytes`.

    Uncompressed data is returned as it is, without a copy.
    """
    if codec == Codec.NONE:
        return data
    if codec == Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), limit_bytes)
    if codec not in _FORMATS:
        raise _codec_error(codec)
    expected_size, decompress_into = _FORMATS[codec]
    view = memoryview(data)
    hint = min(expected_size(view), _FIRST_RATIO * len(view))
    size = min(limit_bytes, max(hint, _FIRST_AT_LEAST_BYTES))
    while True:
        output = bytearray(size)
        try:
            written = decompress_into(view, output)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise Malformed(f"invalid {Codec(codec).name.lower()} data: {error}") from None
            if size >= limit_bytes:
                raise _limit_error(limit_bytes) from None
            size = min(limit_bytes, size * _GROWTH)
        else:
            del output[written:]
            return output


def _decompress_snappy(view: memoryview, limit_bytes: int) -> bytearray:
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        blocks = [(view, _snappy_size(view, 0))]
    else:
        blocks = list(_xerial_blocks(view))
    total_bytes = sum(size for _, size in blocks)
    if total_bytes > limit_bytes:
        raise _limit_error(limit_bytes)
    output = bytearray(total_bytes)
    free = memoryview(output)
    for block, size in blocks:
        try:
            cramjam.snappy.decompress_raw_into(block, free[:size])
        except cramjam.DecompressionError as error:
            raise Malformed(f"invalid snappy data: {error}") from None
        free = free[size:]
    return output


def _xerial_blocks(view: memoryview) -> list[tuple[memoryview, int]]:
    """The blocks in snappy-java's frame: magic, two versions, then length and block each."""
    if len(view) < _XERIAL_HEADER_SIZE:
        raise Truncated("the bytes end inside the header of snappy-java", position=len(view))
    blocks = []
    position = _XERIAL_HEADER_SIZE
    while position < len(view):
        start = position + _INT32.size
        if start > len(view):
            raise Truncated("the bytes end inside a snappy block's length", position=position)
        (length,) = _INT32.unpack_from(view, position)
        if not 0 < length <= len(view) - start:
            message = f"a snappy block of {length} bytes, but {len(view) - start} bytes are left"
            raise Malformed(message, position=position)
        block = view[start : start + length]
        blocks.append((block, _snappy_size(block, start)))
        position = start + length
    return blocks


def _snappy_size(block: memoryview, position: int) -> int:
    """The announced size of a raw block; refused if it is impossible."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise Malformed(f"invalid snappy data: {error}", position=position) from None
    if size > _SNAPPY_RATIO * len(block):
        message = f"a snappy block of {len(block)} bytes cannot hold {size}"
        raise Malformed(message, position=position)
    if not block:
        raise Truncated("an empty snappy block", position=position)
    return size


def _gzip_size(view: memoryview) -> int:
    """The size of the last member from its trailer: correct if there is only one member."""
    return int.from_bytes(view[-4:], "little")


def _lz4_size(view: memoryview) -> int:
    """The content size of the first frame, or the most that its blocks can hold."""
    if len(view) < 7 or view[:4] != _LZ4_MAGIC:
        return 0
    flags = view[4]
    if flags & 0b1000:
        return int.from_bytes(view[6:14], "little")
    block_max_bytes = 1 << (2 * (view[5] >> 4 & 7) + 8)
    checksum_size = 4 if flags & 0b10000 else 0
    position = 7
    total_bytes = 0
    while position + 4 <= len(view):
        size = int.from_bytes(view[position : position + 4], "little")
        if size == 0:
            break
        stored = size & _LZ4_STORED_BIT
        size &= _LZ4_STORED_BIT - 1
        total_bytes += size if stored else block_max_bytes
        position += 4 + size + checksum_size
    return total_bytes


def _zstd_size(view: memoryview) -> int:
    """The content size of the first frame, or the most that its blocks can hold."""
    if len(view) < 6 or view[:4] != _ZSTD_MAGIC:
        return 0
    descriptor = view[4]
    single_segment = descriptor >> 5 & 1
    # Header: descriptor, window byte unless single, dictionary id, content size.
    position = 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    if size_bytes:
        size = int.from_bytes(view[position : position + size_bytes], "little")
        return size + 256 if size_bytes == 2 else size
    total_bytes = 0
    while position + 3 <= len(view):
        header = int.from_bytes(view[position : position + 3], "little")
        kind, size = header >> 1 & 3, header >> 3
        total_bytes += _ZSTD_BLOCK_MAX_BYTES if kind == 2 else size
        position += 3 + (1 if kind == 1 else size)
        if header & 1:
            break
    return total_bytes


def _limit_error(limit_bytes: int) -> LimitExceeded:
    return LimitExceeded(f"decompresses to more than the limit of {limit_bytes} bytes")


def _codec_error(codec: int) -> UnsupportedCodec:
    return UnsupportedCodec(f"unknown compression codec {codec}", position=21)


_FORMATS: dict[int, tuple[Callable[[memoryview], int], Callable[[Any, Any], int]]] = {
    Codec.GZIP: (_gzip_size, cramjam.gzip.decompress_into),
    Codec.LZ4: (_lz4_size, cramjam.lz4.decompress_into),
    Codec.ZSTD: (_zstd_size, cramjam.zstd.decompress_into),
}
