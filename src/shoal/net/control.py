"""The control channel on sockets: asyncio shells around `shoal.net.channel`.

Rules:
- The server listens on 127.0.0.1 by default. It drops a peer that breaks a rule: too many
  connections, a late hello, a wrong token, a line that is too long, a slow reader.
- The server's callbacks run in its event loop and must not block.
- The client reconnects whenever it loses its connection, until the driver refuses it or has been
  silent for too long. Then it raises nothing on its own: its owner reads `ended_by` and awaits
  `wait_end()`.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from typing import Final

from shoal.net.channel import (
    DRIVER_LOST_AFTER_S,
    UNAUTHENTICATED_LIMIT_S,
    DriverChannel,
    DriverLost,
    WorkerChannel,
    WorkerEvent,
)
from shoal.net.control_port import ControlError, Json
from shoal.net.messages import (
    Ack,
    DriverMessage,
    Hello,
    LeaseRefused,
    WorkerMessage,
    encode_message,
)
from shoal.runtime.tasks import keep_running

CONNECTIONS_LIMIT: Final = 1024
UNSENT_LIMIT_BYTES: Final = 8 << 20
RECONNECT_S: Final = 0.25
TICK_S: Final = 0.25

_log = logging.getLogger(__name__)


def clock_us() -> int:
    """The wall clock of this machine, in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


class ControlServer:
    """The driver's side. Calls `on_message(connection, message)` and `on_closed(connection)`.

    The first message of a connection is always a `Hello` with the right token.
    """

    def __init__(
        self,
        token: str,
        *,
        on_message: Callable[[int, WorkerMessage], None],
        on_closed: Callable[[int], None],
    ) -> None:
        self.token = token
        self.on_message = on_message
        self.on_closed = on_closed
        self.address = ("", 0)
        self._connections: dict[int, _ServerConnection] = {}
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _ServerConnection(self, next(self._numbers)), host, port
        )
        self.address = self._server.sockets[0].getsockname()[:2]

    def send(self, connection: int, message: DriverMessage) -> None:
        """Send a message; no effect on a closed connection, which `on_closed` reports."""
        if connection in self._connections:
            self._connections[connection].send(message)

    def close(self, connection: int) -> None:
        """Close the connection after everything sent on it has left."""
        if connection in self._connections:
            self._connections[connection].close()

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections.values()):
            connection.close()
        if self._connections:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), 1)
        for connection in list(self._connections.values()):
            connection.abort()
        await self._server.wait_closed()
        self._server = None

    def admit(self, connection: "_ServerConnection") -> bool:
        if len(self._connections) >= CONNECTIONS_LIMIT:
            return False
        self._connections[connection.number] = connection
        return True

    def forget(self, connection: "_ServerConnection") -> None:
        if self._connections.pop(connection.number, None) and connection.authenticated:
            self.on_closed(connection.number)
        if not self._connections:
            self._empty.set()


class _ServerConnection(asyncio.Protocol):
    def __init__(self, server: ControlServer, number: int) -> None:
        self.number = number
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._channel = DriverChannel(server.token, now=self._loop.time())
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def authenticated(self) -> bool:
        return self._channel.hello is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio's promise
        self._transport = transport
        if not self._server.admit(self):
            transport.abort()
            return
        self._deadline = self._loop.call_later(UNAUTHENTICATED_LIMIT_S + 0.1, self._check_hello)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._channel.receive(data)
        except ControlError as error:
            _log.warning("control connection %d dropped: %s", self.number, error)
            self.abort()
            return
        for message in messages:
            self._server.on_message(self.number, message)

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._server.forget(self)

    def send(self, message: DriverMessage) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(encode_message(message))
        if self._transport.get_write_buffer_size() > UNSENT_LIMIT_BYTES:
            _log.warning(
                "control connection %d dropped: the worker does not read its messages", self.number
            )
            self.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _check_hello(self) -> None:
        if self._channel.is_overdue(self._loop.time()):
            _log.warning("control connection %d dropped: no hello in time", self.number)
            self.abort()


class DriverGoneError(ControlError):
    """The driver refused this worker or was silent for too long: no further commit is durable."""


