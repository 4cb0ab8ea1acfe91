"""Batches to arrays, and arrays to batches: the records codec at memory speed.

Decoding returns the position of each key, value and header section and copies none of them: the
bytes of one or several batches are in `data`, and every start counts from its beginning. It accepts
and refuses the same bytes as `shoal.wire.records.records`, which is the reference.

numpy and numba are loaded by the first call, not by the import. The first call takes about half a
second, and a few seconds more if numba's cache is empty.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from shoal.model.errors import UsageError
from shoal.wire.batch import CODEC_MASK, HEADER_SIZE, TIMESTAMP_TYPE_BIT, Batch
from shoal.wire.errors import Malformed
from shoal.wire.records.compression import Codec, decompress
from shoal.wire.records.records import (
    DEFAULT_LIMIT_BYTES,
    LEAST_RECORD_SIZE,
    BatchOptions,
    Header,
    Record,
    append_headers,
    check_timestamps,
    compress_section,
    decode_headers,
    write_header,
)

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np
    from numpy.typing import NDArray

    Int64Array = NDArray[np.int64]
    ByteArray = NDArray[np.uint8]

# The largest batch that a producer may create: Kafka's lengths have 32 bits.
_BATCH_LIMIT_BYTES = (1 << 31) - 1


class ByteColumn(NamedTuple):
    """Byte strings or nulls: start and length of each in `data`; length -1 is null."""

    data: ByteArray
    start: Int64Array
    length: Int64Array

    @classmethod
    def of_matrix(cls, matrix: ByteArray) -> ByteColumn:
        """Strings of equal length: the rows of a two-dimensional array."""
        import numpy as np

        count, width = matrix.shape
        data = np.ascontiguousarray(matrix).reshape(-1)
        return cls(data, np.arange(count, dtype=np.int64) * width, np.full(count, width, np.int64))

    @classmethod
    def of_list(cls, strings: Sequence[bytes | None]) -> ByteColumn:
        """Copy the strings one after the other."""
        import numpy as np

        length = np.array([-1 if string is None else len(string) for string in strings], np.int64)
        end = np.cumsum(np.maximum(length, 0))
        data = np.frombuffer(b"".join(string or b"" for string in strings), np.uint8)
        return cls(data, end - np.maximum(length, 0), length)

    @classmethod
    def of_repeated(cls, string: bytes | None, count: int) -> ByteColumn:
        """The same string `count` times, stored once."""
        import numpy as np

        length = -1 if string is None else len(string)
        data = np.frombuffer(string or b"", np.uint8)
        return cls(data, np.zeros(count, np.int64), np.full(count, length, np.int64))

    def at(self, index: int) -> bytes | None:
        """One of the strings, copied."""
        length = int(self.length[index])
        if length < 0:
            return None
        start = int(self.start[index])
        return self.data[start : start + length].tobytes()


@dataclass(frozen=True, slots=True)
class RecordArrays:
    """The records of one or several batches, one array element each.

    `header_start` and `header_length` span the header section, its count included.
    """

    data: ByteArray
    offset: Int64Array
    timestamp: Int64Array
    key_start: Int64Array
    key_length: Int64Array
    value_start: Int64Array
    value_length: Int64Array
    header_start: Int64Array
    header_length: Int64Array
    header_count: Int64Array

    def __len__(self) -> int:
        return len(self.offset)

    def keys(self) -> ByteColumn:
        """The keys, not copied."""
        return ByteColumn(self.data, self.key_start, self.key_length)

    def values(self) -> ByteColumn:
        """The values, not copied."""
        return ByteColumn(self.data, self.value_start, self.value_length)

    def header_sections(self) -> ByteColumn:
        """The encoded header sections, not copied; `encode_columns` accepts them."""
        return ByteColumn(self.data, self.header_start, self.header_length)

    def headers(self, index: int) -> tuple[Header, ...]:
        """The headers of one record."""
        return decode_headers(self.header_sections().at(index) or b"")

    def record(self, index: int) -> Record:
        """One record, copied."""
        return Record(
            offset=int(self.offset[index]),
            timestamp=int(self.timestamp[index]),
            key=self.keys().at(index),
            value=self.values().at(index),
            headers=self.headers(index),
        )


def header_section(headers: Sequence[Header]) -> bytes:
    """Headers as encoded in a record, for the `headers` of `encode_columns`."""
    output = bytearray()
    append_headers(output, headers)
    return bytes(output)


def header_columns(views: Iterable[memoryview]) -> NDArray[Any]:
    """The batch headers as a structured array (`column_kernels.BATCH_HEADER`)."""
    kernels = _load_kernels()
    import numpy as np

    return np.frombuffer(b"".join(view[:HEADER_SIZE] for view in views), kernels.BATCH_HEADER)


def decode_columns(
    batches: Iterable[Batch], *, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> RecordArrays:
    """The records of all batches, one after the other.

    Nothing is copied if there is only one batch, or if none is compressed and all are in one
    buffer, as those of one fetch response are. `limit_bytes` limits the decompressed size of
    all compressed batches together.
    """
    kernels = _load_kernels()
    import numpy as np

    views = [batch.view for batch in batches]
    headers = header_columns(views)
    data, starts, ends = _join_sections(views, headers["attributes"] & CODEC_MASK, limit_bytes)
    _check_counts(headers["record_count"], ends - starts)
    plan = np.empty((len(views), kernels.BATCH_FIELDS), np.int64)
    plan[:, kernels.SECTION_START] = starts
    plan[:, kernels.SECTION_END] = ends
    plan[:, kernels.COUNT] = headers["record_count"]
    plan[:, kernels.BASE_OFFSET] = headers["base_offset"]
    plan[:, kernels.LAST_OFFSET_DELTA] = headers["last_offset_delta"]
    plan[:, kernels.BASE_TIMESTAMP] = headers["base_timestamp"]
    plan[:, kernels.HAS_APPEND_TIME] = headers["attributes"] & TIMESTAMP_TYPE_BIT
    plan[:, kernels.APPEND_TIME] = headers["max_timestamp"]
    count = int(plan[:, kernels.COUNT].sum())
    # An odd number of cache lines for each column: with 4096 records, for example, the ends of
    # all columns would otherwise map to the same few cache sets and evict each other.
    columns = np.empty((kernels.RECORD_FIELDS, (count // 8 + 1 | 1) * 8), np.int64)
    code, row, position = kernels.decode(data, plan, columns)
    if code != kernels.OK:
        message = f"{kernels.EXPLANATIONS[code]} (batch {row} of {len(views)})"
        raise Malformed(message, position=position - int(starts[row]))
    return RecordArrays(data, *columns[:, :count])


def _join_sections(
    views: Sequence[memoryview], codecs: Int64Array, limit_bytes: int
) -> tuple[ByteArray, Int64Array, Int64Array]:
    """One array with all records sections, and the start and end of each in it."""
    import numpy as np

    if not codecs.any() and len({id(view.obj) for view in views}) == 1:
        data = _readonly_bytes(views[0].obj)
        begins = np.array([_address(view) for view in views]) - _address(data)
        sizes = np.array([len(view) for view in views], np.int64)
        return data, begins + HEADER_SIZE, begins + sizes
    pieces = []
    for view, codec in zip(views, codecs.tolist(), strict=True):
        section = decompress(codec, view[HEADER_SIZE:], limit_bytes=limit_bytes)
        pieces.append(_readonly_bytes(section))
        if codec != Codec.NONE:
            limit_bytes -= len(section)
    data = (
        pieces[0]
        if len(pieces) == 1
        else _readonly_bytes(np.concatenate([np.empty(0, np.uint8), *pieces]))
    )
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    ends = np.cumsum(sizes)
    return data, ends - sizes, ends


def _check_counts(counts: Int64Array, sizes: Int64Array) -> None:
    """Refuse impossible record counts before their rows are allocated."""
    impossible = counts.astype("i8") * LEAST_RECORD_SIZE > sizes
    if impossible.any():
        row = int(impossible.argmax())
        message = f"{counts[row]} records in {sizes[row]} bytes (batch {row} of {len(counts)})"
        raise Malformed(message, position=0)


def encode_columns(
    *,
    values: ByteColumn,
    timestamps: Int64Array,
    keys: ByteColumn | None = None,
    headers: ByteColumn | None = None,
    **options: Unpack[BatchOptions],
) -> bytearray:
    """One batch with a record for each timestamp, ready to send.

    `headers` are header sections (`header_section`). Keys and headers are optional. Offsets
    start at `base_offset` and have no gaps.
    """
    kernels = _load_kernels()
    import numpy as np

    count = len(timestamps)
    keys = ByteColumn.of_repeated(None, count) if keys is None else keys
    headers = ByteColumn.of_repeated(b"\x00", count) if headers is None else headers
    columns = [_validate_column(column, count) for column in (keys, values, headers)]
    timestamps = np.ascontiguousarray(timestamps, np.int64)
    if count == 0:
        raise UsageError("a batch needs at least one record")
    least_timestamp, max_timestamp = int(timestamps.min()), int(timestamps.max())
    check_timestamps(least_timestamp, max_timestamp)
    payload_bytes = sum(int(np.maximum(column.length, 0).sum()) for column in columns)
    room_bytes = HEADER_SIZE + payload_bytes + count * kernels.LARGEST_OVERHEAD
    if room_bytes > _BATCH_LIMIT_BYTES:
        raise UsageError(f"{count} records of {payload_bytes} bytes do not fit into one batch")
    output = bytearray(room_bytes)
    code, written = kernels.encode(
        np.frombuffer(output, np.uint8)[HEADER_SIZE:], timestamps, *map(tuple, columns)
    )
    if code != kernels.OK:
        raise UsageError(f"record {written} cannot be encoded: {kernels.EXPLANATIONS[code]}")
    del output[HEADER_SIZE + written :]
    compress_section(output, options.get("codec", Codec.NONE))
    write_header(
        output,
        record_count=count,
        last_offset_delta=count - 1,
        base_timestamp=int(timestamps[0]),
        max_timestamp=max_timestamp,
        **options,
    )
    return output


def gather_columns(strings: ByteColumn) -> tuple[ByteArray, NDArray[np.int32]]:
    """Copy strings one after the other; returns the bytes and the ends, the first of which is 0.

    A null takes no space. This is Arrow's format, so the limit is 2 GiB.
    """
    import numpy as np

    count = len(strings.start)
    size = int(np.maximum(strings.length, 0).sum())
    if size > _BATCH_LIMIT_BYTES:
        raise UsageError(f"{size} bytes of strings do not fit into one array")
    column = _validate_column(strings, count)
    output, ends = np.empty(size, np.uint8), np.empty(count + 1, np.int32)
    code, row = _load_kernels().gather(output, ends, tuple(column))
    if code:
        raise UsageError(f"string {row} is outside of its data")
    return output, ends


def hash_keys(keys: ByteColumn) -> Int64Array:
    """Kafka's positive hash of each key (`client.produce.partitioner`); -1 for a null."""
    import numpy as np

    column = _validate_column(keys, len(keys.start))
    hashes = np.empty(len(keys.start), np.int64)
    code, row = _load_kernels().hash_keys(hashes, tuple(column))
    if code:
        raise UsageError(f"key {row} is outside of its data")
    return hashes


