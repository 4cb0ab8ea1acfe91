"""Reads event files from a position, while they grow.

A position is the inode of a file and an offset, as text: a file that was thinned is another file,
and is read again from its start. Only complete lines are read, at most `CHUNK_BYTES` at a time.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from shoal.model.events import VERSION

Json = dict[str, Any]
CHUNK_BYTES: Final = 1024 * 1024
# How much of the end of a file is enough for a minute of ticks.
TAIL_BYTES: Final = 256 * 1024
TAIL: Final = "tail"


class Chunk(NamedTuple):
    """Events, the position after them, and whether they begin at the start of the file."""

    events: list[Json]
    position: str
    is_start: bool
    has_more: bool


def read_chunk(path: Path, position: str = "") -> Chunk | None:
    """Read what follows a position; None if there is no readable event file."""
    try:
        with path.open("rb") as file:
            size, inode = _size_of(path)
            start = _find_start(position, inode, size)
            file.seek(start)
            data = file.read(CHUNK_BYTES)
    except OSError:
        return None
    if position == TAIL and start:
        cut = data.find(b"\n") + 1
        start, data = start + cut, data[cut:]
    end = data.rfind(b"\n") + 1
    lines = data[:end].splitlines()
    events = [event for line in lines if (event := parse_event(line)) is not None]
    if end == 0 and len(data) == CHUNK_BYTES:
        end = len(data)  # a line longer than a chunk is no event
    after = start + end
    return Chunk(events, f"{inode}-{after}", start == 0, after < size and end > 0)


def read_meta(path: Path) -> Json | None:
    """The first event; None if the file is of another version or not an event file."""
    try:
        with path.open("rb") as file:
            line = file.readline(CHUNK_BYTES)
    except OSError:
        return None
    event = parse_event(line) if line.endswith(b"\n") else None
    is_known = event is not None and (event["kind"], event.get("version")) == ("meta", VERSION)
    return event if is_known else None


def _size_of(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_ino


def _find_start(position: str, inode: int, size: int) -> int:
    if position == TAIL:
        return max(0, size - TAIL_BYTES)
    of_inode, _, offset = position.partition("-")
    is_valid = of_inode.isdecimal() and offset.isdecimal() and len(offset) < 20
    if not is_valid or int(of_inode) != inode or int(offset) > size:
        return 0
    return int(offset)


def parse_event(line: bytes) -> Json | None:
    """The event on a line; None if it is not one."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(event, dict) and isinstance(event.get("kind"), str)
    return event if is_event and isinstance(event.get("t"), int) else None
