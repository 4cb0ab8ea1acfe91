"""One client's connection: receives frames and sends answers in the order of the requests.

Rules of this file:
- One request at a time: the next request starts when the answer to the previous one is queued for
  sending, as in Apache Kafka. So answers keep their order, and a request sees the effects of
  earlier ones. The only exception: a Produce request starts while earlier ones are written and
  wait for followers. All are written in their order, and followers fetch many at once.
  An answer that is held only because it has no data yet is sent when another request arrives.
- The cost of a client is limited: frames by their size, waiting requests by their bytes, and
  answers by not starting the next request while the client does not read.
- An error of a client closes its connection and has no other effect.

The code uses the socket directly instead of an asyncio transport, so that records go from the file
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
from shoal.lite.broker.registry import Answer, CloseConnection, PendingAck
from shoal.lite.storage.slices import LogSlice
from shoal.runtime.tasks import run_awaited
from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import WireError
from shoal.wire.framing import LENGTH_SIZE, FrameDecoder, Part, frame_length

# Above this many bytes of waiting requests, the connection stops reading from the socket.
_WAITING_LIMIT_BYTES = 16 * 1024 * 1024
# Above this many bytes of unsent answers, the connection starts no request.
_UNSENT_LIMIT_BYTES = 1024 * 1024
# Consecutive reads before other connections are served.
_READS_AT_ONCE = 8
# Parts of one sendmsg; the kernel accepts 1024 at most.
_PARTS_AT_ONCE = 256
# The first bytes of a Produce request.
_PRODUCE_KEY = ApiKey.PRODUCE.to_bytes(2, "big")
# Linux: more data follows immediately; do not send a packet for this part alone.
_MORE = getattr(socket, "MSG_MORE", 0)

_LOOPBACK = ("127.0.0.1", "::1")
_logger = logging.getLogger(__name__)


class ConnectionHost(Protocol):
    """The part of a broker that a connection uses."""

    frame_limit_bytes: int

    def answer(self, request: memoryview, client_host: str) -> Answer | Awaitable[Answer]: ...
    def on_connection_closed(self, connection: "ClientConnection") -> None: ...


class ClientConnection:
    """The broker's end of a connection; runs until it calls `on_connection_closed`."""

    def __init__(
        self, host: ConnectionHost, client: socket.socket, address: tuple[str, int]
    ) -> None:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address[0] in _LOOPBACK:
            _disable_pacing(client)
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
        # Started requests without an answer, in order, with the sizes of their frames.
        self._in_flight: deque[tuple[asyncio.Future[Answer], int]] = deque()
        # Whether all of them are written and wait for followers only, so that a Produce may start.
        self._can_pipeline_produce = False
        self._unsent: deque[Part | LogSlice] = deque()
        self._unsent_bytes = 0
        self._is_reading = True
        self._is_writing = False
        self._is_ending = False
        self._is_closed = False
        self._loop.add_reader(client, self._on_readable)

    def close(self) -> None:
        """Close the connection after sending the answers that are ready."""
        if self._is_closed or self._is_ending:
            return
        self._is_ending = True
        self._waiting.clear()
        self._control_reading()
        if self._send_unsent():
            self._end()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._end()

    @property
    def is_awaiting_broker(self) -> bool:
        """Whether the client waits for an answer of the broker."""
        return bool(self._in_flight) and not self._unsent

    @property
    def held_bytes(self) -> int:
        """The memory that its requests use."""
        return self._waiting_bytes + self._decoder.held_bytes

    def release_memory(self) -> None:
        """Release memory that is not in use."""
        self._decoder.release_spares()

    # Receiving

    def _on_readable(self) -> None:
        # A read that fills its buffer is usually followed by the rest of a large frame.
        for _ in range(_READS_AT_ONCE):
            if not self._receive() or not self._is_reading:
                return

    def _receive(self) -> bool:
        """Receive available bytes; return whether they filled the buffer."""
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
            frames = self._decoder.feed(count)
        except WireError as error:
            self._close_on_error(error)
            return False
        if frames:
            for request in frames:
                self._waiting.append(request)
                self._waiting_bytes += len(request)
            self._process_requests()
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

    # Handling requests

    def _process_requests(self) -> None:
        """Handle waiting requests and send their answers together, until either would block."""
        while True:
            self._start_requests()
            if not self._send_unsent() or self._in_flight or not self._waiting:
                break
        self._control_reading()

    def _start_requests(self) -> None:
        """Start waiting requests until an answer is not ready or the client does not read."""
        waiting, in_flight = self._waiting, self._in_flight
        while waiting and self._unsent_bytes < _UNSENT_LIMIT_BYTES:
            request = waiting[0]
            if in_flight and not (self._can_pipeline_produce and request[:2] == _PRODUCE_KEY):
                if isinstance(held := in_flight[0][0], HeldAnswer):
                    held.release()
                return
            waiting.popleft()
            answer = self._answer(request)
            if not in_flight and (answer is None or isinstance(answer, list)):
                self._waiting_bytes -= len(request)
                if answer is not None:
                    self._add(answer)
            else:
                # Its bytes count until it is answered, because its frame stays in memory.
                future = self._as_future(answer)
                self._can_pipeline_produce = isinstance(future, PendingAck)
                in_flight.append((future, len(request)))
                future.add_done_callback(self._on_answer)

    def _answer(self, request: memoryview) -> Answer | Awaitable[Answer]:
        try:
            return self._host.answer(request, self._client_host)
        except Exception as error:  # noqa: BLE001 - a bug must not cost the broker
            # Earlier requests are still answered; later ones are not started.
            failed: asyncio.Future[Answer] = self._loop.create_future()
            failed.set_exception(error)
            return failed

    def _as_future(self, answer: Answer | Awaitable[Answer]) -> "asyncio.Future[Answer]":
        if answer is None or isinstance(answer, list):
            future = PendingAck(loop=self._loop)
            future.set_result(answer)
            return future
        if isinstance(answer, asyncio.Future):
            return answer
        return run_awaited("answer", cast("Coroutine[Any, Any, Answer]", answer))

    def _on_answer(self, _: "asyncio.Future[Answer]") -> None:
        in_flight = self._in_flight
        while in_flight and in_flight[0][0].done() and not self._is_closed:
            future, size_bytes = in_flight.popleft()
            self._waiting_bytes -= size_bytes
            error = None if future.cancelled() else future.exception()
            if error is not None or future.cancelled():
                self._close_on_error(error or CloseConnection("an answer was cancelled"))
                return
            answer = future.result()
            if answer is not None:
                self._add(answer)
        if not self._is_closed:
            self._process_requests()

    def _close_on_error(self, error: BaseException) -> None:
        if isinstance(error, CloseConnection | WireError):
            _logger.info("closed a connection: %s", error)
        else:
            _logger.error("closed a connection because of an internal error", exc_info=error)
        self.close()

    # Sending

    def _add(self, answer: Sequence[Part | LogSlice]) -> None:
        size = sum(map(len, answer))
        self._unsent.append(frame_length(size))
        self._unsent.extend(answer)
        self._unsent_bytes += LENGTH_SIZE + size

    def _send_unsent(self) -> bool:
        """Send until the socket blocks; return whether all is sent. The rest is sent later."""
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
        if not self._send_unsent() or self._is_closed:
            return
        self._is_writing = False
        self._loop.remove_writer(self._socket)
        if self._is_ending:
            self._end()
        else:
            self._process_requests()

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
        for future, _ in self._in_flight:
            future.cancel()
        self._in_flight.clear()
        self._host.on_connection_closed(self)


def _disable_pacing(client: socket.socket) -> None:
    """Send as fast as the client reads: a connection within one machine has no congestion.

    Where Linux uses BBR by default, it paces packets with a timer for every few of them. That
    costs more than a third of the CPU time of reads and doubles their duration.
    """
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):  # the system may not allow this algorithm
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
