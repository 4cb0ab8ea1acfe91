"""One TCP connection to one broker: requests are sent and answered in order.

Rules of this file:
- Only this module uses sockets. It handles frames and correlation ids, not messages: a request
  is a function from a correlation id to parts, a response is a frame.
- `submit` does not wait, so the order of calls is the order on the wire. At most
  `max.in.flight.requests.per.connection` are unanswered; the others are queued here, not sent.
- Every request has a deadline. A request that is not sent yet just fails. If it was sent, the
  connection is closed, as in Kafka's clients: later requests could only wait behind it.
- If a caller is cancelled, its response is dropped when it arrives. So responses always match
  requests, or the connection is closed.
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


class TransportHook(Protocol):
    """Injected network faults: delays frames and delivers them later, in order."""

    def outgoing(self, deliver: Callable[[], None], size_bytes: int) -> None: ...
    def incoming(self, deliver: Callable[[], None], size_bytes: int) -> None: ...


class FrameHook(Protocol):
    """Adds data to outgoing requests and reads data from responses, for tracing."""

    def outgoing(self, parts: Sequence[Part]) -> list[Part]: ...
    def incoming(self, answer: memoryview) -> None: ...


class _PendingRequest:
    """A request between `submit` and its response."""

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

    def set_answer(self, answer: memoryview) -> None:
        if not self.future.done():
            self.future.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            # Mark the error as retrieved: the caller may no longer wait, which is not a problem.
            self.future.exception()


class Connection(asyncio.BufferedProtocol):
    """An open connection; created by `connect`."""

    def __init__(
        self, address: str, *, max_in_flight: int, limit_bytes: int, spares: int = 1
    ) -> None:
        self.address = address
        self.last_used = asyncio.get_running_loop().time()
        self.transport_hook: TransportHook | None = None
        self.frame_hook: FrameHook | None = None
        self._max_in_flight = max_in_flight
        self._decoder = FrameDecoder(limit_bytes, spares=spares)
        self._queue: deque[_PendingRequest] = deque()
        self._in_flight: deque[_PendingRequest] = deque()
        self._transport: asyncio.Transport | None = None
        # The socket of the transport: for `sendmsg`, which transports lack before Python 3.12.
        self._socket: socket.socket | None = None
        self._is_paused = False
        self._is_retired = False
        self._correlation_id = 0
        # Due at the earliest deadline at the time it was set.
        self._timer: asyncio.TimerHandle | None = None
        self._lost: ClientError | None = None
        self._closed = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"{len(self._in_flight)} in flight"
        return f"Connection({self.address}, {state})"

    @property
    def is_closed(self) -> bool:
        """Whether it refuses new requests."""
        return self._lost is not None or self._is_retired

    @property
    def is_open(self) -> bool:
        """Whether the socket is not closed yet."""
        return not self._closed.done()

    @property
    def unanswered(self) -> int:
        """Requests that are queued or wait for a response."""
        return len(self._queue) + len(self._in_flight)

    def is_to(self, host: str, port: int) -> bool:
        return self.address == address_of(host, port)

    def submit(
        self, encode: Encode, *, name: str, timeout_s: float, expects_answer: bool = True
    ) -> asyncio.Future[memoryview]:
        """Queue a request and send it when possible. The future gets the frame of the response.

        Without a response (acks=0) it gets an empty frame once the request has been sent.
        """
        call = _PendingRequest(encode, name, timeout_s=timeout_s, expects_answer=expects_answer)
        if self.is_closed:
            call.fail(_unsent_error(self._lost or ClientClosed(f"{self!r}"), call.name))
            return call.future
        self.last_used = call.deadline_s - timeout_s
        self._watch(call.deadline_s)
        self._queue.append(call)
        self._send_queued()
        return call.future

    async def request(self, encode: Encode, *, name: str, timeout_s: float) -> memoryview:
        """Send a request and wait for its response."""
        return await self.submit(encode, name=name, timeout_s=timeout_s)

    def abort(self, reason: ClientError) -> None:
        """Close at once; unanswered requests fail."""
        if self._lost is None:
            self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Close at once with a TCP reset, as if the network had failed."""
        if self._transport is not None:
            end = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.abort(ConnectionLost(f"the connection to {self.address} was reset", sent=True))

    def retire(self) -> None:
        """Refuse new requests; close when those in flight are answered."""
        self._is_retired = True
        self._close_if_done()

    async def close(self) -> None:
        """Close, and wait until the socket is closed."""
        self.abort(ClientClosed(f"this client closed the connection to {self.address}"))
        if self._transport is not None:
            await asyncio.shield(self._closed)

    def set_socket(self, sock: socket.socket) -> None:
        """Set the plain socket of the transport, for writing without a copy."""
        self._socket = sock

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._decoder.feed(nbytes)
        except WireError as error:
            self._fail_connection(f"sent an invalid response: {error}")
            return
        for answer in frames:
            if self.transport_hook is None:
                self._on_answer(answer)
            else:
                self.transport_hook.incoming(partial(self._on_answer, answer), len(answer))

    def eof_received(self) -> bool:
        if self.transport_hook is not None:
            self.transport_hook.incoming(self._on_eof, 0)
            return True
        self._on_eof()
        return False

    def _on_eof(self) -> None:
        if self._lost is None:
            how = "in the middle of a response" if self._decoder.is_mid_frame else ""
            self._fail_connection(f"closed the connection {how}".rstrip())

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport_hook is None:
            self._on_lost(exc)
        else:
            self.transport_hook.incoming(partial(self._on_lost, exc), 0)
        self._socket = None
        if not self._closed.done():
            self._closed.set_result(None)

    def _on_lost(self, exc: Exception | None) -> None:
        if self._lost is None:
            why = f": {describe(exc)}" if exc is not None else ""
            self._end(ConnectionLost(f"{self.address} closed the connection{why}", sent=True))

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

    def _send(self, call: _PendingRequest) -> None:
        self._correlation_id = (
            0 if self._correlation_id == _LAST_CORRELATION_ID else self._correlation_id + 1
        )
        try:
            request = call.encode(self._correlation_id)
            parts = frame(request if self.frame_hook is None else self.frame_hook.outgoing(request))
        except Exception as error:  # noqa: BLE001 - the caller's function; the caller gets its errors
            call.fail(error)
            return
        call.correlation_id = self._correlation_id
        if call.expects_answer:
            self._in_flight.append(call)
            self._transmit(parts)
            return
        self._transmit(parts)
        if self._lost is None:
            call.set_answer(memoryview(b""))
        else:
            call.fail(ConnectionLost(f"{self.address} closed the connection", sent=True))

    def _transmit(self, parts: list[Part]) -> None:
        if self.transport_hook is None:
            self._write(parts)
        else:
            self.transport_hook.outgoing(partial(self._write_delayed, parts), sum(map(len, parts)))

    def _write_delayed(self, parts: list[Part]) -> None:
        # The connection may have been closed while the frame was delayed.
        if self._lost is None and not self._closed.done():
            self._write(parts)

    def _write(self, parts: list[Part]) -> None:
        transport = self._transport
        assert transport is not None  # noqa: S101 - for the type checker
        if self._socket is None:
            # TLS copies the bytes anyway.
            transport.writelines(parts)
            return
        try:
            # Bytes that are buffered in the transport must be sent first.
            can_send = not transport.get_write_buffer_size()
            sent = self._socket.sendmsg(parts[:_MOST_PARTS]) if can_send else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._fail_connection(f"cannot be written to: {describe(error)}")
            return
        for part in parts:
            size = len(part)
            if sent >= size:
                sent -= size
                continue
            transport.write(memoryview(part)[sent:] if sent else part)
            sent = 0

    # Receiving and ending

    def _on_answer(self, answer: memoryview) -> None:
        if self._lost is not None:
            return
        if not self._in_flight:
            self._fail_connection("sent a response without a request")
            return
        call = self._in_flight[0]
        if len(answer) < _CORRELATION_ID.size:
            self._fail_connection(f"sent a response of {len(answer)} bytes")
            return
        correlation_id = _CORRELATION_ID.unpack_from(answer)[0]
        if correlation_id != call.correlation_id:
            self._fail_connection(
                f"sent a response with correlation id {correlation_id} instead of"
                f" {call.correlation_id}"
            )
            return
        self._in_flight.popleft()
        if self.frame_hook is not None:
            self.frame_hook.incoming(answer)
        call.set_answer(answer)
        self._send_queued()
        self._close_if_done()

    def _watch(self, deadline_s: float) -> None:
        """Set the timer. One timer for all requests: nearly all are answered long before."""
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
                self._fail_timed_out(call)
        waiting = (*self._in_flight, *self._queue)
        if waiting:
            self._watch(min(call.deadline_s for call in waiting))

    def _fail_timed_out(self, call: _PendingRequest) -> None:
        where = f"{self.address} did not answer {call.name} within {call.timeout_s:g} s"
        if call in self._in_flight:
            self._in_flight.remove(call)
            call.fail(RequestTimedOut(where, sent=True))
            self.abort(ConnectionLost(f"{where}, so the connection was closed", sent=True))
        elif call in self._queue:
            self._queue.remove(call)
            call.fail(
                RequestTimedOut(f"{where}: the requests before it are unanswered", sent=False)
            )

    def _close_if_done(self) -> None:
        if self._is_retired and not self.unanswered:
            self.abort(ClientClosed(f"the connection to {self.address} was retired"))

    def _fail_connection(self, what: str) -> None:
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
            call.fail(_error_for_unanswered(reason, call.name))
        for call in queued:
            call.fail(_unsent_error(reason, call.name))


