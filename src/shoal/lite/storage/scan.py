"""From the bytes of a segment to its batches. No I/O: the caller passes a reader.

Rules of this file:
- `headers` is for bytes that are known to be complete batches. It detects an invalid header,
  offsets that decrease, and a batch that reaches past the end. It does not check checksums.
- `whole_headers` is for the file of a killed writer: only its last batch can be torn.
- `valid_headers` trusts nothing: it stops before the first batch that is truncated, damaged or out
  of order. Nothing distinguishes what follows such a batch from garbage, so it is ignored.
"""

from collections.abc import Callable, Iterator

from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.model.errors import ShoalError
from shoal.wire.batch import CHECKED_START, LEAST_BATCH_LENGTH, MAGIC
from shoal.wire.records.crc import crc32c

# (position, count) -> `count` bytes, fewer only at the end of the file.
ReadAt = Callable[[int, int], bytes]

LocatedBatch = tuple[int, BatchHeader]

# Index entries are at most one batch and this much apart, so one read often finds the batch.
_HOP_BYTES = 4 * 1024
_CHECK_BYTES = 1024 * 1024
# Indexes hold offsets relative to their segment in 31 bits.
LARGEST_RELATIVE_OFFSET = (1 << 31) - 1


class DamagedLog(ShoalError):
    """Bytes that should be complete batches are not."""


def headers(read_at: ReadAt, start: int, end: int, *, file: str) -> Iterator[LocatedBatch]:
    """Position and header of each batch from the one at `start` up to `end`.

    `DamagedLog`, which names the `file`, where there is no complete batch.
    """
    window = b""
    window_start = start
    position = start
    least_offset = 0
    while position < end:
        place = position - window_start
        if place + HEADER_SIZE > len(window):
            window, window_start, place = read_at(position, _HOP_BYTES), position, 0
            if len(window) < HEADER_SIZE:
                raise DamagedLog(f"{file} ends inside the batch at position {position}")
        header = unpack_header(window, place)
        if header.batch_length < LEAST_BATCH_LENGTH or header.magic != MAGIC:
            raise DamagedLog(f"{file} has no batch at position {position}")
        if header.base_offset < least_offset or header.last_offset_delta < 0:
            raise DamagedLog(
                f"in {file} the batch at position {position} has offsets below the one before it"
            )
        if position + header.size > end:
            raise DamagedLog(f"the batch at position {position} reaches past the end of {file}")
        yield position, header
        least_offset = header.base_offset + header.last_offset_delta + 1
        position += header.size


def valid_headers(read_at: ReadAt, end: int, base_offset: int) -> Iterator[LocatedBatch]:
    """Every batch from the start of the file that is complete, undamaged and in order."""
    window = memoryview(b"")
    window_start = 0
    position = 0
    least_offset = base_offset
    while end - position >= HEADER_SIZE:
        place = position - window_start
        if place + HEADER_SIZE > len(window):
            window = memoryview(read_at(position, _CHECK_BYTES))
            window_start, place = position, 0
        header = unpack_header(window, place)
        if not _is_plausible(header, end - position, least_offset, base_offset):
            return
        if place + header.size > len(window):
            window = memoryview(read_at(position, max(header.size, _CHECK_BYTES)))
            window_start, place = position, 0
        if crc32c(window[place + CHECKED_START : place + header.size]) != header.crc:
            return
        yield position, header
        least_offset = header.last_offset + 1
        position += header.size


def whole_headers(read_at: ReadAt, end: int, base_offset: int) -> Iterator[LocatedBatch]:
    """Every batch from the start of the file that is complete and in order; the last one only
    if its checksum is correct."""
    window, window_start = b"", 0
    position, least_offset = 0, base_offset
    last: LocatedBatch | None = None
    while end - position >= HEADER_SIZE:
        place = position - window_start
        if place + HEADER_SIZE > len(window):
            window, window_start, place = read_at(position, _HOP_BYTES), position, 0
        header = unpack_header(window, place)
        if not _is_plausible(header, end - position, least_offset, base_offset):
            break
        if last is not None:
            yield last
        last = position, header
        least_offset = header.last_offset + 1
        position += header.size
    if last is not None:
        checked = read_at(last[0] + CHECKED_START, last[1].size - CHECKED_START)
        if crc32c(checked) == last[1].crc:
            yield last


def _is_plausible(
    header: BatchHeader, bytes_left: int, least_offset: int, base_offset: int
) -> bool:
    return (
        header.magic == MAGIC
        and header.batch_length >= LEAST_BATCH_LENGTH
        and header.size <= bytes_left
        and header.last_offset_delta >= 0
        and header.base_offset >= least_offset
        and header.last_offset - base_offset <= LARGEST_RELATIVE_OFFSET
    )
