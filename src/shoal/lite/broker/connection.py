"""One client's connection: frames in, answers out, in the order of the requests.

Rules of this file:
- One request at a time: the next is taken up when the answer to the last is on its way, as
  Apache Kafka does. So answers cannot overtake each other, and a request sees the effects of
  those before it. The one exception: a Produce request is taken up behind others that are
  written and wait for followers. All are written in their order, and followers get many at once.
  An answer that is only held for lack of something to say is given when another request is there.
- What a client may cost is limited: frames by their size, requests that wait by their bytes,
  answers by not taking up the next request while the client does not read the last.
- Whatever a client does wrong ends its connection and nothing else.

The socket is used directly and not by a transport of asyncio, so that records go from the file
to the socket in the kernel (sendfile), and everything else in one call (sendmsg).
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol, cast

from shoal.lite.base.hooks.held_answers import HeldAnswer
from shoal.lite.broker.registry import Answer, HangUp, Written
from shoal.lite.storage.slices import LogSlice
from shoal.runtime.tasks import run_awaited
from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import WireError
from shoal.wire.framing import LENGTH_SIZE, FrameDecoder, Part, frame_length

# Requests that have arrived and wait; above this much no more is read from the socket.
_WAITING_LIMIT_BYTES = 16 * 1024 * 1024
# Answers that the client has not read; above this much no request is taken up.
_UNSENT_LIMIT_BYTES = 1024 * 1024
# Reads in a row before other connections have their turn.
_READS_AT_ONCE = 8
# Parts of one sendmsg; the kernel takes 1024 at most.
_PARTS_AT_ONCE = 256
# How a Produce request begins.
_PRODUCE_KEY = ApiKey.PRODUCE.to_bytes(2, "big")
# Linux: more follows at once, do not send a packet for this alone.
_MORE = getattr(socket, "MSG_MORE", 0)

_LOOPBACK = ("127.0.0.1", "::1")
_logger = logging.getLogger(__name__)


class Host(Protocol):
    """What a connection needs of its broker."""

    frame_limit_bytes: int

    def answer(self, request: memoryview, client_host: str) -> Answer | Awaitable[Answer]: ...
    def goodbye(self, connection: "Connection") -> None: ...


class Connection:
    """The broker's end of a connection; works by itself until `goodbye`."""

    def __init__(self, host: Host, client: socket.socket, address: tuple[str, int]) -> None:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address[0] in _LOOPBACK:
            _do_not_pace(client)
        self._host = host
        self._socket = client
        self.client_address = address[0]
        self._client_host = f"/{address[0]}"
        self._loop = asyncio.get_running_loop()
        # When something was last received or sent, by the event loop's clock.
        self.active_s = monotonic()
        self._decoder = FrameDecoder(host.frame_limit_bytes)
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        # Requests that were taken up and not answered, in their order; their frames are kept.
        self._underway: deque[tuple[asyncio.Future[Answer], int]] = deque()
        # Whether a Produce request may be taken up while they wait.
        self._all_written = False
        self._unsent: deque[Part | LogSlice] = deque()
        self._unsent_bytes = 0
        self._is_reading = True
        self._is_writing = False
        self._is_ending = False
        self._is_closed = False
        self._loop.add_reader(client, self._on_readable)

    def close(self) -> None:
        """End the connection once the answers that there are have been sent."""
        if self._is_closed or self._is_ending:
            return
        self._is_ending = True
        self._waiting.clear()
        self._control_reading()
        if self._sent_all():
            self._end()

    def abort(self) -> None:
        """End the connection now."""
        self._end()

    @property
    def is_waiting_for_us(self) -> bool:
        """Whether it is the broker's turn to do something."""
        return bool(self._underway) and not self._unsent

    @property
    def held_bytes(self) -> int:
        """What its requests hold in memory."""
        return self._waiting_bytes + self._decoder.held_bytes

    def let_go(self) -> None:
        """Give back memory that is not needed now."""
        self._decoder.let_go()

    # Receiving

    def _on_readable(self) -> None:
        # A read that fills its buffer has more behind it, mostly the rest of a large frame.
        for _ in range(_READS_AT_ONCE):
            if not self._filled_buffer() or not self._is_reading:
                return

    def _filled_buffer(self) -> bool:
        """Take what has arrived; whether it filled the buffer."""
        buffer = self._decoder.get_buffer()
        try:
            count = self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            count = 0
        if count == 0:
            self._end()
            return False
        self.active_s = monotonic()
        try:
            frames = self._decoder.received(count)
        except WireError as error:
            self._hang_up(error)
            return False
        if frames:
            for request in frames:
                self._waiting.append(request)
                self._waiting_bytes += len(request)
            self._go_on()
        return count == len(buffer)

    def _control_reading(self) -> None:
        wants = not self._is_ending and self._waiting_bytes < _WAITING_LIMIT_BYTES
        if wants == self._is_reading or self._is_closed:
            return
        self._is_reading = wants
        if wants:
            self._loop.add_reader(self._socket, self._on_readable)
        else:
            self._loop.remove_reader(self._socket)

    # One request after the other

    def _go_on(self) -> None:
        """Take up what waits and send all answers at once, until either takes time."""
        while True:
            self._take_up()
            if not self._sent_all() or self._underway or not self._waiting:
                break
        self._control_reading()

    def _take_up(self) -> None:
        """Take up what waits, until one answer takes time or the client does not read."""
        waiting, underway = self._waiting, self._underway
        while waiting and self._unsent_bytes < _UNSENT_LIMIT_BYTES:
            request = waiting[0]
            if underway and not (self._all_written and request[:2] == _PRODUCE_KEY):
                if isinstance(held := underway[0][0], HeldAnswer):
                    held.release()
                return
            waiting.popleft()
            answer = self._answer(request)
            if not underway and (answer is None or isinstance(answer, list)):
                self._waiting_bytes -= len(request)
                if answer is not None:
                    self._add(answer)
            else:
                # Its bytes count until it is answered: something holds its frame.
                future = self._as_future(answer)
                self._all_written = isinstance(future, Written)
                underway.append((future, len(request)))
                future.add_done_callback(self._on_answer)

    def _answer(self, request: memoryview) -> Answer | Awaitable[Answer]:
        try:
            return self._host.answer(request, self._client_host)
        except Exception as error:  # noqa: BLE001 - a bug must not cost the broker
            # Those before it are answered yet; nothing behind it is taken up.
            failed: asyncio.Future[Answer] = self._loop.create_future()
            failed.set_exception(error)
            return failed

    def _as_future(self, answer: Answer | Awaitable[Answer]) -> "asyncio.Future[Answer]":
        if answer is None or isinstance(answer, list):
            future = Written(loop=self._loop)
            future.set_result(answer)
            return future
        if isinstance(answer, asyncio.Future):
            return answer
        return run_awaited("answer", cast("Coroutine[Any, Any, Answer]", answer))

    def _on_answer(self, _: "asyncio.Future[Answer]") -> None:
        underway = self._underway
        while underway and underway[0][0].done() and not self._is_closed:
            future, size_bytes = underway.popleft()
            self._waiting_bytes -= size_bytes
            error = None if future.cancelled() else future.exception()
            if error is not None or future.cancelled():
                self._hang_up(error or HangUp("an answer was given up"))
                return
            answer = future.result()
            if answer is not None:
                self._add(answer)
        if not self._is_closed:
            self._go_on()

    def _hang_up(self, error: BaseException) -> None:
        if isinstance(error, HangUp | WireError):
            _logger.info("connection closed: %s", error)
        else:
            _logger.error("connection closed by a fault of ours", exc_info=error)
        self.close()

    # Sending

    def _add(self, answer: Sequence[Part | LogSlice]) -> None:
        size = sum(map(len, answer))
        self._unsent.append(frame_length(size))
        self._unsent.extend(answer)
        self._unsent_bytes += LENGTH_SIZE + size

    def _sent_all(self) -> bool:
        """Send as much as the socket takes; if something is left, go on when it takes more."""
        try:
            while self._unsent:
                self._send_some()
                self.active_s = monotonic()
        except (BlockingIOError, InterruptedError):
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(self._socket, self._on_writable)
            return False
        except OSError:
            self._end()
        return True

    def _on_writable(self) -> None:
        if not self._sent_all() or self._is_closed:
            return
        self._is_writing = False
        self._loop.remove_writer(self._socket)
        if self._is_ending:
            self._end()
        else:
            self._go_on()

    def _send_some(self) -> None:
        unsent = self._unsent
        first = unsent[0]
        if isinstance(first, LogSlice):
            self._unsent_bytes -= first.send_to(self._socket.fileno())
            if first.size == 0:
                unsent.popleft()
            return
        parts: list[Part] = []
        flags = 0
        for part in unsent:
            if isinstance(part, LogSlice):
                flags = _MORE
                break
            parts.append(part)
            if len(parts) == _PARTS_AT_ONCE:
                break
        sent = self._socket.sendmsg(parts, [], flags)
        self._unsent_bytes -= sent
        for part in parts:
            if sent < len(part):
                if sent:
                    unsent[0] = memoryview(part)[sent:]
                return
            sent -= len(part)
            unsent.popleft()

    def _end(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._is_reading = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._waiting.clear()
        self._unsent.clear()
        self._socket.close()
        for future, _ in self._underway:
            future.cancel()
        self._underway.clear()
        self._host.goodbye(self)


def _do_not_pace(client: socket.socket) -> None:
    """Send as fast as the client reads: within one machine nothing is congested on the way.

    Where Linux uses BBR by default it spreads what is sent over time, by a timer for every few
    packets: more than a third of the CPU of reads, which take twice as long.
    """
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):  # an administrator may allow one kind only
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
