"""Compiled loops over many messages at once; only `envelope_columns` calls them.

Rules:
- All compiled code is in this file: numba's cache checks only the time stamp of the file of the
  outermost function, so a changed helper in another file would not be recompiled.
- Signatures are explicit and inputs are read-only, so that each kernel is compiled once for all
  kinds of arrays.
- A kernel never reads outside the ranges it is given, for any content of the bytes.
- The checksum is CRC-32C: by a processor instruction if available (x86 with SSE 4.2: 10 GB/s),
  else by eight tables (1.8 GB/s).

Importing this module loads numba, and compiles if numba's cache is empty.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir

F = TypeVar("F", bound=Callable[..., Any])

# Numba's type hints are wrong for most of its types, so they are hidden from the type checker.
types: Any = numba.types
cgutils: Any = numba.core.cgutils

BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
LONGS_IN = types.Array(types.int64, 1, "C", readonly=True)
TABLES_IN = types.Array(types.uint32, 2, "C", readonly=True)
BYTES = types.Array(types.uint8, 1, "C")
INTS = types.Array(types.int32, 1, "C")
LONGS = types.Array(types.int64, 1, "C")
HASHES = types.Array(types.uint64, 1, "C")
TOPICS = types.Array(types.uint32, 1, "C")
KINDS = types.Array(types.int8, 1, "C")
FLAGS = types.Array(types.boolean, 1, "C")

HAS_CRC_INSTRUCTION = llvmlite.binding.get_host_cpu_features().get("sse4.2", False)

# The layout of the identity block; `envelope` has the same numbers and explains them.
BLOCK_SIZE = 32
VERSION_AT = 2
KIND_AT = 3
CHECKSUM_AT = 28
NEWEST_VERSION = 2
LAST_KIND = 2
UNREADABLE = 3
FOREIGN = 4
LONGEST_PRODUCER = 255
SEMICOLON = 59
FNV_START = 0xCBF29CE484222325
FNV_PRIME = 0x100000001B3
KEY_SIZE = 32
MURMUR_SEED = 0x9747B28C
MURMUR_FACTOR = 0x5BD1E995


def njit_with_signature(signature: Any) -> Callable[[F], F]:
    """Compile with that signature; the type checker sees the Python signature."""
    return cast("Callable[[F], F]", numba.njit(signature, cache=True, nogil=True))


def njit_instruction(function: Callable[..., Any]) -> Any:
    """Make a function that generates LLVM code callable from compiled functions."""
    return numba.extending.intrinsic(function)


# ---------------------------------------------------------------- checksum


@njit_instruction
def _crc_eight_bytes(_typing: Any, _crc: Any, _word: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        long = ir.IntType(64)
        shape = ir.FunctionType(long, [long, long])
        name = "llvm.x86.sse42.crc32.64.64"
        return builder.call(builder.module.declare_intrinsic(name, (), shape), arguments)

    return types.uint64(types.uint64, types.uint64), generate


@njit_instruction
def _crc_one_byte(_typing: Any, _crc: Any, _byte: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        int32, int8 = ir.IntType(32), ir.IntType(8)
        shape = ir.FunctionType(int32, [int32, int8])
        name = "llvm.x86.sse42.crc32.32.8"
        return builder.call(builder.module.declare_intrinsic(name, (), shape), arguments)

    return types.uint32(types.uint32, types.uint8), generate


@njit_instruction
def _load_eight_bytes(_typing: Any, array: Any, _position: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(view.data, [arguments[1]])
        return builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(array, types.int64), generate


def _make_tables() -> "np.ndarray[Any, np.dtype[np.uint32]]":
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for row in range(1, 8):
        tables[row] = tables[0][tables[row - 1] & 0xFF] ^ (tables[row - 1] >> 8)
    return tables


_TABLES = _make_tables()


def _crc_by_instruction(crc: Any, data: Any, position: int, end: int) -> Any:
    wide = np.uint64(crc)
    while position + 8 <= end:
        wide = _crc_eight_bytes(wide, _load_eight_bytes(data, position))
        position += 8
    crc = np.uint32(wide)
    while position < end:
        crc = _crc_one_byte(crc, data[position])
        position += 1
    return crc


def _crc_by_tables(crc: Any, data: Any, position: int, end: int) -> Any:
    while position + 8 <= end:
        low = crc ^ (
            np.uint32(data[position])
            | np.uint32(data[position + 1]) << np.uint32(8)
            | np.uint32(data[position + 2]) << np.uint32(16)
            | np.uint32(data[position + 3]) << np.uint32(24)
        )
        crc = np.uint32(
            _TABLES[7, low & np.uint32(255)]
            ^ _TABLES[6, (low >> np.uint32(8)) & np.uint32(255)]
            ^ _TABLES[5, (low >> np.uint32(16)) & np.uint32(255)]
            ^ _TABLES[4, low >> np.uint32(24)]
            ^ _TABLES[3, data[position + 4]]
            ^ _TABLES[2, data[position + 5]]
            ^ _TABLES[1, data[position + 6]]
            ^ _TABLES[0, data[position + 7]]
        )
        position += 8
    while position < end:
        mixed = (crc ^ np.uint32(data[position])) & np.uint32(255)
        crc = np.uint32(_TABLES[0, mixed] ^ (crc >> np.uint32(8)))
        position += 1
    return crc


# Both take and return the CRC in the inverted form that CRC-32C uses internally.
CRC_SIGNATURE = types.uint32(types.uint32, BYTES_IN, types.int64, types.int64)
crc_by_tables = njit_with_signature(CRC_SIGNATURE)(_crc_by_tables)
crc_run = (
    njit_with_signature(CRC_SIGNATURE)(_crc_by_instruction)
    if HAS_CRC_INSTRUCTION
    else crc_by_tables
)


SPAN = types.Tuple((BYTES_IN, types.int64, types.int64))


@njit_with_signature(types.uint32(SPAN, types.int64, SPAN, SPAN))
def _checksum(value: Any, checksum_at: int, key: Any, headers: Any) -> Any:
    """CRC-32C over the value up to the checksum, key, header section, rest of the value.

    For a marker or manifest, over the value only.
    """
    data, value_at, value_end = value
    crc = crc_run(np.uint32(0xFFFFFFFF), data, value_at, checksum_at)
    if data[checksum_at - CHECKSUM_AT + KIND_AT] == 0:
        crc = crc_run(crc, key[0], key[1], key[2])
        crc = crc_run(crc, headers[0], headers[1], headers[2])
    crc = crc_run(crc, data, checksum_at + 4, value_end)
    return crc ^ np.uint32(0xFFFFFFFF)


@njit_with_signature(types.void(BYTES_IN, LONGS_IN, LONGS_IN, INTS))
def check_spans(data: Any, starts: Any, lengths: Any, checks: Any) -> None:
    """CRC-32C of each span, as a signed number; 1 for a null."""
    for row in range(starts.size):
        checks[row] = 1
        if lengths[row] >= 0:
            crc = crc_run(np.uint32(0xFFFFFFFF), data, starts[row], starts[row] + lengths[row])
            checks[row] = np.int32(crc ^ np.uint32(0xFFFFFFFF))


# ---------------------------------------------------------------- writing


@njit_with_signature(types.int64(BYTES, types.int64, types.int64))
def _put_decimal(out: Any, position: int, number: int) -> int:
    """Write a non-negative number in ASCII digits; return the position after it."""
    digits = 1
    rest = number // 10
    while rest > 0:
        digits += 1
        rest //= 10
    for place in range(digits - 1, -1, -1):
        out[position + place] = 48 + number % 10
        number //= 10
    return position + digits


@njit_with_signature(types.void(BYTES, types.int64, types.uint64, types.int64))
def _put_big_endian(out: Any, position: int, number: Any, width: int) -> None:
    for place in range(width):
        shift = np.uint64(8 * (width - 1 - place))
        out[position + place] = np.uint8((number >> shift) & np.uint64(255))


@njit_instruction
def _copy(_typing: Any, out: Any, _position: Any, source: Any, _start: Any, _length: Any) -> Any:
    """Copy `length` bytes; more than ten times faster than numba's slices and loops."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, arguments[0])
        origin = context.make_array(signature.args[2])(context, builder, arguments[2])
        cgutils.raw_memcpy(
            builder,
            builder.gep(target.data, [arguments[1]]),
            builder.gep(origin.data, [arguments[3]]),
            arguments[4],
            1,
        )
        return context.get_dummy_value()

    return types.void(out, types.int64, source, types.int64, types.int64), generate


