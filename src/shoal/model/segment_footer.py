"""The checksum of a segment's footer, which its line in the commit log names.

The pages of a segment carry checksums of their own. Its footer, which says where pages are and
between which values they lie, has none, and nothing else ties a file to its line: of two segments
with as many rows, one could stand in the place of the other. Footers differ, so their checksum
finds both.
"""

import re
import zlib
from pathlib import Path
from typing import Any, Final

_TRAILER_BYTES: Final = 8  # the length of the footer, and Parquet's magic
_CHECK: Final = re.compile(r"[0-9a-f]{8}")


def is_footer_check(value: Any) -> bool:
    """Whether a value of a line has the form of such a checksum."""
    return isinstance(value, str) and _CHECK.fullmatch(value) is not None


def check_footer(content: Any) -> str:
    """Return the checksum of the footer at the end of a segment's content, a bytes-like object."""
    view = memoryview(content)
    start = len(view) - _size(bytes(view[-_TRAILER_BYTES:]))
    return f"{zlib.crc32(view[max(start, 0) :]):08x}"


def read_footer_check(path: Path) -> str:
    """Return the checksum of the footer of a file; only the footer is read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - _TRAILER_BYTES, 0))
        trailer = file.read(_TRAILER_BYTES)
        file.seek(max(size - _size(trailer), 0))
        return f"{zlib.crc32(file.read()):08x}"


def _size(trailer: bytes) -> int:
    """Return how many bytes the footer has, its trailer included."""
    return int.from_bytes(trailer[:4], "little") + _TRAILER_BYTES
