"""One TCP connection to one broker: requests go out in order, answers come back in order.

Rules of this file:
- Only this module touches sockets. It knows frames and correlation ids, not messages: a
  request is a function from a correlation id to parts, an answer is a frame.
- `submit` does not wait, so the order of calls is the order on the wire. At most
  `max.in.flight.requests.per.connection` are unanswered; the rest queue here, not yet sent.
- Every request has a deadline. One that was not sent yet just fails. One that was sent takes
  the connection with it, as in Kafka's own clients: whatever follows could only wait behind it.
- A caller that is cancelled leaves its place in the line; its answer is dropped when it comes.
  So the connection is usable or closed, never out of step.
- Errors say whether the request may have reached the broker (`sent`).
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Final, Protocol

from shoal.client.errors import (
    AuthenticationFailed,
    ClientClosed,
    ClientError,
    ConnectionLost,
    RequestTimedOut,
)
from shoal.wire.errors import WireError
from shoal.wire.framing import FrameDecoder, Part, frame

Encode = Callable[[int], Sequence[Part]]

_CORRELATION_ID: Final = Struct(">i")
_LAST_CORRELATION_ID: Final = (1 << 31) - 1
# The kernel takes at most this many parts at once (IOV_MAX on Linux and macOS).
_MOST_PARTS: Final = 1024
_RESET_ON_CLOSE: Final = Struct("ii").pack(1, 0)


class Detour(Protocol):
    """A bad network on purpose: what passes goes through it, and on when it says so, in order."""

    def outgoing(self, deliver: Callable[[], None], size_bytes: int) -> None: ...
    def incoming(self, deliver: Callable[[], None], size_bytes: int) -> None: ...


class Carrier(Protocol):
    """Someone who sends something along with requests, and gets something with the answers."""

    def outgoing(self, parts: Sequence[Part]) -> list[Part]: ...
    def incoming(self, answer: memoryview) -> None: ...


class _Call:
    """A request between `submit` and its answer."""

    __slots__ = (
        "correlation_id",
        "deadline_s",
        "encode",
        "expects_answer",
        "future",
        "name",
        "timeout_s",
    )

    def __init__(
        self, encode: Encode, name: str, *, timeout_s: float, expects_answer: bool
    ) -> None:
        self.encode = encode
        self.name = name
        self.expects_answer = expects_answer
        self.correlation_id = -1
        self.future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self.timeout_s = timeout_s
        self.deadline_s = self.future.get_loop().time() + timeout_s

    def succeed(self, answer: memoryview) -> None:
        if not self.future.done():
            self.future.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            # Whoever submitted it may have gone; that is not worth a complaint at exit.
            self.future.exception()


class Connection(asyncio.BufferedProtocol):
    """An open connection; made by `connect`."""

    def __init__(
        self, address: str, *, max_in_flight: int, limit_bytes: int, spares: int = 1
    ) -> None:
        self.address = address
        self.last_used = asyncio.get_running_loop().time()
        self.detour: Detour | None = None
        self.carrier: Carrier | None = None
        self._max_in_flight = max_in_flight
        self._decoder = FrameDecoder(limit_bytes, spares=spares)
        self._queue: deque[_Call] = deque()
        self._in_flight: deque[_Call] = deque()
        self._transport: asyncio.Transport | None = None
        # The same socket as the transport's: for `sendmsg`, which transports lack before 3.12.
        self._socket: socket.socket | None = None
        self._is_paused = False
        self._is_retired = False
        self._correlation_id = 0
        # For the earliest deadline that there was when it was set.
        self._timer: asyncio.TimerHandle | None = None
        self._lost: ClientError | None = None
        self._closed = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"{len(self._in_flight)} in flight"
        return f"Connection({self.address}, {state})"

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._lost is not None or self._is_retired

    @property
    def is_open(self) -> bool:
        """Whether there is still a socket."""
        return not self._closed.done()

    @property
    def unanswered(self) -> int:
        """Requests that wait for an answer or for their turn."""
        return len(self._queue) + len(self._in_flight)

    def is_to(self, host: str, port: int) -> bool:
        return self.address == address_of(host, port)

    def submit(
        self, encode: Encode, *, name: str, timeout_s: float, expects_answer: bool = True
    ) -> asyncio.Future[memoryview]:
        """Send a request in its turn. The future gets the answer's frame.

        Without an answer (acks=0) it gets an empty frame once the request has been sent.
        """
        call = _Call(encode, name, timeout_s=timeout_s, expects_answer=expects_answer)
        if self.is_closed:
            call.fail(_unsent(self._lost or ClientClosed(f"{self!r}"), call.name))
            return call.future
        self.last_used = call.deadline_s - timeout_s
        self._watch(call.deadline_s)
        self._queue.append(call)
        self._send_queued()
        return call.future

    async def request(self, encode: Encode, *, name: str, timeout_s: float) -> memoryview:
        """Send a request and wait for its answer."""
        return await self.submit(encode, name=name, timeout_s=timeout_s)

    def abort(self, reason: ClientError) -> None:
        """Close at once; what is unanswered fails."""
        if self._lost is None:
            self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Close at once with a TCP reset: the other end hears of it as if the way had broken."""
        if self._transport is not None:
            end = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.abort(ConnectionLost(f"the connection to {self.address} was reset", sent=True))

    def retire(self) -> None:
        """Take no more requests; close when those under way are answered."""
        self._is_retired = True
        self._close_if_done()

    async def close(self) -> None:
        """Close, and wait until the socket is gone."""
        self.abort(ClientClosed(f"the connection to {self.address} was closed by us"))
        if self._transport is not None:
            await asyncio.shield(self._closed)

    def hand_over(self, sock: socket.socket) -> None:
        """The plain socket under the transport, for writing without a copy."""
        self._socket = sock

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._decoder.received(nbytes)
        except WireError as error:
            self._break(f"sent what is no answer: {error}")
            return
        for answer in frames:
            if self.detour is None:
                self._take(answer)
            else:
                self.detour.incoming(partial(self._take, answer), len(answer))

    def eof_received(self) -> bool:
        if self.detour is not None:
            self.detour.incoming(self._on_eof, 0)
            return True
        self._on_eof()
        return False

    def _on_eof(self) -> None:
        if self._lost is None:
            how = "in the middle of an answer" if self._decoder.is_mid_frame else ""
            self._break(f"closed the connection {how}".rstrip())

    def connection_lost(self, exc: Exception | None) -> None:
        if self.detour is None:
            self._on_lost(exc)
        else:
            self.detour.incoming(partial(self._on_lost, exc), 0)
        self._socket = None
        if not self._closed.done():
            self._closed.set_result(None)

    def _on_lost(self, exc: Exception | None) -> None:
        if self._lost is None:
            why = f": {describe(exc)}" if exc is not None else ""
            self._end(ConnectionLost(f"{self.address} is gone{why}", sent=True))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._send_queued()

    # Sending

    def _send_queued(self) -> None:
        while (
            self._queue
            and not self._is_paused
            and len(self._in_flight) < self._max_in_flight
            and self._lost is None
        ):
            call = self._queue.popleft()
            if call.future.done():
                call.fail(ClientClosed("cancelled"))
                continue
            self._send(call)

    def _send(self, call: _Call) -> None:
        self._correlation_id = (
            0 if self._correlation_id == _LAST_CORRELATION_ID else self._correlation_id + 1
        )
        try:
            request = call.encode(self._correlation_id)
            parts = frame(request if self.carrier is None else self.carrier.outgoing(request))
        except Exception as error:  # noqa: BLE001 - the caller's function; its errors are theirs
            call.fail(error)
            return
        call.correlation_id = self._correlation_id
        if call.expects_answer:
            self._in_flight.append(call)
            self._put(parts)
            return
        self._put(parts)
        if self._lost is None:
            call.succeed(memoryview(b""))
        else:
            call.fail(ConnectionLost(f"{self.address} is gone", sent=True))

    def _put(self, parts: list[Part]) -> None:
        if self.detour is None:
            self._write(parts)
        else:
            self.detour.outgoing(partial(self._write_late, parts), sum(map(len, parts)))

    def _write_late(self, parts: list[Part]) -> None:
        # Held up until nobody is there any more, perhaps.
        if self._lost is None and not self._closed.done():
            self._write(parts)

    def _write(self, parts: list[Part]) -> None:
        transport = self._transport
        assert transport is not None  # noqa: S101 - for the type checker
        if self._socket is None:
            # TLS copies anyway.
            transport.writelines(parts)
            return
        try:
            # Bytes that wait in the transport must not be overtaken.
            can_send = not transport.get_write_buffer_size()
            sent = self._socket.sendmsg(parts[:_MOST_PARTS]) if can_send else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._break(f"cannot be written to: {describe(error)}")
            return
        for part in parts:
            size = len(part)
            if sent >= size:
                sent -= size
                continue
            transport.write(memoryview(part)[sent:] if sent else part)
            sent = 0

    # Receiving and ending

    def _take(self, answer: memoryview) -> None:
        if self._lost is not None:
            return
        if not self._in_flight:
            self._break("answers what nobody asked")
            return
        call = self._in_flight[0]
        if len(answer) < _CORRELATION_ID.size:
            self._break(f"sent an answer of {len(answer)} bytes")
            return
        correlation_id = _CORRELATION_ID.unpack_from(answer)[0]
        if correlation_id != call.correlation_id:
            self._break(f"answers {correlation_id} where {call.correlation_id} is due")
            return
        self._in_flight.popleft()
        if self.carrier is not None:
            self.carrier.incoming(answer)
        call.succeed(answer)
        self._send_queued()
        self._close_if_done()

    def _watch(self, deadline_s: float) -> None:
        """Be woken by then. One timer for all calls: nearly all are answered long before."""
        if self._timer is not None:
            if self._timer.when() <= deadline_s:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline_s, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for call in (*self._in_flight, *self._queue):
            if call.deadline_s <= now_s:
                self._timed_out(call)
        waiting = (*self._in_flight, *self._queue)
        if waiting:
            self._watch(min(call.deadline_s for call in waiting))

    def _timed_out(self, call: _Call) -> None:
        where = f"{self.address} did not answer {call.name} within {call.timeout_s:g} s"
        if call in self._in_flight:
            self._in_flight.remove(call)
            call.fail(RequestTimedOut(where, sent=True))
            self.abort(ConnectionLost(f"{where}, so the connection was closed", sent=True))
        elif call in self._queue:
            self._queue.remove(call)
            call.fail(RequestTimedOut(f"{where}: others before it are unanswered", sent=False))

    def _close_if_done(self) -> None:
        if self._is_retired and not self.unanswered:
            self.abort(ClientClosed(f"the connection to {self.address} was retired"))

    def _break(self, what: str) -> None:
        self.abort(ConnectionLost(f"{self.address} {what}", sent=True))

    def _end(self, reason: ClientError) -> None:
        self._lost = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        in_flight, queued = list(self._in_flight), list(self._queue)
        self._in_flight.clear()
        self._queue.clear()
        for call in in_flight:
            call.fail(_lost_with(reason, call.name))
        for call in queued:
            call.fail(_unsent(reason, call.name))