@njit_with_signature(types.int64(BYTES, types.int64, BYTES_IN))
def _put_bytes(out: Any, position: int, source: Any) -> int:
    _copy(out, position, source, 0, source.size)
    return position + int(source.size)


COLUMN_IN = types.Tuple((BYTES_IN, LONGS_IN, LONGS_IN))


@njit_with_signature(
    types.void(
        BYTES,
        types.UniTuple(LONGS_IN, 3),
        types.UniTuple(BYTES_IN, 4),
        types.Tuple((COLUMN_IN, COLUMN_IN)),
        types.Tuple((BYTES_IN, types.int64)),
    )
)
def write_values(out: Any, identities: Any, fixed: Any, parts: Any, filler: Any) -> None:
    """Fill `out` with messages of equal size.

    `identities` are numbers, lanes and sequences. `fixed` is what all messages share: the text
    before the number, the text after it, the identity block, the bytes after the block. `parts`
    are the key and the header section of each message, which the checksum covers. `filler` is a
    pool of bytes and the first position to use in it.
    """
    numbers, lanes, sequences = identities
    before, after, block, tail = fixed
    keys, headers = parts
    pool, pool_at = filler
    size = out.size // max(numbers.size, 1)
    for row in range(numbers.size):
        value_at = row * size
        value_end = value_at + size
        position = value_at
        if before.size > 0:
            position = _put_bytes(out, position, before)
            position = _put_decimal(out, position, numbers[row])
            position = _put_bytes(out, position, after)
        checksum_at = position + CHECKSUM_AT
        _put_bytes(out, position, block)
        if block[VERSION_AT] == 1:
            _put_big_endian(out, position + 16, np.uint64(lanes[row]), 4)
            _put_big_endian(out, position + 20, np.uint64(sequences[row]), 8)
        else:
            _put_big_endian(out, position + 16, np.uint64(lanes[row]), 2)
            _put_big_endian(out, position + 18, np.uint64(sequences[row]), 6)
        position = _put_bytes(out, position + BLOCK_SIZE, tail)
        length = value_end - position
        if pool_at + length > pool.size:
            pool_at = 0
        _copy(out, position, pool, pool_at, length)
        pool_at += length
        key = (keys[0], keys[1][row], keys[1][row] + keys[2][row])
        header = (headers[0], headers[1][row], headers[1][row] + headers[2][row])
        crc = _checksum((out, value_at, value_end), checksum_at, key, header)
        _put_big_endian(out, checksum_at, np.uint64(crc), 4)


