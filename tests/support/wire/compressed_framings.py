"""Compressed data as other clients write it, and data that lies about its size."""

import struct
import zlib
from collections.abc import Callable

import cramjam

from shoal.wire.records.compression import Codec


def snappy_java(data: bytes, block_bytes: int = 32 * 1024) -> bytes:
    """As Java and most clients write snappy: blocks in the frame of snappy-java."""
    output = bytearray(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
    for start in range(0, len(data), block_bytes):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + block_bytes]))
        output += struct.pack(">i", len(block)) + block
    return bytes(output)


def gzip_members(data: bytes) -> bytes:
    """Two gzip members, one behind the other."""
    half = len(data) // 2
    return b"".join(bytes(cramjam.gzip.compress(part)) for part in (data[:half], data[half:]))


def gzip_zlib(data: bytes) -> bytes:
    """As zlib, and so Java, writes gzip."""
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(data) + compressor.flush()


def lz4_linked(data: bytes) -> bytes:
    """Linked blocks and a content checksum, as lz4's command line writes by default."""
    return bytes(cramjam.lz4.compress(data))


def zstd_unsized(data: bytes) -> bytes:
    """A stream without its content size, as Java writes it."""
    compressor = cramjam.zstd.Compressor(3)
    compressor.compress(data)
    return bytes(compressor.finish())


FRAMINGS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "snappy-java": (Codec.SNAPPY, snappy_java),
    "raw snappy": (Codec.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "gzip members": (Codec.GZIP, gzip_members),
    "gzip by zlib": (Codec.GZIP, gzip_zlib),
    "lz4 linked": (Codec.LZ4, lz4_linked),
    "zstd unsized": (Codec.ZSTD, zstd_unsized),
    "zstd frames": (Codec.ZSTD, lambda data: zstd_unsized(data[:9]) + zstd_unsized(data[9:])),
}

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def zstd_bomb(expanded_bytes: int) -> bytes:
    """A frame of run-length blocks: 4 bytes for each 128 KiB."""
    block_bytes = 128 * 1024
    block = (block_bytes << 3 | 1 << 1).to_bytes(3, "little") + b"\x00"
    last = (1 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\x00"
    return _ZSTD_MAGIC + b"\x00\x58" + block * (expanded_bytes // block_bytes) + last


def gzip_bomb(expanded_bytes: int) -> bytes:
    """Members of zeros: a thousandth of what comes out."""
    member_bytes = 16 * 1024 * 1024
    return gzip_zlib(bytes(member_bytes)) * (expanded_bytes // member_bytes)


def lz4_bomb(expanded_bytes: int) -> bytes:
    """Blocks of zeros, 4 MiB each: a 255th of what comes out."""
    block_bytes = 4 * 1024 * 1024
    block = bytes(cramjam.lz4.compress_block(bytes(block_bytes), store_size=False))
    header = b"\x04\x22\x4d\x18\x60\x70\x73"
    blocks = (struct.pack("<I", len(block)) + block) * (expanded_bytes // block_bytes)
    return header + blocks + struct.pack("<I", 0)


def snappy_bomb(expanded_bytes: int) -> bytes:
    """Blocks of zeros in snappy-java's frame: a 21st of what comes out."""
    block_bytes = 1024 * 1024
    block = bytes(cramjam.snappy.compress_raw(bytes(block_bytes)))
    framed = (struct.pack(">i", len(block)) + block) * (expanded_bytes // block_bytes)
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + framed


BOMBS: dict[Codec, Callable[[int], bytes]] = {
    Codec.GZIP: gzip_bomb,
    Codec.SNAPPY: snappy_bomb,
    Codec.LZ4: lz4_bomb,
    Codec.ZSTD: zstd_bomb,
}


def _lz4_liar() -> bytes:
    """A frame of one stored byte that announces 2^60. Its header checksum is found by trying."""
    header = b"\x04\x22\x4d\x18\x68\x40" + struct.pack("<Q", 1 << 60)
    body = struct.pack("<I", 1 | 1 << 31) + b"a" + bytes(4)
    for checksum in range(256):
        frame = header + bytes((checksum,)) + body
        try:
            cramjam.lz4.decompress(frame)
        except cramjam.DecompressionError as error:
            if "headerChecksum" not in str(error):
                return frame
    raise AssertionError("no checksum fits")


# Frames that announce far more than they hold.
LIARS: dict[str, tuple[Codec, bytes]] = {
    "gzip trailer": (Codec.GZIP, gzip_zlib(b"small")[:-4] + b"\xff\xff\xff\xff"),
    "snappy length": (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00a"),
    "snappy-java block": (Codec.SNAPPY, snappy_java(b"")[:16] + b"\x7f\xff\xff\xff" + b"\x01\x00a"),
    "lz4 content size": (Codec.LZ4, _lz4_liar()),
    "zstd window and size": (
        Codec.ZSTD,
        _ZSTD_MAGIC + b"\xe0" + struct.pack("<Q", 1 << 60) + b"\x09\x00\x00a",
    ),
    "zstd content size": (
        Codec.ZSTD,
        _ZSTD_MAGIC + b"\xc0\x00" + struct.pack("<Q", 1 << 60) + b"\x09\x00\x00a",
    ),
}
