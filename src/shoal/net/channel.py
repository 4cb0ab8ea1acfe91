"""The control channel as two pure state machines, one for each end. No sockets, no clocks.

Rules:
- Bytes, commands and the time (monotonic seconds) go in; bytes to send and events come out.
- Driver end: before the peer is authenticated, only a `hello` with the right token is accepted,
  its line must be short, and the token is compared in constant time. The supervisor decides
  which worker may hold which lease.
- Worker end: a commit keeps its number until it is acknowledged. Over a new connection it is sent
  again under the same number, so that the driver writes it only once.
- The worker measures the driver's silence only while the worker itself runs: a worker that was
  paused or busy does not declare its driver lost.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from shoal.net.control_port import LINE_LIMIT_BYTES, ControlError, Json, LineDecoder, check_token
from shoal.net.messages import (
    Ack,
    Commit,
    DriverMessage,
    Hello,
    Lease,
    LeaseRefused,
    Probe,
    ProbeReply,
    ProgressReport,
    WorkerMessage,
    decode_driver_message,
    decode_worker_message,
    encode_message,
)

HELLO_LIMIT_BYTES: Final = 4096
UNAUTHENTICATED_LIMIT_S: Final = 5.0
DRIVER_LOST_AFTER_S: Final = 10.0
PENDING_COMMITS_LIMIT: Final = 1024
# A worker that was not ticked for longer than this was itself paused or busy.
STALL_S: Final = 2.0


class DriverChannel:
    """The driver's end of one connection."""

    def __init__(self, token: str, *, now: float) -> None:
        self._token = token
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
                self.hello = self._authenticate(message)
                self._lines.limit_bytes = LINE_LIMIT_BYTES
            elif isinstance(message, Hello):
                raise ControlError("a worker sent a second hello on one connection")
            messages.append(message)
        return messages

    def is_overdue(self, now: float) -> bool:
        """Whether the peer did not authenticate in time."""
        return self.hello is None and now - self._opened > UNAUTHENTICATED_LIMIT_S

    def _authenticate(self, message: WorkerMessage) -> Hello:
        if not isinstance(message, Hello):
            raise ControlError("the first message of a peer was not a hello")
        check_token(message.token, self._token)
        return message


@dataclass(frozen=True, slots=True)
class DriverLost:
    """The driver was silent for too long: send nothing more, seal the ledgers, end."""

    silent_s: float


WorkerEvent = Lease | LeaseRefused | DriverMessage | DriverLost


class WorkerChannel:
    """The worker's end; it outlives the single connection."""

    def __init__(
        self, hello: Hello, *, now: float, lost_after_s: float = DRIVER_LOST_AFTER_S
    ) -> None:
        self._hello = hello
        self._lost_after_s = lost_after_s
        self._lines = LineDecoder(LINE_LIMIT_BYTES)
        self._last_heard_s = now
        self._last_tick_s = now
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
        """Commit a line: the number that acknowledges it, and the bytes to send now."""
        if len(self._pending) >= PENDING_COMMITS_LIMIT:
            raise ControlError(
                f"more than {PENDING_COMMITS_LIMIT} commits are not acknowledged by the driver"
            )
        message = Commit(self._next_number, line)
        encoded = encode_message(message)
        if len(encoded) > LINE_LIMIT_BYTES:
            raise ControlError(
                f"a commit of {len(encoded)} bytes exceeds the limit of {LINE_LIMIT_BYTES}"
            )
        self._next_number += 1
        self._pending.append(message)
        return message.number, encoded if self.leased else b""

    def progress(self, values: Json) -> bytes:
        """Report progress; without a lease only the newest report is kept, to be sent later."""
        self._progress = values
        return self._encode_progress() if self.leased else b""

    def receive(self, data: bytes, *, now: float, clock_us: int) -> tuple[list[WorkerEvent], bytes]:
        """The events in `data`, and the bytes to answer at once."""
        self._last_heard_s = now
        self._lines.feed(data)
        events: list[WorkerEvent] = []
        answers = bytearray()
        while (line := self._lines.next_line()) is not None:
            message = decode_driver_message(line)
            if isinstance(message, Probe):
                answers += encode_message(ProbeReply(message.driver_us, clock_us))
                continue
            answers += self._on_message(message)
            events.append(message)
        return events, bytes(answers)

    def tick(self, now: float) -> DriverLost | None:
        """Call several times a second; returns `DriverLost` once."""
        stalled_s = now - self._last_tick_s
        if stalled_s > STALL_S:
            self._last_heard_s = min(now, self._last_heard_s + stalled_s)
        self._last_tick_s = now
        silent_s = now - self._last_heard_s
        if self.lost or silent_s <= self._lost_after_s:
            return None
        self.lost = True
        return DriverLost(silent_s)

    def _on_message(self, message: DriverMessage) -> bytes:
        match message:
            case Lease():
                self.leased = True
                resent = b"".join(encode_message(commit) for commit in self._pending)
                return resent + self._encode_progress()
            case LeaseRefused(reason):
                self.refused = reason
                self.leased = False
            case Ack(number):
                if not self._pending or self._pending[0].number != number:
                    raise ControlError(f"the driver acknowledged commit {number} out of order")
                self._pending.popleft()
        return b""

    def _encode_progress(self) -> bytes:
        if self._progress is None:
            return b""
        encoded = encode_message(ProgressReport(self._progress))
        self._progress = None
        return encoded
