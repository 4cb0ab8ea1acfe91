"""A TCP proxy through which connections can be cut, slowed, stalled, narrowed and reset.

Rules of this file:
- It knows nothing of what passes, but for two hooks: a `Greeter` reads who is calling from a
  connection's first bytes, and a `Translator` may change what passes (to rewrite addresses).
- What is held back is bounded: a side is not read while much of what it sent waits here.
- A connection is dialled on when both of its ways are open; until then it stands accepted and
  silent, as in a network that is gone. If the other side cannot be reached it is reset.
- The end of one side reaches the other through the same lane as its bytes did: a link that is
  cut hides a death too.
- One event loop; nothing here may be called from another thread.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, Protocol, cast

from shoal.model.errors import SystemFailure, WireError
from shoal.net.ways import Bytes, Effect, Hindrances, Lane, Names
from shoal.runtime.tasks import log_only, run_once

HOST: Final = "127.0.0.1"
# A side is not read while this much of what it sent is held, and read again below half of it.
HELD_LIMIT_BYTES: Final = 8 * 1024 * 1024
CONNECTIONS_LIMIT: Final = 4096
CONNECT_PATIENCE_S: Final = 10.0
GREETING_LIMIT_BYTES: Final = 1024
_BACKLOG: Final = 1024
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

_log = logging.getLogger(__name__)


class Greeter(Protocol):
    """Learns who calls."""

    def hear(self, data: bytes) -> Names | None:
        """The caller's names, from the first bytes of a connection; None: not enough yet."""


class Translator(Protocol):
    """Sees what passes through one connection, and may change it. `WireError` ends it."""

    def asked(self, data: bytes) -> Iterable[Bytes]:
        """From the caller."""

    def answered(self, data: bytes) -> Iterable[Bytes]:
        """To the caller."""


class Route:
    """An address of the proxy, and where connections to it go."""

    def __init__(
        self,
        target: tuple[str, int],
        target_names: Names,
        *,
        caller: Names | None = None,
        greeter: Greeter | None = None,
        translator: Callable[[], Translator] | None = None,
    ) -> None:
        """Who calls is known beforehand (`caller`), or heard by the `greeter`."""
        self.target = target
        self.target_names = target_names
        self.caller = caller
        self.greeter = greeter
        self.translator = translator
        self.port = 0
        self.server: asyncio.Server | None = None


class _Side(asyncio.Protocol):
    """One TCP connection of a pair."""

    def __init__(self, pair: "_Pair", *, is_caller: bool) -> None:
        self.pair = pair
        self.is_caller = is_caller
        self.transport: asyncio.Transport | None = None
        self.lane = Lane()  # what this side sent
        self.is_full = False  # it takes no more for now
        self.is_gone = False
        self.is_over = False  # it sends no more, and the other side knows
        self.is_paused = False
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        self.pair.made(self)

    def data_received(self, data: bytes) -> None:
        self.pair.received(self, data)

    def eof_received(self) -> bool:
        # It may still want to hear the rest.
        self.pair.ended(self)
        return True

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self.pair.pass_on(self.pair.other(self))

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_gone = True
        self.pair.lost(self)

    def read_or_not(self) -> None:
        """Stop reading what there is no room for."""
        if self.transport is None or self.is_gone:
            return
        held_bytes = self.lane.held_bytes
        if not self.is_paused and held_bytes > HELD_LIMIT_BYTES:
            self.is_paused = True
            self.transport.pause_reading()
        elif self.is_paused and held_bytes < HELD_LIMIT_BYTES // 2:
            self.is_paused = False
            self.transport.resume_reading()

    def reset(self) -> None:
        if self.transport is not None and not self.is_gone:
            end = self.transport.get_extra_info("socket")
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()