@njit_with_signature(types.void(BYTES, LONGS, LONGS, LONGS_IN, BYTES_IN))
def write_headers(out: Any, starts: Any, lengths: Any, numbers: Any, before: Any) -> None:
    """Write the header section of each message: `before`, then the number's length and digits.

    `before` holds the count, the whole header `id` and the name of the header `seq`. The
    number has at most 13 digits, so that its length is one byte (a zigzag varint).
    """
    position = 0
    for row in range(numbers.size):
        starts[row] = position
        position = _put_bytes(out, position, before)
        digits_at = position + 1
        position = _put_decimal(out, digits_at, numbers[row])
        out[digits_at - 1] = np.uint8(2 * (position - digits_at))
        lengths[row] = position - starts[row]


# ---------------------------------------------------------------- keys


@njit_with_signature(types.uint64(types.uint64, types.uint64))
def _murmur_step(value: Any, word: Any) -> Any:
    """Add four bytes to Kafka's variant of murmur2; see `client.produce.partitioner`."""
    word = (word * np.uint64(MURMUR_FACTOR)) & np.uint64(0xFFFFFFFF)
    word ^= word >> np.uint64(24)
    word = (word * np.uint64(MURMUR_FACTOR)) & np.uint64(0xFFFFFFFF)
    return ((value * np.uint64(MURMUR_FACTOR)) & np.uint64(0xFFFFFFFF)) ^ word


@njit_with_signature(types.uint64(types.uint64, types.uint64))
def _murmur_partition(value: Any, partitions: Any) -> Any:
    value ^= value >> np.uint64(13)
    value = (value * np.uint64(MURMUR_FACTOR)) & np.uint64(0xFFFFFFFF)
    value ^= value >> np.uint64(15)
    return (value & np.uint64(0x7FFFFFFF)) % partitions


@njit_with_signature(types.uint64(BYTES, types.int64))
def _little_endian(data: Any, position: int) -> Any:
    word = np.uint64(0)
    for place in range(3, -1, -1):
        word = (word << np.uint64(8)) | np.uint64(data[position + place])
    return word


@njit_with_signature(types.void(BYTES, types.int64, types.int64))
def _put_letters(out: Any, position: int, number: int) -> None:
    """Write a number as four letters and digits, base 36."""
    for place in range(4):
        digit = number % 36
        out[position + place] = 48 + digit if digit < 10 else 87 + digit
        number //= 36


