"""Writes and follows the event stream of a folder (`shoal.model.events`).

Rules of the writer:
- One write for each line, at the end of the file: readers see whole lines, and perhaps a last one
  that is incomplete. If an earlier process left an incomplete line, it is removed at the start.
- A file of an earlier process with the same subject is continued: its meta event is replaced by
  one of this process, and its other events stay. Any other file is replaced. If a mirror's earlier
  process ended without an `end`, a state says that the mirror was dead from its last event on.
- Old ticks are merged in a background thread; the thinned file replaces the old one.
- Events never disturb the work that they describe: after an error of the disk, the writer logs one
  warning and writes nothing further.
- All methods can be called from any thread.

Rules of the reader:
- It has a position, and returns what was written since the last call. An incomplete line is read
  when it is complete. Lines that are not events are left out and counted.
- When a thinned file has replaced the one that it reads, it continues after the last line that it
  has read. If that line is not there, it reads from the start, and says so.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from shoal.model.errors import LedgerError
from shoal.model.events import (
    FILE_NAME,
    MOST_PARTITIONS,
    VERSION,
    End,
    Event,
    LatencyHistogram,
    LogLine,
    Meta,
    ProcessUsage,
    State,
    Subject,
    Tick,
)
from shoal.runtime.processes import ProcessIdentity
from shoal.runtime.tasks import start_thread
from shoal.telemetry.lines import (
    LONGEST_LINE,
    DamagedLine,
    decode_event,
    decode_meta,
    encode_event,
    kind_and_time,
)
from shoal.telemetry.thinning import thin

MOST_BYTES: Final = 64 * 1024 * 1024
THIN_EVERY_US: Final = 600 * 1_000_000
# Of one call of the reader.
_READ_BYTES: Final = 4 * 1024 * 1024

_log = logging.getLogger(__name__)


def now_us() -> int:
    return time.time_ns() // 1000


class EventWriter:
    """Appends events to the file of a folder. `close` ends it."""

    def __init__(
        self,
        folder: Path,
        subject: Subject,
        name: str,
        *,
        details: Mapping[str, Any] | None = None,
        clock_us: Callable[[], int] = now_us,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.path = folder / FILE_NAME
        self._clock_us = clock_us
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._thin_lock = threading.Lock()
        self._file = -1
        self._size = 0
        self._states: dict[str, tuple[str, str, Mapping[str, Any]]] = {}
        started_us = clock_us()
        self._ticked_us = self._thinned_us = started_us
        self._thinning: threading.Thread | None = None
        me = ProcessIdentity.of(os.getpid())
        mark = "" if me is None else me.start_mark
        meta = Meta(started_us, VERSION, subject, name, os.getpid(), mark, dict(details or {}))
        try:
            self._open(meta)
        except OSError as error:
            self._give_up(error)

    @property
    def is_writing(self) -> bool:
        """False after `close`, and after an error of the disk."""
        return self._file >= 0

    # Events

    def append(self, event: Event) -> None:
        line = encode_event(event)
        with self._lock:
            self._write(line)

    def log(self, level: Literal["info", "warning", "error"], text: str) -> None:
        self.append(LogLine(self._clock_us(), level, text))

    def set_state(
        self, name: str, state: str, reason: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        """Write the state of an object, unless the last one was the same."""
        now = (state, reason, details or {})
        if self._states.get(name) != now:
            self._states[name] = now
            self.append(State(self._clock_us(), name, state, reason, dict(details or {})))

    def forget_state(self, name: str) -> None:
        """The object no longer exists; if it appears again, its state is written again."""
        self._states.pop(name, None)

    def tick(
        self,
        *,
        counters: Mapping[str, int] | None = None,
        gauges: Mapping[str, float] | None = None,
        histograms: Mapping[str, LatencyHistogram] | None = None,
        partitions: Sequence[dict[str, Any]] = (),
        left_out: int = 0,
        processes: Sequence[ProcessUsage] = (),
    ) -> None:
        """Write a tick; of the partitions, which are given worst first, not more than the limit."""
        t = self._clock_us()
        seconds, self._ticked_us = max(0, t - self._ticked_us) / 1e6, t
        shown = list(partitions[:MOST_PARTITIONS])
        left_out += len(partitions) - len(shown)
        tick = Tick(
            t,
            seconds,
            dict(counters or {}),
            dict(gauges or {}),
            dict(histograms or {}),
            shown,
            left_out,
            list(processes),
        )
        self.append(tick)
        if self._is_thinning_due(t):
            self._thinned_us = t
            self._thinning = start_thread("thinning of events", self.thin, on_failure=self._give_up)

    def close(
        self, outcome: Literal["finished", "interrupted", "failed"] | None = None, text: str = ""
    ) -> None:
        """Write the end, if an outcome is given, and close the file; again: does nothing."""
        thinning = self._thinning
        if thinning is not None and thinning is not threading.current_thread():
            thinning.join()
        if outcome is not None:
            self.append(End(self._clock_us(), outcome, text))
        with self._lock:
            self._close_file()

    # The file

    def _open(self, meta: Meta) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        earlier = _read_earlier(self.path, meta.subject)
        first = encode_event(meta)
        if meta.subject == "mirror":
            earlier += _describe_death(earlier)
        lines = thin([first, *earlier], meta.t, most_bytes=self._most_bytes // 2)
        self._replace(b"".join(lines))

    def _replace(self, content: bytes) -> None:
        scratch = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            scratch.write_bytes(content)
            file = os.open(scratch, os.O_WRONLY | os.O_APPEND)
            scratch.replace(self.path)
        finally:
            scratch.unlink(missing_ok=True)
        self._close_file()
        self._file, self._size = file, len(content)

    def _write(self, line: bytes) -> None:
        """Under the lock."""
        if self._file < 0:
            return
        try:
            written = os.write(self._file, line)
            if written < len(line):
                # No reader may see half a line for ever.
                os.ftruncate(self._file, self._size)
        except OSError as error:
            self._give_up(error)
            return
        if written < len(line):
            self._give_up(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        else:
            self._size += written

    def _close_file(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            with suppress(OSError):
                os.close(file)

    def _give_up(self, error: Exception) -> None:
        """Report the first error, and write nothing further."""
        if self._file >= 0 or self._size == 0:
            self._size = -1
            _log.warning(
                "cannot write events to %s: %s; what runs continues without them", self.path, error
            )
        self._close_file()

    # Thinning

    def _is_thinning_due(self, t: int) -> bool:
        if self._thinning is not None and self._thinning.is_alive():
            return False
        return t - self._thinned_us >= THIN_EVERY_US or self._size > self._most_bytes

    def thin(self) -> None:
        """Merge old ticks, and replace the file; events of other threads wait only at the end."""
        with self._thin_lock:
            self._thin()

    def _thin(self) -> None:
        with self._lock:
            size = self._size
        if not self.is_writing:
            return
        try:
            with self.path.open("rb") as file:
                lines = file.read(size).splitlines(keepends=True)
                kept = thin(lines, self._clock_us(), most_bytes=self._most_bytes // 2)
                with self._lock:
                    if self.is_writing:
                        self._replace(b"".join(kept) + file.read())
        except OSError as error:
            with self._lock:
                self._give_up(error)


def append_event(folder: Path, subject: Subject, name: str, event: Event) -> None:
    """Add one event to the stream of a folder, which another process may be writing.

    One write at the end of the file, as the writer does. If the stream is replaced by a thinned one
    in the same moment, the event is lost.
    """
    if read_meta(folder) is None:
        writer = EventWriter(folder, subject, name)
        writer.append(event)
        writer.close()
        return
    file = os.open(folder / FILE_NAME, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, encode_event(event))
    finally:
        os.close(file)


def _read_earlier(path: Path, subject: Subject) -> list[bytes]:
    """The events of an earlier process without its meta event; nothing of any other file."""
    try:
        if not path.is_file():
            return []
        first, *lines = path.read_bytes().splitlines(keepends=True)
        if decode_meta(first, path).subject != subject:
            return []
    except (OSError, ValueError, LedgerError):
        return []
    return [line for line in lines if line.endswith(b"\n")]


def _describe_death(earlier: Sequence[bytes]) -> list[bytes]:
    """A process that is killed cannot write it: the next one does, with the time of its last."""
    kind, t = kind_and_time(earlier[-1]) if earlier else ("end", 0)
    if not kind or kind == "end":
        return []
    return [encode_event(State(t, "mirror", "dead", "its process ended"))]


@dataclass(frozen=True, slots=True)
class NewEvents:
    """What a reader found since its last call."""

    events: list[Event]
    # The events are all of the file: what was read before does not count.
    is_restarted: bool = False


class EventReader:
    """Reads the events of a folder while they are written, and afterwards."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self.meta: Meta | None = None
        self.is_ended = False
        # Lines that are not events.
        self.damaged = 0
        self._file = -1
        self._position = 0
        self._last_line = b""

    def read(self) -> NewEvents:
        """The new events; none if the file does not exist yet. Of a long file, the next part.

        `LedgerError` if it is not an event stream of this version.
        """
        if self._file < 0 and not self._open():
            return NewEvents([])
        is_restarted = self._is_truncated() and self._restart()
        events = self._read_lines()
        if events or is_restarted or not self._is_replaced():
            return NewEvents(events, is_restarted)
        # Lines may have been added just before it was replaced; now it no longer changes.
        events = self._read_lines()
        return NewEvents(events) if events else self._follow()

    def is_writer_alive(self) -> bool:
        """Whether the process that writes the file runs."""
        meta = self.meta
        return meta is not None and ProcessIdentity(meta.pid, meta.process_start).is_alive()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> bool:
        try:
            self._file = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        return True

    def _is_truncated(self) -> bool:
        return os.fstat(self._file).st_size < self._position

    def _is_replaced(self) -> bool:
        try:
            there, here = self.path.stat(), os.fstat(self._file)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _restart(self) -> bool:
        self._position, self._last_line, self.meta = 0, b"", None
        self.is_ended = False
        return True

    def _follow(self) -> NewEvents:
        """Continue in the file that has replaced the one that was read."""
        last_line = self._last_line
        self.close()
        if not self._open():
            return NewEvents([])
        content = _read_all(self._file)
        first = content.partition(b"\n")[0]
        place = content.rfind(b"\n" + last_line) if last_line else -1
        if place < 0:
            self._restart()
            return NewEvents(self._read_lines(), is_restarted=True)
        self._position = place + 1 + len(last_line)
        meta, before = decode_meta(first, self.path), self.meta
        self.meta = meta
        return NewEvents([*([] if meta == before else [meta]), *self._read_lines()])

    def _read_lines(self) -> list[Event]:
        data = os.pread(self._file, _READ_BYTES, self._position)
        end = data.rfind(b"\n") + 1
        if not end and len(data) >= LONGEST_LINE:
            end = len(data)  # not one of our lines: left out
        lines = data[:end].splitlines(keepends=True)
        events: list[Event] = []
        for line in lines:
            if self.meta is None:
                self.meta = decode_meta(line, self.path)
                events.append(self.meta)
                continue
            try:
                events.append(decode_event(line))
            except DamagedLine:
                self.damaged += 1
        if lines:
            self._position += end
            self._last_line = lines[-1]
        if events:
            self.is_ended = isinstance(events[-1], End)
        return events


def _read_all(file: int) -> bytes:
    content = b""
    while part := os.pread(file, MOST_BYTES, len(content)):
        content += part
    return content


def read_meta(folder: Path) -> Meta | None:
    """The first event of a folder's file; None if there is none of this version."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            return decode_meta(file.readline(LONGEST_LINE), folder / FILE_NAME)
    except (OSError, LedgerError):
        return None
