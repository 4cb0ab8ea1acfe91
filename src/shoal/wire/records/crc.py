"""CRC-32C, and how to change the front of checksummed bytes without reading the rest.

A CRC is linear: for bytes A followed by B, `crc(A+B) = shift(crc(A), len(B)) ^ crc(B)`, where
`shift` advances a CRC over zero bytes. So when A becomes A', the new CRC is the old one XOR
`shift(crc(A) ^ crc(A'), len(B))`: B is never read, and damage in B is still detected.

`shift` costs about the same for 16 KiB and for 1 MiB. It handles the remaining `count & 4095` bytes
with the C function, and the multiple of 4096 with four table lookups. The tables of a multiple are
built when first needed, by composing the shifts over 4096, 8192, 16384, … bytes. Batches have few
different sizes, so the tables are cached, up to a limit.
"""

from array import array
from functools import lru_cache

from crc32c import crc32c

__all__ = ["crc32c", "replace_prefix_crc", "shift"]

_BLOCK_BITS = 12
_BLOCK_MASK = (1 << _BLOCK_BITS) - 1
_ZEROS = memoryview(bytes(1 << _BLOCK_BITS))
_ALL_ONES = 0xFFFFFFFF
# Enough for batches of every size up to 2 MiB; 4 KiB of tables each, 2 MiB in all.
_TABLES_KEPT = 512

_Tables = tuple["array[int]", "array[int]", "array[int]", "array[int]"]


def shift(crc: int, byte_count: int) -> int:
    """Advance `crc` over `byte_count` zero bytes, as a linear operator: 0 stays 0."""
    odd_bytes = byte_count & _BLOCK_MASK
    if odd_bytes:
        # The C function inverts before and after, which would add a constant: undo both.
        crc = crc32c(_ZEROS[:odd_bytes], crc ^ _ALL_ONES) ^ _ALL_ONES
    blocks = byte_count >> _BLOCK_BITS
    if blocks:
        low, second, third, high = _tables(blocks)
        crc = low[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ high[crc >> 24]
    return crc


def replace_prefix_crc(
    old_crc: int,
    old_prefix: bytes | bytearray | memoryview,
    new_prefix: bytes | bytearray | memoryview,
    tail_bytes: int,
) -> int:
    """The CRC after `old_prefix` has become `new_prefix` in front of `tail_bytes` other bytes."""
    return old_crc ^ shift(crc32c(old_prefix) ^ crc32c(new_prefix), tail_bytes)


@lru_cache(maxsize=_TABLES_KEPT)
def _tables(blocks: int) -> _Tables:
    """The shift over `blocks` blocks of 4096 bytes, one table of 256 for each byte of the CRC."""
    images = [1 << bit for bit in range(32)]
    for power in range(blocks.bit_length()):
        if blocks >> power & 1:
            images = [_apply(_power_of_two(power), image) for image in images]
    return (
        _combinations(images[0:8]),
        _combinations(images[8:16]),
        _combinations(images[16:24]),
        _combinations(images[24:32]),
    )


@lru_cache(maxsize=64)
def _power_of_two(power: int) -> tuple[int, ...]:
    """Where the shift over 2^power blocks sends each bit of a CRC."""
    if power == 0:
        return tuple(crc32c(_ZEROS, (1 << bit) ^ _ALL_ONES) ^ _ALL_ONES for bit in range(32))
    half = _power_of_two(power - 1)
    return tuple(_apply(half, image) for image in half)


def _apply(images: tuple[int, ...], crc: int) -> int:
    result = 0
    while crc:
        lowest = crc & -crc
        result ^= images[lowest.bit_length() - 1]
        crc ^= lowest
    return result


def _combinations(images: list[int]) -> "array[int]":
    """The image of every byte, from the images of its eight bits."""
    table = array("I", [0])
    for image in images:
        table.extend(array("I", [image ^ earlier for earlier in table]))
    return table
