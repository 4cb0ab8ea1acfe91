"""Faults of the links of this node to others: cut, delay and bandwidth, for each direction.

Rules of this file:
- Faults apply only to connections that this node opened, to what they send and receive. The other
  node does the same with its own, so both directions of a link are covered, no matter which
  node connected.
- A cut link loses nothing and resets nothing: sent data is held until the link is healed, as
  during a network outage. While either direction is cut, no connection can be opened.
- A delayed link delivers everything later, in order. A bandwidth limit applies to all connections
  together that this node opened over the link; a message is delivered when its last byte is.
  After a change, held messages are scheduled again.
- A reset ends the open connections; new ones can be opened at once.
- Connections without faults bypass this module, and cost nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple
from weakref import WeakSet

from shoal.client.transport.connection import Connection

Deliver = Callable[[], None]


class LinkCondition(NamedTuple):
    """The injected faults of one direction of a link."""

    is_cut: bool = False
    delay_ms: int = 0
    bytes_per_s: int = 0  # 0: no limit


NO_FAULT = LinkCondition()


class NodeLink(NamedTuple):
    """Both directions of a link, as seen from this node."""

    outgoing: LinkCondition = NO_FAULT
    incoming: LinkCondition = NO_FAULT


class _LinkDirection:
    """One direction of a link; all connections share its bandwidth."""

    def __init__(self, condition: LinkCondition) -> None:
        self.condition = condition
        self._free_at_s = asyncio.get_running_loop().time()

    def arrival_s(self, came_s: float, size_bytes: int) -> float:
        """When a message is delivered; reserves the time that it takes at a limited bandwidth."""
        if self.condition.bytes_per_s:
            begins_s = max(came_s, self._free_at_s)
            came_s = self._free_at_s = begins_s + size_bytes / self.condition.bytes_per_s
        return came_s + self.condition.delay_ms / 1000


class _DelayQueue:
    """One direction of one connection: holds messages until they are due."""

    def __init__(self, direction: _LinkDirection) -> None:
        self._direction = direction
        self._loop = asyncio.get_running_loop()
        self._held: deque[tuple[float, int, Deliver]] = deque()
        self._first_due_s: float | None = None  # of the first held message, once it is computed
        self._timer: asyncio.TimerHandle | None = None

    def put(self, deliver: Deliver, size_bytes: int) -> None:
        self._held.append((self._loop.time(), size_bytes, deliver))
        self._deliver_due()

    def change(self, direction: _LinkDirection) -> None:
        if direction is not self._direction:
            self._direction, self._first_due_s = direction, None
            self._deliver_due()

    def _deliver_due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._held and not self._direction.condition.is_cut:
            came_s, size_bytes, deliver = self._held[0]
            if self._first_due_s is None:
                self._first_due_s = self._direction.arrival_s(came_s, size_bytes)
            left_s = self._first_due_s - self._loop.time()
            if left_s > 0:
                self._timer = self._loop.call_later(left_s, self._deliver_due)
                return
            self._held.popleft()
            self._first_due_s = None
            deliver()


class _LinkDirections(NamedTuple):
    """Both directions of a link."""

    outgoing: _LinkDirection
    incoming: _LinkDirection


class _FaultyTransport:
    """Delays the messages of a connection with faults."""

    def __init__(self, directions: _LinkDirections) -> None:
        self._out = _DelayQueue(directions.outgoing)
        self._in = _DelayQueue(directions.incoming)

    def outgoing(self, deliver: Deliver, size_bytes: int) -> None:
        self._out.put(deliver, size_bytes)

    def incoming(self, deliver: Deliver, size_bytes: int) -> None:
        self._in.put(deliver, size_bytes)

    def change(self, directions: _LinkDirections) -> None:
        self._out.change(directions.outgoing)
        self._in.change(directions.incoming)


class NodeLinkFaults:
    """All links of one node, by the node at the other end."""

    def __init__(self) -> None:
        self._links: dict[int, NodeLink] = {}
        self._directions: dict[int, _LinkDirections] = {}
        self._resets: dict[int, int] = {}
        self._connections: dict[int, WeakSet[Connection]] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    def change(self, links: Mapping[int, NodeLink]) -> None:
        """Replace the faults of all links."""
        before, self._links = self._links, dict(links)
        for peer_id in before.keys() | self._links.keys():
            if before.get(peer_id) != self._links.get(peer_id):
                link = self._link(peer_id)
                self._directions[peer_id] = _LinkDirections(
                    _LinkDirection(link.outgoing), _LinkDirection(link.incoming)
                )
            for connection in list(self._connections.get(peer_id, ())):
                self._apply_faults(peer_id, connection)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def reset(self, counts: Mapping[int, int]) -> None:
        """Reset the links whose reset count has increased."""
        for peer_id, count in counts.items():
            if count > self._resets.get(peer_id, 0):
                self._resets[peer_id] = count
                for connection in list(self._connections.get(peer_id, ())):
                    connection.reset()

    async def wait_until_open(self, peer_id: int) -> None:
        """Wait until a connection can be opened: no direction is cut, and the delay is over."""
        while any(condition.is_cut for condition in self._link(peer_id)):
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
        delay_ms = sum(condition.delay_ms for condition in self._link(peer_id))
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)

    def on_connected(self, peer_id: int, connection: Connection) -> None:
        """Apply the faults of a link to a new connection."""
        self._connections.setdefault(peer_id, WeakSet()).add(connection)
        self._apply_faults(peer_id, connection)

    def _link(self, peer_id: int) -> NodeLink:
        return self._links.get(peer_id, NodeLink())

    def _apply_faults(self, peer_id: int, connection: Connection) -> None:
        directions, transport_hook = self._directions.get(peer_id), connection.transport_hook
        if directions is None:
            return
        if isinstance(transport_hook, _FaultyTransport):
            # Once set it stays: later messages must not overtake held ones.
            transport_hook.change(directions)
        elif self._link(peer_id) != NodeLink():
            connection.transport_hook = _FaultyTransport(directions)


# A process is one node.
LINKS = NodeLinkFaults()
