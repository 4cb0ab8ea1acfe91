"""Batches that were written together, by one request, and are valid only together.

A mirror's request has many batches for a partition. All of them must be written or none, even
if a process is killed meanwhile. Each batch of such a *unit* except the last has a bit in its
attributes that says that the next batch belongs to it; a batch without the bit ends its unit.

How units stay complete:
- A leader writes a unit with one write, into one segment.
- Followers get complete units, and write only complete ones.
- A process that finds an incomplete unit at the end of its log was killed while it wrote the unit.
  The unit was not acknowledged, so the process truncates it.

So the log of every replica ends with a complete unit, and so does everything that follows from log
ends: the high watermark, and the offset where a new leader begins.
"""

from collections.abc import Iterable, Iterator

from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.scan import LocatedBatch

# An empty file in the folder of a log that has units.
UNITS_MARK = "units"


def half_unit_start(batches: Iterable[LocatedBatch]) -> int | None:
    """The offset where an incomplete unit at the end of these batches begins, or None."""
    start: int | None = None
    for _, header in batches:
        if not header.is_continued:
            start = None
        elif start is None:
            start = header.base_offset
    return start


def units_of(headers: Iterable[BatchHeader]) -> Iterator[list[BatchHeader]]:
    """The batches, unit by unit; the last unit must be complete."""
    unit: list[BatchHeader] = []
    for header in headers:
        unit.append(header)
        if not header.is_continued:
            yield unit
            unit = []


def whole_units_end(batches: Iterable[LocatedBatch], end: int, target: int) -> int:
    """The end of the last unit that ends at or before `target`, or of the first unit.

    `batches` are (position, header) from the start of a slice on; `end` is where they end.
    """
    boundary = 0
    for position, header in batches:
        if position >= end:
            break
        if header.is_continued:
            continue
        unit_end = position + header.size
        if boundary and unit_end > target:
            break
        boundary = unit_end
    return boundary or end
