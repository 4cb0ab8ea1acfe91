"""The compiled loops behind `shoal.wire.records.columns`: importing this module loads numba.

Each kernel has one explicit signature, so it is compiled (or loaded from numba's cache) when the
module is imported, and a call only runs it. Kernels raise nothing: they return an error code and a
position, which `columns` turns into an error.

Rules of this file:
- Indices are cast to unsigned where they are used: numba then omits the test for negative indices,
  which costs half of the time and prevents vectorisation. Signed and unsigned integers are never
  added: numba would convert them to float.
- Every position is compared with the end of the record before it is read, and every record with the
  end of its section.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

# numba's type names; its stubs do not cover them.
types: Any = numba.types

# In compiled code every integer has 64 bits; mypy would see a mix of Python's and numpy's.
Int: TypeAlias = Any

_Function = TypeVar("_Function", bound=Callable[..., Any])

# The header of a batch on the wire (`shoal.wire.batch`), for arrays of headers.
BATCH_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", ">i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)

# Columns of the input matrix of `decode`: one row for each batch.
SECTION_START, SECTION_END, COUNT = 0, 1, 2
BASE_OFFSET, LAST_OFFSET_DELTA = 3, 4
BASE_TIMESTAMP, HAS_APPEND_TIME, APPEND_TIME = 5, 6, 7
BATCH_FIELDS = 8

# Rows of the output matrix: one column for each record.
OFFSET, TIMESTAMP = 0, 1
KEY_START, KEY_LENGTH = 2, 3
VALUE_START, VALUE_LENGTH = 4, 5
HEADER_START, HEADER_LENGTH, HEADER_COUNT = 6, 7, 8
RECORD_FIELDS = 9

OK = 0
BAD_VARINT = 1
BAD_RECORD_LENGTH = 2
BAD_LENGTH = 3
BAD_HEADERS = 4
LENGTH_MISMATCH = 5
BAD_OFFSET = 6
BAD_TIMESTAMP = 7
TRAILING_BYTES = 8

EXPLANATIONS = {
    BAD_VARINT: "a varint is truncated, too long or too large",
    BAD_RECORD_LENGTH: "a record is longer than its section, or empty",
    BAD_LENGTH: "a key or value does not fit in its record",
    BAD_HEADERS: "headers do not fit in their record",
    LENGTH_MISMATCH: "the fields of a record do not add up to its length",
    BAD_OFFSET: "an offset does not increase, or is not in the range of its batch",
    BAD_TIMESTAMP: "a timestamp does not fit 64 bits",
    TRAILING_BYTES: "there are bytes after the last record",
}

# The largest size of length, attributes, two deltas and two lengths.
LARGEST_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5

# Prefetch the bytes this many records ahead, assuming that all are as long as this one.
_PREFETCH_RECORDS = 8
_CACHE_LINE_BYTES = 64

_BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
_BYTES_OUT = types.uint8[::1]
_COLUMN = types.int64[::1]
_MATRIX = types.int64[:, ::1]
_TWO_NUMBERS = types.UniTuple(types.int64, 2)
_THREE_NUMBERS = types.UniTuple(types.int64, 3)


def _kernel(signature: object) -> Callable[[_Function], _Function]:
    """Compile now, or load from the cache; release the GIL while running."""
    decorate = numba.njit(signature, cache=True, nogil=True, error_model="numpy")
    return cast("Callable[[_Function], _Function]", decorate)


def _part(function: _Function) -> _Function:
    """A function that LLVM must inline into kernels.

    Not `inline="always"`: that copies the source, and every array argument then costs two
    atomic operations on its reference count, for each record.
    """
    return cast("_Function", numba.njit(forceinline=True, error_model="numpy")(function))


def _generate_prefetch(_typing_context: object, data: Any, position: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(array.data, [arguments[1]])
        int32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [address.type, int32, int32, int32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], function_type)
        builder.call(function, [address, int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(data, position), generate


# `_prefetch(data, position)` loads a cache line. A prefetch never faults, at any position.
_prefetch: Any = intrinsic(_generate_prefetch)


@_part
def _read_long_varint(data: Any, position: Int, end: Int, max_bytes: Int) -> tuple[Int, Int]:
    """`_read_varint` for varints of more than two bytes."""
    raw = np.uint64(0)
    for index in range(max_bytes):
        if position + index >= end:
            return 0, -1
        byte = np.uint64(data[np.uint64(position + index)])
        raw |= (byte & np.uint64(0x7F)) << np.uint64(7 * index)
        if byte < np.uint64(0x80):
            # The last byte of 10 has 1 bit left for the 64, the last of 5 has 4 for the 32.
            if index == max_bytes - 1 and byte > np.uint64(1 if max_bytes == 10 else 15):
                return 0, -1
            value = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
            return value, position + index + 1
    return 0, -1


@_part
def _read_varint(data: Any, position: Int, end: Int, max_bytes: Int) -> tuple[Int, Int]:
    """The value and the next position, which is -1 if the varint is invalid."""
    if position >= end:
        return 0, -1
    byte = np.int64(data[np.uint64(position)])
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    if position + 1 < end:
        second = np.int64(data[np.uint64(position + 1)])
        if second < 0x80:
            raw = byte & 0x7F | second << 7
            return (raw >> 1) ^ -(raw & 1), position + 2
    return _read_long_varint(data, position, end, max_bytes)


@_part
def _skip_headers(data: Any, position: Int, end: Int) -> tuple[Int, Int]:
    """The number of headers and the position after them, which is -1 if they are invalid."""
    count, position = _read_varint(data, position, end, 5)
    if position < 0 or count == 0:
        return count, position
    if count < 0 or count > (end - position) // 2:
        return count, -1
    for _ in range(count):
        length, position = _read_varint(data, position, end, 5)
        if position < 0 or length < 0 or length > end - position:
            return count, -1
        position += length
        length, position = _read_varint(data, position, end, 5)
        if position < 0 or length < -1 or length > end - position:
            return count, -1
        position += max(length, 0)
    return count, position


@_part
def _decode_record(
    data: Any, position: Int, end: Int, records: Any, row: Int
) -> tuple[Int, Int, Int, Int]:
    """Store the positions of key, value and headers of one record that ends at `end`.

    Returns the code, the position, and the two deltas.
    """
    timestamp_delta, after = _read_varint(data, position + 1, end, 10)
    if after < 0:
        return BAD_VARINT, position + 1, 0, 0
    offset_delta, position = _read_varint(data, after, end, 5)
    if position < 0:
        return BAD_VARINT, after, 0, 0
    key_length, key_start = _read_varint(data, position, end, 5)
    if key_start < 0:
        return BAD_VARINT, position, 0, 0
    if key_length < -1 or key_length > end - key_start:
        return BAD_LENGTH, position, 0, 0
    position = key_start + max(key_length, 0)
    value_length, value_start = _read_varint(data, position, end, 5)
    if value_start < 0:
        return BAD_VARINT, position, 0, 0
    if value_length < -1 or value_length > end - value_start:
        return BAD_LENGTH, position, 0, 0
    header_start = value_start + max(value_length, 0)
    header_count, position = _skip_headers(data, header_start, end)
    if position < 0:
        return BAD_HEADERS, header_start, 0, 0
    if position != end:
        return LENGTH_MISMATCH, position, 0, 0
    records[KEY_START, row] = key_start
    records[KEY_LENGTH, row] = key_length
    records[VALUE_START, row] = value_start
    records[VALUE_LENGTH, row] = value_length
    records[HEADER_START, row] = header_start
    records[HEADER_LENGTH, row] = end - header_start
    records[HEADER_COUNT, row] = header_count
    return OK, position, offset_delta, timestamp_delta


@_part
def _decode_section(data: Any, batch: Any, records: Any, first_row: Int) -> tuple[Int, Int]:
    """Decode all records of one batch, into the rows from `first_row`."""
    position, section_end = batch[SECTION_START], batch[SECTION_END]
    base_offset, last_offset_delta = batch[BASE_OFFSET], batch[LAST_OFFSET_DELTA]
    base_timestamp = batch[BASE_TIMESTAMP]
    has_append_time, append_time = batch[HAS_APPEND_TIME], batch[APPEND_TIME]
    previous_delta = -1
    for index in range(batch[COUNT]):
        start = position
        length, position = _read_varint(data, position, section_end, 5)
        if position < 0:
            return BAD_VARINT, start
        if length <= 0 or length > section_end - position:
            return BAD_RECORD_LENGTH, start
        end = position + length
        ahead = end + _PREFETCH_RECORDS * length
        _prefetch(data, ahead)
        _prefetch(data, ahead + _CACHE_LINE_BYTES)
        row = np.uint64(first_row + index)
        code, position, offset_delta, timestamp_delta = _decode_record(
            data, position, end, records, row
        )
        if code != OK:
            return code, position
        if offset_delta <= previous_delta or offset_delta > last_offset_delta:
            return BAD_OFFSET, start
        previous_delta = offset_delta
        records[OFFSET, row] = base_offset + offset_delta
        timestamp = base_timestamp + timestamp_delta
        if has_append_time:
            timestamp = append_time
        elif (base_timestamp ^ timestamp) & (timestamp_delta ^ timestamp) < 0:
            return BAD_TIMESTAMP, start
        records[TIMESTAMP, row] = timestamp
    if position != section_end:
        return TRAILING_BYTES, position
    return OK, position


@_kernel(_THREE_NUMBERS(_BYTES_IN, _MATRIX, _MATRIX))
def decode(data: Any, batches: Any, records: Any) -> tuple[Int, Int, Int]:
    """Decode all `batches` into `records`; returns an error code, the batch and the position."""
    row = 0
    for index in range(len(batches)):
        batch = batches[index]
        code, position = _decode_section(data, batch, records, row)
        if code != OK:
            return code, index, position
        row += batch[COUNT]
    return OK, 0, 0


@_part
def _varint_size(value: Int) -> Int:
    raw = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while raw > np.uint64(0x7F):
        raw >>= np.uint64(7)
        size += 1
    return size


@_part
def _write_varint(output: Any, position: Int, value: Int) -> Int:
    raw = np.uint64((value << 1) ^ (value >> 63))
    while raw > np.uint64(0x7F):
        output[np.uint64(position)] = np.uint8(raw & np.uint64(0x7F) | np.uint64(0x80))
        raw >>= np.uint64(7)
        position += 1
    output[np.uint64(position)] = np.uint8(raw)
    return position + 1


@_part
def _copy(output: Any, position: Int, data: Any, start: Int, length: Int) -> Int:
    """Copy `length` bytes if it is not negative; returns the next position."""
    if length <= 0:
        return position
    for index in range(np.uint64(length)):
        output[np.uint64(position) + index] = data[np.uint64(start) + index]
    return position + length


@_part
def _lies_inside(data: Any, start: Int, length: Int) -> Any:
    """Whether a span is null (-1) or inside of `data`, without overflow."""
    return length == -1 or (length >= 0 and 0 <= start <= len(data) and length <= len(data) - start)


_SPANS = types.Tuple((_BYTES_IN, _COLUMN, _COLUMN))


@_kernel(_TWO_NUMBERS(_BYTES_OUT, _COLUMN, _SPANS, _SPANS, _SPANS))
def encode(output: Any, timestamps: Any, keys: Any, values: Any, headers: Any) -> tuple[Int, Int]:
    """Write one record for each timestamp; `OK` and the bytes written, or a code and the row.

    Keys, values and headers are data, starts and lengths. `output` must be large enough for
    all of them and `LARGEST_OVERHEAD` for each record: it is not checked here.
    """
    key_data, key_start, key_length = keys
    value_data, value_start, value_length = values
    header_data, header_start, header_length = headers
    position = 0
    for row in range(len(timestamps)):
        if not _lies_inside(key_data, key_start[row], key_length[row]):
            return BAD_LENGTH, row
        if not _lies_inside(value_data, value_start[row], value_length[row]):
            return BAD_LENGTH, row
        if not _lies_inside(header_data, header_start[row], header_length[row]):
            return BAD_LENGTH, row
        end = header_start[row] + header_length[row]
        _, headers_end = _skip_headers(header_data, header_start[row], end)
        if headers_end < 0 or headers_end != end:
            return BAD_HEADERS, row
        timestamp_delta = timestamps[row] - timestamps[0]
        size = 1 + _varint_size(timestamp_delta) + _varint_size(row) + header_length[row]
        size += _varint_size(key_length[row]) + max(key_length[row], 0)
        size += _varint_size(value_length[row]) + max(value_length[row], 0)
        position = _write_varint(output, position, size)
        output[np.uint64(position)] = 0
        position = _write_varint(output, position + 1, timestamp_delta)
        position = _write_varint(output, position, row)
        position = _write_varint(output, position, key_length[row])
        position = _copy(output, position, key_data, key_start[row], key_length[row])
        position = _write_varint(output, position, value_length[row])
        position = _copy(output, position, value_data, value_start[row], value_length[row])
        position = _copy(output, position, header_data, header_start[row], header_length[row])
    return OK, position


@_kernel(_TWO_NUMBERS(_BYTES_OUT, types.int32[::1], _SPANS))
def gather(output: Any, ends: Any, strings: Any) -> tuple[Int, Int]:
    """Copy strings one after the other; `OK` and the bytes written, or a code and the row.

    `ends` gets 0 and then the end of each string; a null takes no space. `output` must be large
    enough for all of them: it is not checked here.
    """
    data, start, length = strings
    position = 0
    ends[0] = 0
    for row in range(len(start)):
        if not _lies_inside(data, start[row], length[row]):
            return BAD_LENGTH, row
        position = _copy(output, position, data, start[row], length[row])
        ends[np.uint64(row) + np.uint64(1)] = position
    return OK, position


@_part
def _hash_bytes(data: Any, start: Int, length: Int) -> Int:
    """Kafka's murmur2 of some bytes, without its sign."""
    low, factor = np.uint64(0xFFFFFFFF), np.uint64(0x5BD1E995)
    value = (np.uint64(0x9747B28C) ^ np.uint64(length)) & low
    for word in range(length >> 2):
        at = np.uint64(start + 4 * word)
        part = np.uint64(data[at]) | np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
        part |= np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        part |= np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
        part = part * factor & low
        part = (part ^ part >> np.uint64(24)) * factor & low
        value = value * factor & low ^ part
    left = length & 3
    if left:
        for index in range(left):
            byte = np.uint64(data[np.uint64(start + length - left + index)])
            value ^= byte << np.uint64(8 * index)
        value = value * factor & low
    value = (value ^ value >> np.uint64(13)) * factor & low
    return np.int64((value ^ value >> np.uint64(15)) & np.uint64(0x7FFFFFFF))


@_kernel(_TWO_NUMBERS(_COLUMN, _SPANS))
def hash_keys(hashes: Any, keys: Any) -> tuple[Int, Int]:
    """The positive hash that chooses the partition of each key, -1 for a null; a code and a row."""
    data, start, length = keys
    for row in range(len(start)):
        if not _lies_inside(data, start[row], length[row]):
            return BAD_LENGTH, row
        hashes[row] = -1
        if length[row] >= 0:
            hashes[row] = _hash_bytes(data, start[row], length[row])
    return OK, 0
