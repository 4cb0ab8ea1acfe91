"""Batches that were written together, by one request, and count only together.

A mirror's request carries many batches for a partition: all of them are to be there, or none,
whoever is killed meanwhile. Each batch of such a *unit* but the last has a bit in its attributes
that says that the next belongs to it; batches without the bit stand for themselves.

What keeps units whole:
- A leader writes a unit with one write, into one segment.
- Followers are given whole units, and write only whole ones.
- Who finds half a unit at the end of its log when it opens it was killed while it wrote it. It
  has told nobody of it, and cuts it off.

So every replica's log ends with a whole unit, and with it all that follows from the ends of
logs: the high watermark, and where a new leader begins.
"""

from collections.abc import Iterable, Iterator

from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.scan import Found

# A file without content, in the folder of a log that has units.
UNITS_MARK = "units"


def half_unit_start(batches: Iterable[Found]) -> int | None:
    """The offset at which half a unit at the end of these batches begins; None if there is none."""
    start: int | None = None
    for _, header in batches:
        if not header.is_continued:
            start = None
        elif start is None:
            start = header.base_offset
    return start


def units_of(headers: Iterable[BatchHeader]) -> Iterator[list[BatchHeader]]:
    """The batches, unit by unit; the last unit must be whole."""
    unit: list[BatchHeader] = []
    for header in headers:
        unit.append(header)
        if not header.is_continued:
            yield unit
            unit = []


def whole_units_end(batches: Iterable[Found], end: int, target: int) -> int:
    """Where the last unit ends that ends at `target` or before, or the first one if none does.

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
