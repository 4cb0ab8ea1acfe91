"""The trace of a cluster, as the page draws it: events of nodes with their vector clocks.

Rules:
- The folder comes from the first event of the cluster, which the cluster itself wrote.
- Of each node the last `MOST_EVENTS` events are read. A file beside its log has the time of each
  event in microseconds, one on a line; an event without one has no time.
"""

import json
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]
FOLDER: Final = "trace"
LOG_SUFFIX: Final = "-Log.txt"
TIMES_SUFFIX: Final = "-Times.txt"
MOST_EVENTS: Final = 2000
MOST_NODES: Final = 120
MOST_LINES: Final = 2 * MOST_EVENTS + 2
LARGEST_FILE_BYTES: Final = 32 * 1024 * 1024
LONGEST_TEXT: Final = 300


def read_trace(details: Json) -> Json:
    """{hosts, events: [[host, clock, text, t_us or null]]}; no hosts if nothing is traced."""
    folder = details.get("directory")
    if not isinstance(folder, str):
        return {"hosts": [], "events": []}
    paths = sorted((Path(folder) / FOLDER).glob(f"*{LOG_SUFFIX}"))[:MOST_NODES]
    hosts = [path.name.removesuffix(LOG_SUFFIX) for path in paths]
    events = [
        event for path, host in zip(paths, hosts, strict=True) for event in _read_events(path, host)
    ]
    return {"hosts": hosts, "events": events}


def _read_events(path: Path, host: str) -> list[list[Any]]:
    lines = _read_last_lines(path)[0]
    while lines and not lines[0].startswith(f"{host} {{"):
        lines = lines[1:]  # of an event whose clock was not read
    lines = lines[: len(lines) // 2 * 2][-2 * MOST_EVENTS :]
    times, times_before = _read_last_lines(path.with_name(f"{host}{TIMES_SUFFIX}"))
    found: list[list[Any]] = []
    for first, text in zip(lines[::2], lines[1::2], strict=True):
        clock = _parse_clock(first.partition(" ")[2])
        if clock is None or host not in clock:
            continue
        place = clock[host] - 1 - times_before
        written = times[place] if 0 <= place < len(times) else ""
        time_us = int(written) if written.isdecimal() and len(written) < 20 else None
        found.append([host, clock, text.removeprefix("INFO ")[:LONGEST_TEXT], time_us])
    return found


def _read_last_lines(path: Path) -> tuple[list[str], int]:
    """The last complete lines, and how many are before them; none if it cannot be read."""
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            return [], 0
        data = path.read_bytes()
    except OSError:
        return [], 0
    total = data.count(b"\n")
    # What follows the last line end is not complete.
    lines = data.rsplit(b"\n", MOST_LINES + 1)[:-1][-MOST_LINES:]
    return [line.decode(errors="replace") for line in lines], total - len(lines)


def _parse_clock(text: str) -> dict[str, int] | None:
    try:
        clock = json.loads(text)
    except ValueError:
        return None
    is_clock = isinstance(clock, dict) and all(isinstance(each, int) for each in clock.values())
    return clock if is_clock else None
