"""The links of this node to others, which can be cut or slow, each way by itself.

Rules of this file:
- Only connections that this node made are touched: what they carry out, and what comes in. The
  other node does the same with its own, so both ways of a link are covered, and nobody needs to
  know who it was that connected.
- A cut link loses nothing and resets nothing: what is sent stays where it is until the link is
  healed, as with a network that is gone. While either way is cut, no connection can be made.
- A slow link brings everything later, in order.
- What nobody hinders is not touched: it costs nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple
from weakref import WeakSet

from shoal.client.connection import Connection

Deliver = Callable[[], None]


class Way(NamedTuple):
    """How bytes fare in one direction."""

    is_cut: bool = False
    delay_ms: int = 0


FREE = Way()


class Link(NamedTuple):
    """Both directions of a link, as seen from this node."""

    outgoing: Way = FREE
    incoming: Way = FREE


class _Lane:
    """One direction of one connection: takes what passes, and passes it on when it may."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._loop = asyncio.get_running_loop()
        self._held: deque[tuple[float, Deliver]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, deliver: Deliver) -> None:
        self._held.append((self._loop.time(), deliver))
        self._pass_on()

    def change(self, way: Way) -> None:
        self._way = way
        self._pass_on()

    def _pass_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._held and not self._way.is_cut:
            came_s, deliver = self._held[0]
            left_s = came_s + self._way.delay_ms / 1000 - self._loop.time()
            if left_s > 0:
                self._timer = self._loop.call_later(left_s, self._pass_on)
                return
            self._held.popleft()
            deliver()


class _Detour:
    """What a hindered connection goes through."""

    def __init__(self, link: Link) -> None:
        self._out = _Lane(link.outgoing)
        self._in = _Lane(link.incoming)

    def outgoing(self, deliver: Deliver) -> None:
        self._out.put(deliver)

    def incoming(self, deliver: Deliver) -> None:
        self._in.put(deliver)

    def change(self, link: Link) -> None:
        self._out.change(link.outgoing)
        self._in.change(link.incoming)


class Links:
    """All links of one node, by the node at the other end."""

    def __init__(self) -> None:
        self._links: dict[int, Link] = {}
        self._connections: dict[int, WeakSet[Connection]] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    def change(self, links: Mapping[int, Link]) -> None:
        """These links are hindered from now on, and no others."""
        before, self._links = self._links, dict(links)
        for peer_id in before.keys() | self._links.keys():
            for connection in list(self._connections.get(peer_id, ())):
                self._hinder(peer_id, connection)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def way_is_open(self, peer_id: int) -> None:
        """Wait until a connection can be made: a request and its answer must get through."""
        while any(way.is_cut for way in self._link(peer_id)):
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
        delay_ms = sum(way.delay_ms for way in self._link(peer_id))
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)

    def made(self, peer_id: int, connection: Connection) -> None:
        """A connection to this node was made."""
        self._connections.setdefault(peer_id, WeakSet()).add(connection)
        self._hinder(peer_id, connection)

    def _link(self, peer_id: int) -> Link:
        return self._links.get(peer_id, Link())

    def _hinder(self, peer_id: int, connection: Connection) -> None:
        link = self._link(peer_id)
        detour = connection.detour
        if isinstance(detour, _Detour):
            # It stays where it was once needed: what follows must not overtake what is held.
            detour.change(link)
        elif link != Link():
            connection.detour = _Detour(link)


# A process is one node.
LINKS = Links()
