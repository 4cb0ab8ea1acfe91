"""One client's connection: frames in, answers out, in the order of the requests.

Rules of this file:
- One request at a time: the next is taken up when the answer to the last is on its way, as
  Apache Kafka does. So answers cannot overtake each other, and a request sees the effects of
  those before it.
- What a client may cost is limited: frames by their size, requests that wait by their bytes,
  answers by not taking up the next request while the client does not read the last.
- Whatever a client does wrong ends its connection and nothing else.
"""

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from shoal.lite.api.registry import Answer, HangUp
from shoal.wire.errors import WireError
from shoal.wire.framing import FrameDecoder, Part, frame

# Requests that have arrived and wait; above this much no more is read from the socket.
_WAITING_LIMIT_BYTES = 16 * 1024 * 1024
# Answers that the client has not read; above this much no request is taken up.
_UNREAD_LIMIT_BYTES = 1024 * 1024
# Parts below this size are put together, so as not to send each in a packet of its own.
_SMALL_BYTES = 64 * 1024

_logger = logging.getLogger(__name__)

Answering = Callable[[memoryview], Answer | Awaitable[Answer]]


class Host(Protocol):
    """What a connection needs of its broker."""

    frame_limit_bytes: int

    def answer(self, request: memoryview) -> Answer | Awaitable[Answer]: ...
    def welcome(self, connection: "Connection") -> bool: ...
    def goodbye(self, connection: "Connection") -> None: ...


class Connection(asyncio.BufferedProtocol):
    """The broker's end of a connection."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._decoder = FrameDecoder(host.frame_limit_bytes)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._current: asyncio.Future[Answer] | None = None
        self._may_write = True
        self._may_read = True
        self.peer = "?"

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport
        self.peer = str(transport.get_extra_info("peername"))
        transport.set_write_buffer_limits(high=_UNREAD_LIMIT_BYTES)
        if not self._host.welcome(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        if self._current is not None:
            self._current.cancel()
        self._host.goodbye(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._decoder.received(nbytes)
        except WireError as error:
            self._hang_up(error)
            return
        for request in frames:
            self._waiting.append(request)
            self._waiting_bytes += len(request)
        if frames:
            self._take_up()

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._take_up()

    # One request after the other

    def close(self) -> None:
        """End the connection, with what was answered already."""
        if self._transport is not None:
            self._transport.close()

    def _take_up(self) -> None:
        """Answer what waits, until one answer takes time or the client does not read."""
        while self._waiting and self._current is None and self._may_write:
            if self._transport is None or self._transport.is_closing():
                return
            request = self._waiting.popleft()
            self._waiting_bytes -= len(request)
            try:
                answer = self._host.answer(request)
            except Exception as error:  # noqa: BLE001 - a bug must not cost the broker
                self._hang_up(error)
                return
            if isinstance(answer, Awaitable):
                self._current = asyncio.ensure_future(answer)
                self._current.add_done_callback(self._on_answer)
            elif answer is not None:
                self._send(answer)
        self._control_reading()

    def _on_answer(self, future: "asyncio.Future[Answer]") -> None:
        self._current = None
        if future.cancelled() or self._transport is None:
            return
        error = future.exception()
        if error is not None:
            self._hang_up(error)
            return
        answer = future.result()
        if answer is not None:
            self._send(answer)
        self._take_up()

    def _send(self, answer: list[Part]) -> None:
        transport = self._transport
        if transport is None:
            return
        parts = frame(answer)
        if sys.version_info >= (3, 12):
            transport.writelines(parts)
        else:
            # Before 3.12 `writelines` copies all parts into one.
            for part in _joined(parts):
                transport.write(part)

    def _control_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        may_read = self._waiting_bytes < _WAITING_LIMIT_BYTES
        if may_read != self._may_read:
            self._may_read = may_read
            if may_read:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _hang_up(self, error: BaseException) -> None:
        if isinstance(error, HangUp | WireError):
            _logger.info("%s: connection closed: %s", self.peer, error)
        else:
            _logger.error("%s: connection closed by a fault of ours", self.peer, exc_info=error)
        self._waiting.clear()
        self.close()


def _joined(parts: list[Part]) -> list[Part]:
    """The same bytes in fewer parts; large parts are left as they are."""
    joined: list[Part] = []
    small: list[Part] = []
    for part in parts:
        if len(part) < _SMALL_BYTES:
            small.append(part)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(part)
    if small:
        joined.append(b"".join(small))
    return joined