def _lost_with(reason: ClientError, name: str) -> ClientError:
    if isinstance(reason, ConnectionLost):
        return ConnectionLost(f"{reason} ({name} unanswered)", sent=True)
    # Closed by us; the request may have arrived all the same.
    return ConnectionLost(f"{reason}, with {name} unanswered", sent=True)


def _unsent(reason: ClientError, name: str) -> ClientError:
    return ConnectionLost(f"{reason} ({name} was not sent)", sent=False)


def describe(error: BaseException) -> str:
    """A sentence for a user, of an error of the system."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return f"name not found: {error.strerror}"
    if isinstance(error, OSError):
        said = os.strerror(error.errno).lower() if error.errno else str(error)
        return said or "the connection was closed"
    return str(error) or type(error).__name__


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def connect(
    host: str,
    port: int,
    *,
    max_in_flight: int,
    limit_bytes: int,
    tls: ssl.SSLContext | None = None,
    send_buffer_bytes: int = -1,
    receive_buffer_bytes: int = -1,
    spares: int = 1,
) -> Connection:
    """Open a connection; the caller bounds the time. TLS refusals are `AuthenticationFailed`."""
    loop = asyncio.get_running_loop()
    address = address_of(host, port)
    try:
        sock = await _connected_socket(host, port, (send_buffer_bytes, receive_buffer_bytes))
    except OSError as error:
        raise ConnectionLost(
            f"cannot connect to {address}: {describe(error)}", sent=False
        ) from error
    connection = Connection(
        address, max_in_flight=max_in_flight, limit_bytes=limit_bytes, spares=spares
    )
    try:
        await loop.create_connection(
            lambda: connection, sock=sock, ssl=tls, server_hostname=host if tls else None
        )
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise AuthenticationFailed(
            f"{address}: {describe(error)}",
            remedy="name the signing certificate in ssl.truststore.location (PEM)",
        ) from error
    except OSError as error:
        sock.close()
        remedy = "is the port one that speaks TLS?" if tls else None
        message = f"cannot connect to {address}: {describe(error)}"
        raise ConnectionLost(message, sent=False, remedy=remedy) from error
    except BaseException:
        sock.close()
        raise
    if tls is None:
        connection.hand_over(sock)
    return connection


async def _connected_socket(host: str, port: int, buffers: tuple[int, int]) -> socket.socket:
    """A connected socket to the first address of the host that accepts."""
    loop = asyncio.get_running_loop()
    try:
        # An address needs no resolver, and so no thread.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            _set_buffers(sock, buffers)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


def _set_buffers(sock: socket.socket, buffers: tuple[int, int]) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A peer that vanished without a word is noticed on idle connections too.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, size in zip((socket.SO_SNDBUF, socket.SO_RCVBUF), buffers, strict=True):
        if size >= 0:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, size)
