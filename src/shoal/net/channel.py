"""The control channel as two pure state machines, one for each end; no sockets, no clocks.

Rules:
- Bytes, commands and the time (monotonic seconds) go in; bytes to send and events come out.
- Driver end: nothing but a `hello` with the right token is looked at before the peer is
  authenticated; the comparison takes constant time; before that a line may be only short.
  Who may hold which lease is decided above, in the supervisor.
- Worker end: a commit keeps its number until it is acknowledged, and is sent again under the
  same number over a new connection, so that the driver writes it once.
- The worker's silence clock counts only time in which the worker itself was running: one that
  was paused or busy does not blame its driver.
"""

import hmac
from collections import deque
from dataclasses import dataclass
from typing import Final

from shoal.net.lines import LineDecoder
from shoal.net.messages import (
    Ack,
    Commit,
    ControlError,
    DriverMessage,
    Hello,
    Json,
    Lease,
    Probe,
    Probed,
    Progress,
    Refused,
    WorkerMessage,
    decode_driver_message,
    decode_worker_message,
    encode_message,
)

HELLO_LIMIT_BYTES: Final = 4096
LINE_LIMIT_BYTES: Final = 1 << 20
UNAUTHENTICATED_LIMIT_S: Final = 5.0
DRIVER_LOST_AFTER_S: Final = 10.0
PENDING_COMMITS_LIMIT: Final = 1024
# A worker that did not look at its clock for longer than this was itself standing still.
STALL_S: Final = 2.0


class DriverChannel:
    """The driver's end of one connection."""

    def __init__(self, token: str, *, now: float) -> None:
        self._token = token.encode()
        self._lines = LineDecoder(HELLO_LIMIT_BYTES)
        self._opened = now
        self.hello: Hello | None = None

    def receive(self, data: bytes) -> list[WorkerMessage]:
        """The messages that `data` completes; raises `ControlError` if the peer must be dropped."""
        self._lines.feed(data)
        messages: list[WorkerMessage] = []
        while (line := self._lines.next_line()) is not None:
            message = decode_worker_message(line)
            if self.hello is None:
                self.hello = self._authenticated(message)
                self._lines.limit_bytes = LINE_LIMIT_BYTES
            elif isinstance(message, Hello):
                raise ControlError("a worker said hello twice on one connection")
            messages.append(message)
        return messages

    def overdue(self, now: float) -> bool:
        """Whether the peer had its time to say hello and did not."""
        return self.hello is None and now - self._opened > UNAUTHENTICATED_LIMIT_S

    def _authenticated(self, message: WorkerMessage) -> Hello:
        if not isinstance(message, Hello):
            raise ControlError("a peer spoke before it said hello")
        if not hmac.compare_digest(message.token.encode(), self._token):
            raise ControlError("a peer said hello with a wrong token")
        return message


@dataclass(frozen=True, slots=True)
class Lost:
    """The driver was silent for too long: send nothing more, seal, end."""

    silent_s: float


WorkerEvent = Lease | Refused | DriverMessage | Lost


class WorkerChannel:
    """The worker's end, over all its connections."""

    def __init__(
        self, hello: Hello, *, now: float, lost_after_s: float = DRIVER_LOST_AFTER_S
    ) -> None:
        self._hello = hello
        self._lost_after_s = lost_after_s
        self._lines = LineDecoder(LINE_LIMIT_BYTES)
        self._heard = now
        self._ticked = now
        self._pending: deque[Commit] = deque()
        self._next_number = 1
        self._progress: Json | None = None
        self.connected = False
        self.leased = False
        self.refused: str | None = None
        self.lost = False

    @property
    def pending_commits(self) -> int:
        return len(self._pending)

    def connection_made(self) -> bytes:
        self._lines = LineDecoder(LINE_LIMIT_BYTES)
        self.connected = True
        self.leased = False
        return encode_message(self._hello)

    def connection_lost(self) -> None:
        self.connected = False
        self.leased = False

    def commit(self, line: Json) -> tuple[int, bytes]:
        """The number under which `line` will be acknowledged, and what to send now."""
        if len(self._pending) >= PENDING_COMMITS_LIMIT:
            raise ControlError(f"more than {PENDING_COMMITS_LIMIT} commits wait for the driver")
        message = Commit(self._next_number, line)
        encoded = encode_message(message)
        if len(encoded) > LINE_LIMIT_BYTES:
            raise ControlError(f"a commit of {len(encoded)} bytes is too long for the channel")
        self._next_number += 1
        self._pending.append(message)
        return message.number, encoded if self.leased else b""

    def progress(self, values: Json) -> bytes:
        """Without a lease only the newest progress is kept, for when there is one."""
        self._progress = values
        return self._flushed_progress() if self.leased else b""

    def receive(self, data: bytes, *, now: float, clock_us: int) -> tuple[list[WorkerEvent], bytes]:
        """The events in `data` and what to answer at once."""
        self._heard = now
        self._lines.feed(data)
        events: list[WorkerEvent] = []
        answers = bytearray()
        while (line := self._lines.next_line()) is not None:
            message = decode_driver_message(line)
            if isinstance(message, Probe):
                answers += encode_message(Probed(message.driver_us, clock_us))
                continue
            answers += self._take(message)
            events.append(message)
        return events, bytes(answers)

    def tick(self, now: float) -> Lost | None:
        """Looks at the clock, several times a second; `Lost` comes once."""
        stalled_s = now - self._ticked
        if stalled_s > STALL_S:
            self._heard = min(now, self._heard + stalled_s)
        self._ticked = now
        silent_s = now - self._heard
        if self.lost or silent_s <= self._lost_after_s:
            return None
        self.lost = True
        return Lost(silent_s)

    def _take(self, message: DriverMessage) -> bytes:
        match message:
            case Lease():
                self.leased = True
                resent = b"".join(encode_message(commit) for commit in self._pending)
                return resent + self._flushed_progress()
            case Refused(reason):
                self.refused = reason
                self.leased = False
            case Ack(number):
                if not self._pending or self._pending[0].number != number:
                    raise ControlError(f"the driver acknowledged commit {number} out of turn")
                self._pending.popleft()
        return b""

    def _flushed_progress(self) -> bytes:
        if self._progress is None:
            return b""
        encoded = encode_message(Progress(self._progress))
        self._progress = None
        return encoded
