"""The checksum of a segment's footer, which its line in the commit log names.

The pages of a segment carry checksums of their own. Its footer, which says where pages are and
between which values they lie, has none, and nothing else ties a file to its line: of two segments
with as many rows, one could stand in the place of the other. Footers differ, so their checksum
finds both.
"""

import os
import re
import zlib
from typing import Any, BinaryIO, Final

_TRAILER_BYTES: Final = 8  # the length of the footer, and Parquet's magic
_END_BYTES: Final = 1 << 16  # most footers are shorter, so that one read is enough
_CHECK: Final = re.compile(r"[0-9a-f]{8}")


def is_footer_check(value: Any) -> bool:
    """Whether a value of a line has the form of such a checksum."""
    return isinstance(value, str) and _CHECK.fullmatch(value) is not None


def check_footer(content: Any) -> str:
    """Return the checksum of the footer at the end of a segment's content, a bytes-like object."""
    view = memoryview(content)
    start = len(view) - _size(bytes(view[-_TRAILER_BYTES:]))
    return f"{zlib.crc32(view[max(start, 0) :]):08x}"


def read_footer_check(source: BinaryIO) -> str:
    """Return the checksum of the footer of an open file; only its end is read."""
    size = source.seek(0, os.SEEK_END)
    source.seek(max(size - _END_BYTES, 0))
    end = source.read()
    wanted = _size(end[-_TRAILER_BYTES:])
    if wanted > len(end):
        source.seek(max(size - wanted, 0))
        end = source.read()
    return f"{zlib.crc32(end[max(len(end) - wanted, 0) :]):08x}"


def _size(trailer: bytes) -> int:
    """Return how many bytes the footer has, its trailer included."""
    return int.from_bytes(trailer[:4], "little") + _TRAILER_BYTES
