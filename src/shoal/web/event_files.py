"""Reads event files from a position, while they grow.

A position is the inode of a file and an offset, as text: a file that was thinned is another file,
and is read again from its start. Only complete lines are read, at most `CHUNK_BYTES` at a time.
A longer line is no event, and neither is one whose fields have other types than readers expect.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from shoal.model.events import VERSION

Json = dict[str, Any]
CHUNK_BYTES: Final = 1024 * 1024
# How much of the end of a file is enough for a minute of ticks.
TAIL_BYTES: Final = 256 * 1024
TAIL: Final = "tail"
# JavaScript has exact integers up to this one.
_TIME_LIMIT_US: Final = 1 << 53
# What a field is if it is there; those of `_NEEDED` must be there.
_TYPES: Final[dict[str, dict[str, type]]] = {
    "meta": {"details": dict},
    "tick": dict.fromkeys(("counters", "gauges", "histograms"), dict)
    | dict.fromkeys(("partitions", "processes"), list),
    "state": {"object": str, "state": str, "reason": str, "details": dict},
    "fault": {"id": str, "phase": str, "what": str, "target": str},
    "finding": {"finding": str},
    "log": {"text": str},
}
_NEEDED: Final = ("object", "state", "id", "phase", "what", "finding", "text")


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
    is_valid = all(each.isdecimal() and len(each) < 21 for each in (of_inode, offset))
    if not is_valid or int(of_inode) != inode or int(offset) > size:
        return 0
    return int(offset)


def parse_event(line: bytes) -> Json | None:
    """The event on a line; None if it is not one."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not _is_event(event):
        return None
    if partitions := event.get("partitions"):
        event["partitions"] = [each for each in partitions if isinstance(each, dict)]
    return event


def _is_event(event: Json) -> bool:
    kind, t = event.get("kind"), event.get("t")
    if not isinstance(kind, str) or type(t) is not int or not 0 <= t < _TIME_LIMIT_US:
        return False
    for name, type_ in _TYPES.get(kind, {}).items():
        if not (isinstance(event[name], type_) if name in event else name not in _NEEDED):
            return False
    return kind != "tick" or _has_entries(event)


def _has_entries(tick: Json) -> bool:
    """Whether what a tick contains has the shape that readers expect."""
    usages = tick.get("processes", [])
    histograms = tick.get("histograms", {}).values()
    return all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in usages
    ) and all(isinstance(each, dict) and _has_buckets(each) for each in histograms)


def _has_buckets(histogram: Json) -> bool:
    buckets = histogram.get("buckets")
    return isinstance(buckets, dict) and all(
        key.isdecimal() and isinstance(count, int) for key, count in buckets.items()
    )


def read_lines(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Complete lines and the position behind each, without those longer than `CHUNK_BYTES`."""
    position, is_middle = file.tell(), False
    while part := file.readline(CHUNK_BYTES):
        position += len(part)
        is_end = part.endswith(b"\n")
        if is_end and not is_middle:
            yield part, position
        is_middle = not is_end
