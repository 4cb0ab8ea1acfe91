"""The port of a controller: frames in, answers out, in the order of the requests.

Unlike a broker, a controller handles all requests of one connection at once, not one after the
other: most wait for the quorum to commit something, and all of those are committed together.

A connection is closed if its client sends invalid data, or does not read its answers.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence

from shoal.lite.metadata.data.rpc import Reply
from shoal.net.ports import bind_port
from shoal.runtime.tasks import record_failure
from shoal.wire.errors import WireError
from shoal.wire.framing import FrameDecoder, Part, frame

# Fetches of followers and Envelope requests are small.
_FRAME_LIMIT_BYTES = 16 * 1024 * 1024
_UNSENT_LIMIT_BYTES = 64 * 1024 * 1024
_MAX_IN_FLIGHT = 10_000
_BACKLOG = 256
_CLOSE_ROUNDS = 10
_logger = logging.getLogger(__name__)

Answer = Sequence[Part]
AnswerFunction = Callable[[memoryview], "Answer | asyncio.Future[Answer]"]


def answer_when_replied(
    submit: Callable[[Callable[[Reply], None]], None], encode: Callable[[Reply], Answer]
) -> "asyncio.Future[Answer]":
    """Return the encoded reply, which `submit` gives to its function now or later."""
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def on_reply(reply: Reply) -> None:
        if answer.done():
            return
        try:
            answer.set_result(encode(reply))
        except Exception as error:  # noqa: BLE001 - the node, which calls this, has done its part
            record_failure("answer of a controller", error, "its connection is closed")
            answer.cancel()

    submit(on_reply)
    return answer


class ControllerServer:
    """A listening port; `answer` returns the answer to a frame, or raises a `WireError`."""

    def __init__(self, answer: AnswerFunction) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._connections: set[_ControllerConnection] = set()
        self._socket: socket.socket | None = None
        self._is_closed = False

    def bind(self, host: str, port: int) -> int:
        """Bind the port, or any free one for 0; returns it."""
        self._socket = bind_port(
            host, port, remedy="stop the process that uses the port, or choose another port"
        )
        bound_port: int = self._socket.getsockname()[1]
        return bound_port

    async def start(self) -> None:
        """Serve, after `bind`."""
        assert self._socket is not None  # noqa: S101 - for the type checker
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._create_connection, sock=self._socket, backlog=_BACKLOG
        )

    def _create_connection(self) -> "_ControllerConnection":
        connection = _ControllerConnection(self._answer, self._connections.discard)
        self._connections.add(connection)
        if self._is_closed:
            connection.abort()
        return connection

    async def close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        for connection in list(self._connections):
            connection.abort()
        # Connections that are being accepted right now are aborted before the loop may end.
        for _ in range(_CLOSE_ROUNDS):
            if self._connections:
                await asyncio.sleep(0)


class _ControllerConnection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(
        self, answer: AnswerFunction, on_unavailable: "Callable[[_ControllerConnection], None]"
    ) -> None:
        self._answer = answer
        self._on_closed = on_unavailable
        self._decoder = FrameDecoder(_FRAME_LIMIT_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_aborted = False
        # Unsent answers, in the order of their requests.
        self._waiting: deque[Answer | asyncio.Future[Answer]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport
        if self._is_aborted:
            transport.abort()
            return
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for request in self._decoder.feed(nbytes):
                self._handle_request(request)
        except WireError as error:
            _logger.info("closed a connection that sent invalid data: %s", error)
            self.abort()
        self._send()

    def _handle_request(self, request: memoryview) -> None:
        answer = self._answer(request)
        self._waiting.append(answer)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(self._send)
        if len(self._waiting) > _MAX_IN_FLIGHT:
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
                    # The request was replaced by a newer one, or its answer is not encodable.
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
        self._on_closed(self)

    def abort(self) -> None:
        # The port may be closed before `connection_made` is called.
        self._is_aborted = True
        if self._transport is not None:
            self._transport.abort()