class ControlClient:
    """The worker's side. Events other than acknowledgements go to `on_event`."""

    def __init__(
        self,
        address: tuple[str, int],
        hello: Hello,
        *,
        on_event: Callable[[WorkerEvent], None],
        lost_after_s: float = DRIVER_LOST_AFTER_S,
    ) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._channel = WorkerChannel(hello, now=self._loop.time(), lost_after_s=lost_after_s)
        self._on_event = on_event
        self._acks: dict[int, asyncio.Future[None]] = {}
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._next_connect_s = 0.0
        self._ticking: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._is_disconnected = asyncio.Event()
        # Why the channel ended: the driver refused this worker, or was silent for too long.
        self.ended_by: LeaseRefused | DriverLost | None = None
        # Monotonic; read by another thread to see whether this loop still hears from the driver.
        self.heard_at = time.monotonic()

    def start(self) -> None:
        self._ticking = keep_running("driver watch", self._tick)
        self._reconnect()

    async def commit(self, line: Json) -> None:
        """Return when the line is durable; raise `DriverGoneError` if it never will be."""
        if self.ended_by is not None:
            raise self._driver_gone_error()
        number, data = self._channel.commit(line)
        acknowledged = self._loop.create_future()
        self._acks[number] = acknowledged
        self._write(data)
        await acknowledged

    def progress(self, values: Json) -> None:
        self._write(self._channel.progress(values))

    async def wait_end(self) -> None:
        await self._ended.wait()

    async def close(self) -> None:
        for task in (self._connecting, self._ticking):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._transport is not None:
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_disconnected.wait(), 1)
        if self._transport is not None:
            self._transport.abort()
        self._fail_commits()

    def on_connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_disconnected.clear()
        self._write(self._channel.connection_made())

    def on_disconnected(self) -> None:
        self._transport = None
        self._is_disconnected.set()
        self._channel.connection_lost()
        if self.ended_by is None and self._ticking is not None and not self._ticking.done():
            self._reconnect()

    def on_data(self, data: bytes) -> None:
        self.heard_at = time.monotonic()
        now = self._loop.time()
        try:
            events, answers = self._channel.receive(data, now=now, clock_us=clock_us())
        except ControlError:
            _log.exception("dropped the connection to the driver: it broke the protocol")
            if self._transport is not None:
                self._transport.abort()
            return
        self._write(answers)
        for event in events:
            self._dispatch(event)

    def _dispatch(self, event: WorkerEvent) -> None:
        match event:
            case Ack(number):
                acknowledged = self._acks.pop(number)
                if not acknowledged.done():
                    acknowledged.set_result(None)
            case LeaseRefused() | DriverLost():
                self._end(event)
            case _:
                self._on_event(event)

    def _end(self, by: LeaseRefused | DriverLost) -> None:
        if self.ended_by is not None:
            return
        self.ended_by = by
        self._ended.set()
        if self._transport is not None:
            self._transport.close()
        self._fail_commits()
        self._on_event(by)

    def _fail_commits(self) -> None:
        waiting, self._acks = self._acks, {}
        for acknowledged in waiting.values():
            if not acknowledged.done():
                acknowledged.set_exception(self._driver_gone_error())

    def _driver_gone_error(self) -> DriverGoneError:
        match self.ended_by:
            case LeaseRefused(reason):
                return DriverGoneError(f"the driver refused this worker: {reason}")
            case DriverLost(silent_s):
                return DriverGoneError(f"the driver was silent for {silent_s:.1f} s")
            case _:
                return DriverGoneError("the channel to the driver is closed")

    def _reconnect(self) -> None:
        if self._connecting is None or self._connecting.done():
            self._connecting = keep_running("driver connection", self._connect)

    async def _connect(self) -> None:
        while self.ended_by is None and self._transport is None:
            # The first attempt is immediate, the others are paced, so that a driver that drops
            # this worker is not flooded with connections.
            await asyncio.sleep(max(0.0, self._next_connect_s - self._loop.time()))
            self._next_connect_s = self._loop.time() + RECONNECT_S
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(2):
                    await self._loop.create_connection(self._protocol, *self._address)

    def _protocol(self) -> "_ClientProtocol":
        return _ClientProtocol(self)

    async def _tick(self) -> None:
        while self.ended_by is None:
            if lost := self._channel.tick(self._loop.time()):
                self._dispatch(lost)
            await asyncio.sleep(TICK_S)

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)


class _ClientProtocol(asyncio.Protocol):
    def __init__(self, client: ControlClient) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio's promise
        self._client.on_connected(transport)

    def data_received(self, data: bytes) -> None:
        self._client.on_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.on_disconnected()
