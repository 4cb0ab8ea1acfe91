"""A TCP proxy that can cut, delay, stall, limit and reset the connections through it.

Rules of this file:
- The proxy does not parse the bytes. Two hooks do: a `CallerIdentifier` reads from the first bytes
  of a connection who opened it, and a `StreamRewriter` may change the bytes (to rewrite addresses).
- Held bytes are bounded: the proxy stops reading from a side that sent more than the limit.
- The proxy connects to the target only when both directions are open; until then it accepts the
  connection and stays silent, like a broken network. If the target is unreachable, it resets the
  caller's connection.
- The end of a stream is queued behind its bytes: a cut link also hides that a peer died.
- Runs in one event loop; do not call it from another thread.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, Protocol, cast

from shoal.model.errors import SystemFailure, WireError
from shoal.net.link_faults import Bytes, EndpointNames, LinkEffect, LinkFaults, LinkQueue
from shoal.runtime.tasks import log_only, run_once

HOST: Final = "127.0.0.1"
# A side is not read while this much of what it sent is held, and read again below half of it.
HELD_LIMIT_BYTES: Final = 8 * 1024 * 1024
CONNECTIONS_LIMIT: Final = 4096
CONNECT_TIMEOUT_S: Final = 10.0
FIRST_BYTES_LIMIT: Final = 1024
_BACKLOG: Final = 1024
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
# The end of a stream, in the queue behind its bytes.
_END: Final = b""

_log = logging.getLogger(__name__)


class CallerIdentifier(Protocol):
    """Finds out who opened a connection."""

    def identify_caller(self, data: bytes) -> EndpointNames | None:
        """The caller's names, from the first bytes of a connection; None: more bytes needed."""


class StreamRewriter(Protocol):
    """Sees the bytes of one connection and may change them; a `WireError` ends the connection."""

    def rewrite_request(self, data: bytes) -> Iterable[Bytes]:
        """The bytes to send to the target for `data` from the caller."""

    def rewrite_response(self, data: bytes) -> Iterable[Bytes]:
        """The bytes to send to the caller for `data` from the target."""


class ProxyRoute:
    """One listening port of the proxy, and the target of its connections."""

    def __init__(
        self,
        target: tuple[str, int],
        target_names: EndpointNames,
        *,
        caller: EndpointNames | None = None,
        caller_identifier: CallerIdentifier | None = None,
        rewriter: Callable[[], StreamRewriter] | None = None,
    ) -> None:
        """Give either the `caller`'s names or a `caller_identifier` that finds them."""
        self.target = target
        self.target_names = target_names
        self.caller = caller
        self.caller_identifier = caller_identifier
        self.rewriter = rewriter
        self.port = 0
        self.server: asyncio.Server | None = None


def _split(data: Bytes, size_bytes: int) -> tuple[Bytes, Bytes]:
    view = memoryview(data)
    return view[:size_bytes], view[size_bytes:]


class _ProxySide(asyncio.Protocol):
    """One of the two TCP connections of a pair."""

    def __init__(self, pair: "_ConnectionPair", *, is_caller: bool) -> None:
        self.pair = pair
        self.is_caller = is_caller
        self.transport: asyncio.Transport | None = None
        self.queue: LinkQueue[Bytes] = LinkQueue(_split)  # bytes that this side sent
        self.is_full = False  # its write buffer is full
        self.is_closed = False
        self.is_eof_forwarded = False  # its end of stream has reached the other side
        self.is_paused = False
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        self.pair.on_connected(self)

    def data_received(self, data: bytes) -> None:
        self.pair.on_data(self, data)

    def eof_received(self) -> bool:
        # Keep the transport open: this side may still read what the other side sends.
        self.pair.on_eof(self)
        return True

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self.pair.forward(self.pair.other(self))

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_closed = True
        self.pair.on_connection_lost(self)

    def adjust_reading(self) -> None:
        """Stop reading while too much is held; resume when half of it has been sent."""
        if self.transport is None or self.is_closed:
            return
        held_bytes = self.queue.held_bytes
        if not self.is_paused and held_bytes > HELD_LIMIT_BYTES:
            self.is_paused = True
            self.transport.pause_reading()
        elif self.is_paused and held_bytes < HELD_LIMIT_BYTES // 2:
            self.is_paused = False
            self.transport.resume_reading()

    def reset(self) -> None:
        if self.transport is not None and not self.is_closed:
            end = self.transport.get_extra_info("socket")
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()


