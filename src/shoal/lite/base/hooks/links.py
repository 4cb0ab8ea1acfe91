"""The links of this node to others, which can be cut, slow or narrow, each way by itself.

Rules of this file:
- Only connections that this node made are touched: what they carry out, and what comes in. The
  other node does the same with its own, so both ways of a link are covered, and nobody needs to
  know who it was that connected.
- A cut link loses nothing and resets nothing: what is sent stays where it is until the link is
  healed, as with a network that is gone. While either way is cut, no connection can be made.
- A slow link brings everything later, in order. A narrow one lets so many bytes pass in a
  second, of all connections that this node made over it; a request or an answer is there when its
  last byte is. What changes begins anew with what is held.
- A reset ends the connections that are there; others can be made at once.
- What nobody hinders is not touched: it costs nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple
from weakref import WeakSet

from shoal.client.transport.connection import Connection

Deliver = Callable[[], None]


class Way(NamedTuple):
    """How bytes fare in one direction."""

    is_cut: bool = False
    delay_ms: int = 0
    bytes_per_s: int = 0  # 0: as many as there are


FREE = Way()


class Link(NamedTuple):
    """Both directions of a link, as seen from this node."""

    outgoing: Way = FREE
    incoming: Way = FREE


class _Road:
    """One direction of a link, which all connections share."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self._free_at_s = asyncio.get_running_loop().time()

    def arrival_s(self, came_s: float, size_bytes: int) -> float:
        """When what came then is there; takes the time that it needs on a narrow road."""
        if self.way.bytes_per_s:
            begins_s = max(came_s, self._free_at_s)
            came_s = self._free_at_s = begins_s + size_bytes / self.way.bytes_per_s
        return came_s + self.way.delay_ms / 1000


class _Lane:
    """One direction of one connection: takes what passes, and passes it on when it may."""

    def __init__(self, road: _Road) -> None:
        self._road = road
        self._loop = asyncio.get_running_loop()
        self._held: deque[tuple[float, int, Deliver]] = deque()
        self._first_due_s: float | None = None  # of the first that is held, once that is known
        self._timer: asyncio.TimerHandle | None = None

    def put(self, deliver: Deliver, size_bytes: int) -> None:
        self._held.append((self._loop.time(), size_bytes, deliver))
        self._pass_on()

    def change(self, road: _Road) -> None:
        if road is not self._road:
            self._road, self._first_due_s = road, None
            self._pass_on()

    def _pass_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._held and not self._road.way.is_cut:
            came_s, size_bytes, deliver = self._held[0]
            if self._first_due_s is None:
                self._first_due_s = self._road.arrival_s(came_s, size_bytes)
            left_s = self._first_due_s - self._loop.time()
            if left_s > 0:
                self._timer = self._loop.call_later(left_s, self._pass_on)
                return
            self._held.popleft()
            self._first_due_s = None
            deliver()


class _Roads(NamedTuple):
    """Both directions of a link, with what passes there."""

    outgoing: _Road
    incoming: _Road


class _Detour:
    """What a hindered connection goes through."""

    def __init__(self, roads: _Roads) -> None:
        self._out = _Lane(roads.outgoing)
        self._in = _Lane(roads.incoming)

    def outgoing(self, deliver: Deliver, size_bytes: int) -> None:
        self._out.put(deliver, size_bytes)

    def incoming(self, deliver: Deliver, size_bytes: int) -> None:
        self._in.put(deliver, size_bytes)

    def change(self, roads: _Roads) -> None:
        self._out.change(roads.outgoing)
        self._in.change(roads.incoming)


class Links:
    """All links of one node, by the node at the other end."""

    def __init__(self) -> None:
        self._links: dict[int, Link] = {}
        self._roads: dict[int, _Roads] = {}
        self._resets: dict[int, int] = {}
        self._connections: dict[int, WeakSet[Connection]] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    def change(self, links: Mapping[int, Link]) -> None:
        """These links are hindered from now on, and no others."""
        before, self._links = self._links, dict(links)
        for peer_id in before.keys() | self._links.keys():
            if before.get(peer_id) != self._links.get(peer_id):
                link = self._link(peer_id)
                self._roads[peer_id] = _Roads(_Road(link.outgoing), _Road(link.incoming))
            for connection in list(self._connections.get(peer_id, ())):
                self._hinder(peer_id, connection)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def reset(self, counts: Mapping[int, int]) -> None:
        """How often each link was reset so far; if that is more than before, it is reset now."""
        for peer_id, count in counts.items():
            if count > self._resets.get(peer_id, 0):
                self._resets[peer_id] = count
                for connection in list(self._connections.get(peer_id, ())):
                    connection.reset()

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
        roads, detour = self._roads.get(peer_id), connection.detour
        if roads is None:
            return
        if isinstance(detour, _Detour):
            # It stays where it was once needed: what follows must not overtake what is held.
            detour.change(roads)
        elif self._link(peer_id) != Link():
            connection.detour = _Detour(roads)


# A process is one node.
LINKS = Links()