@njit_with_signature(types.void(BYTES, LONGS_IN, LONGS_IN, types.int64, BYTES_IN))
def write_keys(out: Any, numbers: Any, lanes: Any, lane_count: int, before: Any) -> None:
    """Fill `out` with keys of 32 bytes: `before`, a number, four letters.

    The letters are chosen so that Kafka's default partitioner sends the key to its lane. They are
    the last word of the hash, so a try costs a few nanoseconds; one in `lane_count` fits.
    """
    for row in range(numbers.size):
        key_at = row * KEY_SIZE
        letters_at = key_at + KEY_SIZE - 4
        _put_bytes(out, key_at, before)
        number = numbers[row]
        for place in range(letters_at - 1, key_at + before.size - 1, -1):
            out[place] = 48 + number % 10
            number //= 10
        value = np.uint64(MURMUR_SEED ^ KEY_SIZE)
        for place in range(key_at, letters_at, 4):
            value = _murmur_step(value, _little_endian(out, place))
        for letters in range(36**4):
            _put_letters(out, letters_at, letters)
            hashed = _murmur_step(value, _little_endian(out, letters_at))
            if _murmur_partition(hashed, np.uint64(lane_count)) == np.uint64(lanes[row]):
                break


# ---------------------------------------------------------------- reading


@njit_with_signature(types.uint64(BYTES_IN, types.int64, types.int64))
def _big_endian(data: Any, position: int, width: int) -> Any:
    number = np.uint64(0)
    for place in range(width):
        number = (number << np.uint64(8)) | np.uint64(data[position + place])
    return number


@njit_with_signature(types.boolean(BYTES_IN, types.int64, types.int64, BYTES_IN))
def _starts_with(data: Any, position: int, end: int, prefix: Any) -> bool:
    if end - position < prefix.size:
        return False
    matches = True
    for place in range(prefix.size):
        matches &= data[position + place] == prefix[place]
    return matches


@njit_with_signature(types.int64(BYTES_IN, types.int64, types.int64, types.int64))
def _find_semicolon(data: Any, position: int, end: int, longest: int) -> int:
    """The position of the next semicolon, at most `longest` bytes away; -1 if not found."""
    limit = min(end, position + longest + 1)
    while position < limit:
        if data[position] == SEMICOLON:
            return position
        position += 1
    return -1


@njit_with_signature(types.int64(BYTES_IN, types.int64, types.int64))
def _decimal(data: Any, position: int, end: int) -> Any:
    """The number in ASCII digits; -1 if it is not a number."""
    if end <= position or end - position > 19:
        return np.int64(-1)
    number = np.int64(0)
    while position < end:
        digit = np.int64(data[position]) - 48
        if digit < 0 or digit > 9:
            return np.int64(-1)
        number = number * 10 + digit
        position += 1
    return number if number >= 0 else np.int64(-1)


@njit_with_signature(types.boolean(BYTES_IN, types.int64, types.int64, BYTES_IN))
def _has_block(data: Any, position: int, end: int, block_start: Any) -> bool:
    """Whether a complete identity block of a known version starts there."""
    if end - position < BLOCK_SIZE or not _starts_with(data, position, end, block_start):
        return False
    version = data[position + VERSION_AT]
    return bool(version >= 1 and version <= NEWEST_VERSION)


@njit_with_signature(types.UniTuple(types.uint64, 3)(BYTES_IN, types.int64))
def _stream_of(data: Any, block_at: int) -> Any:
    """Lane, sequence and incarnation, as the block's version lays them out."""
    if data[block_at + VERSION_AT] == 1:
        lane, sequence = _big_endian(data, block_at + 16, 4), _big_endian(data, block_at + 20, 8)
        return lane, sequence, np.uint64(0)
    lane, sequence = _big_endian(data, block_at + 16, 2), _big_endian(data, block_at + 18, 6)
    return lane, sequence, _big_endian(data, block_at + 24, 4)