class _ConnectionPair:
    """A caller's connection and the connection to the target that the proxy opens for it."""

    def __init__(self, proxy: "Proxy", route: ProxyRoute) -> None:
        self._proxy = proxy
        self._route = route
        self._loop = asyncio.get_running_loop()
        self._first_bytes = b""
        self._connecting: asyncio.Task[None] | None = None
        self._rewriter = None if route.rewriter is None else route.rewriter()
        self.created_after = proxy.faults.last_fault_number
        self.caller_names = route.caller
        self.caller_side = _ProxySide(self, is_caller=True)
        self.target_side = _ProxySide(self, is_caller=False)

    @property
    def target_names(self) -> EndpointNames:
        return self._route.target_names

    def other(self, side: _ProxySide) -> _ProxySide:
        return self.target_side if side is self.caller_side else self.caller_side

    def on_connected(self, side: _ProxySide) -> None:
        if side is self.caller_side:
            if not self._proxy.admit(self):
                side.reset()
                return
            self.apply_faults()
        else:
            self.forward(self.caller_side)

    def apply_faults(self) -> None:
        """Apply the current faults; called when they change or when the caller is identified."""
        if self.caller_names is None:
            return
        for side, source, target in (
            (self.caller_side, self.caller_names, self.target_names),
            (self.target_side, self.target_names, self.caller_names),
        ):
            side.queue.set_faults(
                self._proxy.faults.between(source, target, created_after=self.created_after)
            )
        is_open = not self.caller_side.queue.is_blocked and not self.target_side.queue.is_blocked
        if self._connecting is None and is_open and not self.caller_side.is_closed:
            self._connecting = run_once(
                "proxy connection", self._connect_target(), on_failure=self._on_connect_failed
            )
        self.forward(self.caller_side)
        self.forward(self.target_side)

    async def _connect_target(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.create_connection(lambda: self.target_side, *self._route.target)
        except (OSError, TimeoutError) as error:
            self._on_connect_failed(error)

    def _on_connect_failed(self, _: Exception) -> None:
        self.target_side.is_closed = True
        self.reset()
        self._release()

    def on_data(self, side: _ProxySide, data: bytes) -> None:
        if self.caller_names is None and not self._identify(data):
            return
        if self.caller_names is not None and self._first_bytes and side is self.caller_side:
            data, self._first_bytes = self._first_bytes, b""
        try:
            for piece in self._rewrite(side, data):
                self._send_or_queue(side, piece)
        except WireError as error:
            _log.warning("closed a proxied connection to %s:%d: %s", *self._route.target, error)
            self.reset()

    def _identify(self, data: bytes) -> bool:
        """Whether the caller is known now."""
        self._first_bytes += data
        identifier = self._route.caller_identifier
        if identifier is not None:
            self.caller_names = identifier.identify_caller(self._first_bytes)
        if self.caller_names is None:
            if len(self._first_bytes) > FIRST_BYTES_LIMIT:
                self.reset()
            return False
        self.apply_faults()
        return True

    def _rewrite(self, side: _ProxySide, data: bytes) -> Iterable[Bytes]:
        if self._rewriter is None:
            return (data,)
        rewriter = self._rewriter
        return rewriter.rewrite_request(data) if side.is_caller else rewriter.rewrite_response(data)

    def _send_or_queue(self, side: _ProxySide, data: Bytes) -> None:
        to = self.other(side)
        if to.is_closed and not side.queue.is_blocked:
            return
        if side.queue.is_free and to.transport is not None and not to.is_full:
            to.transport.write(data)
            return
        side.queue.put(data, len(data), self._loop.time())
        self.forward(side)

    def forward(self, side: _ProxySide) -> None:
        """Send what may pass from this side now, and set a timer for the rest."""
        if side.timer is not None:
            side.timer.cancel()
            side.timer = None
        to = self.other(side)
        if to.transport is None or to.is_full:
            side.adjust_reading()
            return
        passed, next_s = side.queue.take(self._loop.time())
        for data in passed:
            if to.is_closed:
                break
            if len(data) > 0:
                to.transport.write(data)
            else:
                self._forward_eof(side, to.transport)
        if next_s is not None and not to.is_closed:
            side.timer = self._loop.call_at(next_s, self.forward, side)
        side.adjust_reading()

    def _forward_eof(self, side: _ProxySide, to: asyncio.Transport) -> None:
        side.is_eof_forwarded = True
        if side.is_closed or self.other(side).is_eof_forwarded:
            to.close()
            if side.transport is not None:
                side.transport.close()
        else:
            to.write_eof()

    def on_eof(self, side: _ProxySide) -> None:
        if not self.other(side).is_closed:
            side.queue.put(_END, 0, self._loop.time())
            self.forward(side)

    def on_connection_lost(self, side: _ProxySide) -> None:
        to = self.other(side)
        self.on_eof(side)
        if side is self.caller_side and to.transport is None and self._connecting is None:
            # No connection to the target was started, so no callback will mark it as closed.
            to.is_closed = True
        self._release()

    def reset(self) -> None:
        self.caller_side.reset()
        self.target_side.reset()

    def _release(self) -> None:
        if self.caller_side.is_closed and self.target_side.is_closed:
            for side in (self.caller_side, self.target_side):
                if side.timer is not None:
                    side.timer.cancel()
            self._proxy.forget(self)

    async def end(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._connecting
        self.target_side.is_closed = (
            self.target_side.is_closed or self.target_side.transport is None
        )
        self.reset()


class Proxy:
    """The routes, their connections, and the faults on them."""

    def __init__(self) -> None:
        self.faults = LinkFaults()
        self._routes: list[ProxyRoute] = []
        self._pairs: set[_ConnectionPair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def open(self, route: ProxyRoute) -> int:
        """Open a listening port for a route and return it; connections wait in the backlog."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind((HOST, 0))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise SystemFailure(f"cannot open a port for the proxy on {HOST}: {error}") from error
        route.port = listener.getsockname()[1]
        self._routes.append(route)
        # If this fails, the listener is closed and clients see their connections refused.
        task = run_once("proxy listener", self._serve(route, listener), on_failure=log_only)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return route.port

    async def _serve(self, route: ProxyRoute, listener: socket.socket) -> None:
        try:
            route.server = await asyncio.get_running_loop().create_server(
                lambda: _ConnectionPair(self, route).caller_side, sock=listener
            )
        except BaseException:
            listener.close()
            raise

    def add_fault(
        self, sources: Collection[str], targets: Collection[str], effect: LinkEffect
    ) -> int:
        """Add a fault that applies from now on; returns its number for `remove_fault`."""
        number = self.faults.add(sources, targets, effect)
        self.apply_faults()
        return number

    def remove_fault(self, number: int) -> None:
        self.faults.remove(number)
        self.apply_faults()

    def reset(self, sources: Collection[str], targets: Collection[str]) -> int:
        """Reset all connections between these endpoints; returns how many there were."""
        one, two = frozenset(sources), frozenset(targets)
        found = [
            pair
            for pair in self._pairs
            if pair.caller_names is not None
            and (
                (one & pair.caller_names and two & pair.target_names)
                or (two & pair.caller_names and one & pair.target_names)
            )
        ]
        for pair in found:
            pair.reset()
        return len(found)

    async def close(self) -> None:
        """Stop listening and end all connections."""
        self._is_closed = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for route in self._routes:
            if route.server is not None:
                route.server.close()
        await asyncio.gather(*(pair.end() for pair in list(self._pairs)))
        while self._pairs:
            await asyncio.sleep(0.001)
            for pair in list(self._pairs):
                pair.reset()

    def apply_faults(self) -> None:
        for pair in list(self._pairs):
            pair.apply_faults()

    # Called by connection pairs

    def admit(self, pair: _ConnectionPair) -> bool:
        if self._is_closed or len(self._pairs) >= CONNECTIONS_LIMIT:
            return False
        self._pairs.add(pair)
        return True

    def forget(self, pair: _ConnectionPair) -> None:
        self._pairs.discard(pair)