def _error_for_unanswered(reason: ClientError, name: str) -> ClientError:
    if isinstance(reason, ConnectionLost):
        return ConnectionLost(f"{reason} ({name} unanswered)", sent=True)
    # Closed by this client; the request may still have arrived.
    return ConnectionLost(f"{reason}, with {name} unanswered", sent=True)


def _unsent_error(reason: ClientError, name: str) -> ClientError:
    return ConnectionLost(f"{reason} ({name} was not sent)", sent=False)


def describe(error: BaseException) -> str:
    """A sentence for users about an error of the system."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, socket.gaierror):
        return f"unknown host: {error.strerror}"
    if isinstance(error, OSError):
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        return reason or "the connection was closed"
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
    """Open a connection; the caller limits the time. TLS errors are `AuthenticationFailed`."""
    loop = asyncio.get_running_loop()
    address = address_of(host, port)
    try:
        sock = await _connect_socket(host, port, (send_buffer_bytes, receive_buffer_bytes))
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
            remedy="set ssl.truststore.location to the signing certificate (PEM)",
        ) from error
    except OSError as error:
        sock.close()
        remedy = "check that the port uses TLS" if tls else None
        message = f"cannot connect to {address}: {describe(error)}"
        raise ConnectionLost(message, sent=False, remedy=remedy) from error
    except BaseException:
        sock.close()
        raise
    if tls is None:
        connection.set_socket(sock)
    return connection


async def _connect_socket(host: str, port: int, buffers: tuple[int, int]) -> socket.socket:
    """Connect a socket to the first address of the host that accepts."""
    loop = asyncio.get_running_loop()
    try:
        # A numeric address needs no resolver, and so no thread.
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
    # Detects a peer that vanished without closing, on idle connections too.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, size in zip((socket.SO_SNDBUF, socket.SO_RCVBUF), buffers, strict=True):
        if size >= 0:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, size)