def _validate_column(column: ByteColumn, count: int) -> ByteColumn:
    """The column with the array types that the kernels need; `UsageError` if it is invalid."""
    import numpy as np

    if not len(column.start) == len(column.length) == count:
        raise UsageError(
            f"a column of {count} records has {len(column.start)} starts and "
            f"{len(column.length)} lengths; each record needs one of both"
        )
    return ByteColumn(
        _readonly_bytes(np.ascontiguousarray(column.data, np.uint8)),
        np.ascontiguousarray(column.start, np.int64),
        np.ascontiguousarray(column.length, np.int64),
    )


def _readonly_bytes(memory: Any) -> ByteArray:
    """Any memory as a read-only array of bytes."""
    import numpy as np

    array = np.frombuffer(memory, np.uint8)
    array.flags.writeable = False
    return array


def _address(memory: Any) -> int:
    """The address of memory. ctypes is five times as fast as numpy, but needs writable memory."""
    if isinstance(memory, memoryview) and not memory.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    import numpy as np

    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address


@cache
def _load_kernels() -> ModuleType:
    try:
        from shoal.wire.records import column_kernels
    except ModuleNotFoundError as error:
        raise UsageError(
            f"cannot load numpy and numba, which decode records as columns: {error}",
            remedy="pip install 'shoal[workload]'",
        ) from error
    return column_kernels
