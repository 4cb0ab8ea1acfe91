"""A node's vector clock, and the log of its events in GoVector's format.

An event is two lines: the node and its clock, then what happened. A clock says of every node how
many of its events came before.

Rules of this file:
- An event is in the file before any message that carries its clock is sent: so after a kill no
  other node refers to an event that is missing.
- A restarted node continues at the end of its file; an incomplete event there is truncated.
- Messages carry clocks, but are not events themselves.
- ShiViz knows no times. A second file has the time of each event in microseconds, one on a line; it
  may lack the last ones after a kill.
"""

import json
import os
import time
from pathlib import Path

FOLDER = "trace"
SUFFIX = "-Log.txt"
TIMES_SUFFIX = "-Times.txt"
FIRST_EVENT = "Initialization Complete"
# Limited, since a trace is read by people and drawn by a browser.
MOST_EVENTS = 100_000

Clock = dict[str, int]


class Tracer:
    """The clock and the log of this process."""

    def __init__(self, path: Path, host: str) -> None:
        self.host = host
        self.clock: Clock = {}
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._resume(path.read_text(encoding="utf-8", errors="replace"))
        times = path.with_name(f"{host}{TIMES_SUFFIX}")
        self._times = os.open(times, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._fill_times(times.read_bytes().count(b"\n"))
        if self.clock.get(host):
            self.event("starts again")
        else:
            self._write(FIRST_EVENT)

    def _resume(self, content: str) -> None:
        """Continue with the clock of the last complete event."""
        lines = content.split("\n")
        whole = (len(lines) - 1) // 2 * 2
        kept = "".join(f"{line}\n" for line in lines[:whole])
        if len(kept) < len(content):
            os.ftruncate(self._descriptor, len(kept.encode()))
        if whole:
            self.clock = parse_clock(lines[whole - 2].partition(" ")[2])

    def _fill_times(self, count: int) -> None:
        """Write an empty line for each event that has no time."""
        os.write(self._times, b"\n" * (self.clock.get(self.host, 0) - count))

    def event(self, text: str) -> None:
        """Log an event of this node."""
        count = self.clock.get(self.host, 0)
        if count < MOST_EVENTS - 1:
            self._write(f"INFO {text}")
        elif count == MOST_EVENTS - 1:
            self._write("WARNING the trace ends here: it has reached the limit of events")

    def _write(self, line: str) -> None:
        self.clock[self.host] = self.clock.get(self.host, 0) + 1
        entry = f"{self.host} {format_clock(self.clock)}\n{' '.join(line.split())}\n"
        os.write(self._descriptor, entry.encode())
        os.write(self._times, b"%d\n" % (time.time_ns() // 1000))

    def stamp(self) -> bytes:
        """The clock, encoded for a message."""
        return format_clock(self.clock).encode()

    def merge(self, stamp: bytes) -> None:
        """Merge the clock of a received message: its events precede later ones of this node."""
        clock = self.clock
        for host, count in parse_clock(stamp.decode()).items():
            if count > clock.get(host, 0):
                clock[host] = count

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._times)


def format_clock(clock: Clock) -> str:
    """GoVector's format: sorted by name, with a blank after each comma."""
    return "{" + ", ".join(f'"{host}":{clock[host]}' for host in sorted(clock)) + "}"


def parse_clock(text: str) -> Clock:
    """Parse a clock; `ValueError` if it is invalid."""
    values = json.loads(text)
    if not isinstance(values, dict) or not all(isinstance(v, int) for v in values.values()):
        raise ValueError(f"{text[:40]!r} is not a clock")
    return values


# The tracer of this process; None while nothing is traced.
current: Tracer | None = None


def start_tracing(cluster_folder: Path, host: str) -> None:
    """Start tracing this process, if its cluster is traced."""
    global current  # noqa: PLW0603 - a process is one node
    folder = cluster_folder / FOLDER
    if folder.is_dir():
        current = Tracer(folder / f"{host}{SUFFIX}", host)