class _Pair:
    """A caller's connection and the one that is made for it."""

    def __init__(self, proxy: "Proxy", route: Route) -> None:
        self._proxy = proxy
        self._route = route
        self._loop = asyncio.get_running_loop()
        self._greeting = b""
        self._dialling: asyncio.Task[None] | None = None
        self._translator = None if route.translator is None else route.translator()
        self.born = proxy.hindrances.last_number
        self.caller_names = route.caller
        self.caller = _Side(self, is_caller=True)
        self.callee = _Side(self, is_caller=False)

    @property
    def target_names(self) -> Names:
        return self._route.target_names

    def other(self, side: _Side) -> _Side:
        return self.callee if side is self.caller else self.caller

    def made(self, side: _Side) -> None:
        if side is self.caller:
            if not self._proxy.admit(self):
                side.reset()
                return
            self.look_again()
        else:
            self.pass_on(self.caller)

    def look_again(self) -> None:
        """What is in the way has changed, or the caller has become known."""
        if self.caller_names is None:
            return
        for side, source, target in (
            (self.caller, self.caller_names, self.target_names),
            (self.callee, self.target_names, self.caller_names),
        ):
            side.lane.change(self._proxy.hindrances.between(source, target, born=self.born))
        is_open = not self.caller.lane.is_shut and not self.callee.lane.is_shut
        if self._dialling is None and is_open and not self.caller.is_gone:
            self._dialling = run_once(
                "proxy connection", self._dial(), on_failure=self._on_not_connected
            )
        self.pass_on(self.caller)
        self.pass_on(self.callee)

    async def _dial(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_PATIENCE_S):
                await self._loop.create_connection(lambda: self.callee, *self._route.target)
        except (OSError, TimeoutError) as error:
            self._on_not_connected(error)

    def _on_not_connected(self, _: Exception) -> None:
        self.callee.is_gone = True
        self.reset()
        self._release()

    def received(self, side: _Side, data: bytes) -> None:
        if self.caller_names is None and not self._heard(data):
            return
        if self.caller_names is not None and self._greeting and side is self.caller:
            data, self._greeting = self._greeting, b""
        try:
            for piece in self._translated(side, data):
                self._put(side, piece)
        except WireError as error:
            _log.warning("a connection is ended: %s", error)
            self.reset()

    def _heard(self, data: bytes) -> bool:
        """Whether it is known now who calls."""
        self._greeting += data
        greeter = self._route.greeter
        self.caller_names = None if greeter is None else greeter.hear(self._greeting)
        if self.caller_names is None:
            if len(self._greeting) > GREETING_LIMIT_BYTES:
                self.reset()
            return False
        self.look_again()
        return True

    def _translated(self, side: _Side, data: bytes) -> Iterable[Bytes]:
        if self._translator is None:
            return (data,)
        translate = self._translator.asked if side.is_caller else self._translator.answered
        return translate(data)

    def _put(self, side: _Side, data: Bytes) -> None:
        to = self.other(side)
        if to.is_gone and not side.lane.is_shut:
            return
        if side.lane.is_free and to.transport is not None and not to.is_full:
            to.transport.write(data)
            return
        side.lane.put(data, self._loop.time())
        self.pass_on(side)

    def pass_on(self, side: _Side) -> None:
        """Let through what may pass from this side, and come back when more may."""
        if side.timer is not None:
            side.timer.cancel()
            side.timer = None
        to = self.other(side)
        if to.transport is None or to.is_full:
            side.read_or_not()
            return
        passed, next_s = side.lane.take(self._loop.time())
        for data in passed:
            if to.is_gone:
                break
            if len(data) > 0:
                to.transport.write(data)
            else:
                self._end_passed(side, to.transport)
        if next_s is not None and not to.is_gone:
            side.timer = self._loop.call_at(next_s, self.pass_on, side)
        side.read_or_not()

    def _end_passed(self, side: _Side, to: asyncio.Transport) -> None:
        side.is_over = True
        if side.is_gone or self.other(side).is_over:
            to.close()
            if side.transport is not None:
                side.transport.close()
        else:
            to.write_eof()

    def ended(self, side: _Side) -> None:
        if not self.other(side).is_gone:
            side.lane.put(Lane.END, self._loop.time())
            self.pass_on(side)

    def lost(self, side: _Side) -> None:
        to = self.other(side)
        self.ended(side)
        if side is self.caller and to.transport is None and self._dialling is None:
            # Nobody else knows of it.
            to.is_gone = True
        self._release()

    def reset(self) -> None:
        self.caller.reset()
        self.callee.reset()

    def _release(self) -> None:
        if self.caller.is_gone and self.callee.is_gone:
            for side in (self.caller, self.callee):
                if side.timer is not None:
                    side.timer.cancel()
            self._proxy.forget(self)

    async def end(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            with suppress(asyncio.CancelledError):
                await self._dialling
        self.callee.is_gone = self.callee.is_gone or self.callee.transport is None
        self.reset()


class Proxy:
    """Routes, the connections that go over them, and what is in their way."""

    def __init__(self) -> None:
        self.hindrances = Hindrances()
        self._routes: list[Route] = []
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def open(self, route: Route) -> int:
        """Listen for a route; its port. Connections wait until the event loop comes to them."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind((HOST, 0))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise SystemFailure(f"no port for a proxy on {HOST}: {error}") from error
        route.port = listener.getsockname()[1]
        self._routes.append(route)
        # Its listener is closed, so that clients are refused and see it.
        task = run_once("proxy listener", self._serve(route, listener), on_failure=log_only)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return route.port

    async def _serve(self, route: Route, listener: socket.socket) -> None:
        try:
            route.server = await asyncio.get_running_loop().create_server(
                lambda: _Pair(self, route).caller, sock=listener
            )
        except BaseException:
            listener.close()
            raise

    def hinder(self, sources: Collection[str], targets: Collection[str], effect: Effect) -> int:
        """From now on; the number is for `relieve`."""
        number = self.hindrances.add(sources, targets, effect)
        self.look_again()
        return number

    def relieve(self, number: int) -> None:
        self.hindrances.remove(number)
        self.look_again()

    def reset(self, sources: Collection[str], targets: Collection[str]) -> int:
        """End all connections between places, either way, with a reset; how many there were."""
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

    def look_again(self) -> None:
        for pair in list(self._pairs):
            pair.look_again()

    # For pairs

    def admit(self, pair: _Pair) -> bool:
        if self._is_closed or len(self._pairs) >= CONNECTIONS_LIMIT:
            return False
        self._pairs.add(pair)
        return True

    def forget(self, pair: _Pair) -> None:
        self._pairs.discard(pair)
