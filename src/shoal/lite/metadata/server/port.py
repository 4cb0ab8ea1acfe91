"""The port of a controller: frames in, answers out, in the order of the requests.

Unlike a broker's, a controller's requests of one connection are taken up at once, not one after
the other: most wait for the quorum to commit something, and all of those are committed together.

Whoever sends what is not understood is cut off, and so is one who does not read its answers.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence

from shoal.model.errors import SystemFailure
from shoal.wire.errors import WireError
from shoal.wire.framing import FrameDecoder, Part, frame

# A follower's fetch and an envelope are small; nobody sends a controller more.
_FRAME_LIMIT_BYTES = 16 * 1024 * 1024
_UNSENT_LIMIT_BYTES = 64 * 1024 * 1024
_MOST_UNANSWERED = 10_000
_BACKLOG = 256
_FAREWELL_TURNS = 10
_logger = logging.getLogger(__name__)

Answer = Sequence[Part]
Answering = Callable[[memoryview], "Answer | asyncio.Future[Answer]"]


class ControllerServer:
    """A listening port; `answer` says what a frame gets, or raises a `WireError`."""

    def __init__(self, answer: Answering) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._callers: set[_Caller] = set()
        self._socket: socket.socket | None = None
        self._is_closed = False

    def bind(self, host: str, port: int) -> int:
        """Take the port, any free one for 0; returns it."""
        listener = self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # A port is held for its node by the supervisor, which never listens on it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            listener.close()
            raise SystemFailure(
                f"cannot listen on {host}:{port}: {error.strerror}",
                remedy="end what listens there, or name another port",
            ) from error
        taken: int = listener.getsockname()[1]
        return taken

    async def start(self) -> None:
        """Serve, behind `bind`."""
        assert self._socket is not None  # noqa: S101 - for the type checker
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._called, sock=self._socket, backlog=_BACKLOG)

    def _called(self) -> "_Caller":
        caller = _Caller(self._answer, self._callers.discard)
        self._callers.add(caller)
        if self._is_closed:
            caller.abort()
        return caller

    async def close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        for caller in list(self._callers):
            caller.abort()
        # Who is being let in at this moment is shown out before the loop may end.
        for _ in range(_FAREWELL_TURNS):
            if self._callers:
                await asyncio.sleep(0)


class _Caller(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, answer: Answering, on_gone: "Callable[[_Caller], None]") -> None:
        self._answer = answer
        self._on_gone = on_gone
        self._decoder = FrameDecoder(_FRAME_LIMIT_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_unwanted = False
        # Answers that are not sent, in the order of their requests.
        self._waiting: deque[Answer | asyncio.Future[Answer]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport
        if self._is_unwanted:
            transport.abort()
            return
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for request in self._decoder.received(nbytes):
                self._take_up(request)
        except WireError as error:
            _logger.info("a connection was closed: %s", error)
            self.abort()
        self._send()

    def _take_up(self, request: memoryview) -> None:
        answer = self._answer(request)
        self._waiting.append(answer)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(self._send)
        if len(self._waiting) > _MOST_UNANSWERED:
            self.abort()

    def _send(self, _: object = None) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        while self._waiting:
            answer = self._waiting[0]
            if isinstance(answer, asyncio.Future):
                if not answer.done():
                    return
                if answer.cancelled():
                    # Nobody will answer this any more.
                    self.abort()
                    return
                answer = answer.result()
            self._waiting.popleft()
            transport.writelines(frame(answer))
        if transport.get_write_buffer_size() > _UNSENT_LIMIT_BYTES:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for answer in self._waiting:
            if isinstance(answer, asyncio.Future):
                answer.remove_done_callback(self._send)
                answer.cancel()
        self._waiting.clear()
        self._on_gone(self)

    def abort(self) -> None:
        # The port may be closed between the call and the connection.
        self._is_unwanted = True
        if self._transport is not None:
            self._transport.abort()