@njit_with_signature(types.UniTuple(types.int64, 4)(BYTES_IN, types.int64, types.int64, BYTES_IN))
def _locate(data: Any, position: int, end: int, block_start: Any) -> Any:
    """The positions of the identity block and the producer's name, and the time in the text.

    (-1, …) if this is not a message in either format.
    """
    nothing = (np.int64(-1), np.int64(0), np.int64(0), np.int64(-1))
    if _has_block(data, position, end, block_start):
        name_at = position + BLOCK_SIZE + 1
        if name_at > end or name_at + data[name_at - 1] > end:
            return nothing
        return position, name_at, name_at + np.int64(data[name_at - 1]), np.int64(-1)
    name_end = _find_semicolon(data, position, end, LONGEST_PRODUCER)
    if name_end < 0:
        return nothing
    number_end = _find_semicolon(data, name_end + 1, end, 19)
    if number_end < 0 or _decimal(data, name_end + 1, number_end) < 0:
        return nothing
    time_end = _find_semicolon(data, number_end + 1, end, 19)
    if time_end < 0:
        return nothing
    block_at = time_end + 1
    sent_ns = _decimal(data, number_end + 1, time_end)
    if sent_ns < 0 or not _has_block(data, block_at, end, block_start):
        return nothing
    return block_at, position, name_end, sent_ns


@njit_with_signature(types.uint64(BYTES_IN, types.int64, types.int64))
def _hash(data: Any, position: int, end: int) -> Any:
    """FNV-1a, 64 bits."""
    mixed = np.uint64(FNV_START)
    while position < end:
        mixed = (mixed ^ np.uint64(data[position])) * np.uint64(FNV_PRIME)
        position += 1
    return mixed


@njit_with_signature(types.void(BYTES_IN, LONGS_IN, LONGS_IN, LONGS))
def hash_spans(data: Any, starts: Any, lengths: Any, hashes: Any) -> None:
    """A hash of 64 bits for each span."""
    for row in range(starts.size):
        hashes[row] = np.int64(_hash(data, starts[row], starts[row] + lengths[row]))


@njit_with_signature(
    types.void(
        BYTES_IN,
        types.UniTuple(LONGS_IN, 6),
        types.Tuple((BYTES_IN, BYTES_IN)),
        types.uint64,
        types.Tuple(
            (
                KINDS,
                types.Tuple((HASHES, LONGS, INTS, LONGS)),
                TOPICS,
                INTS,
                LONGS,
                LONGS,
                FLAGS,
            )
        ),
    )
)
def read_values(data: Any, spans: Any, known: Any, run: Any, found: Any) -> None:
    """Identify every record. `known`: the first bytes of a block, and the prefix of shoal's keys.

    The result is written to `found`. For producers that is a hash of name and incarnation, the
    position of the name, its length, and the incarnation.
    """
    key_starts, key_lengths, value_starts, value_lengths, header_starts, header_lengths = spans
    block_start, key_prefix = known
    kinds, producers, topics, lanes, sequences, sents, intact = found
    names, name_starts, name_lengths, incarnations = producers
    for row in range(value_starts.size):
        value_at = value_starts[row]
        value_end = value_at + max(value_lengths[row], 0)
        key_at = key_starts[row]
        key_end = key_at + max(key_lengths[row], 0)
        header_at = header_starts[row]
        header_end = header_at + max(header_lengths[row], 0)
        is_ours = _starts_with(data, key_at, key_end, key_prefix)
        kinds[row] = UNREADABLE if is_ours else FOREIGN
        lanes[row] = -1
        sequences[row] = -1
        block_at, name_at, name_end, sent_ns = _locate(data, value_at, value_end, block_start)
        if block_at < 0 or data[block_at + KIND_AT] > LAST_KIND:
            continue
        sum_at = block_at + CHECKSUM_AT
        value = (data, value_at, value_end)
        crc = _checksum(value, sum_at, (data, key_at, key_end), (data, header_at, header_end))
        intact[row] = np.uint64(crc) == _big_endian(data, sum_at, 4)
        if _big_endian(data, block_at + 4, 8) != run:
            # An intact message of another run is foreign, even if its key has the prefix.
            kinds[row] = FOREIGN if intact[row] else kinds[row]
            continue
        lane, sequence, incarnation = _stream_of(data, block_at)
        if lane > np.uint64(0x7FFFFFFF) or sequence > np.uint64(0x7FFFFFFFFFFFFFFF):
            continue
        kinds[row] = data[block_at + KIND_AT]
        names[row] = (_hash(data, name_at, name_end) ^ incarnation) * np.uint64(FNV_PRIME)
        name_starts[row] = name_at
        name_lengths[row] = name_end - name_at
        incarnations[row] = np.int64(incarnation)
        topics[row] = np.uint32(_big_endian(data, block_at + 12, 4))
        lanes[row] = np.int32(lane)
        sequences[row] = np.int64(sequence)
        sents[row] = sent_ns
