"""Faults of the links of this node to others, for each direction. `shoal.net.link_faults` has the
model of a fault; here it is applied to messages.

Rules of this file:
- Faults apply only to connections that this node opened, to what they send and receive. The other
  node does the same with its own, so both directions of a link are covered, no matter which
  node connected.
- A cut link loses nothing and resets nothing: sent data is held until the link is healed, as
  during a network outage. While either direction is cut, no connection can be opened.
- A bandwidth limit applies to all connections together that this node opened over the link.
- A reset ends the open connections; new ones can be opened at once.
- Connections without faults bypass this module, and cost nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple
from weakref import WeakSet

from shoal.client.transport.connection import Connection
from shoal.net.link_faults import NO_EFFECT, LinkEffect, LinkFault, LinkQueue

Deliver = Callable[[], None]


class NodeLink(NamedTuple):
    """Both directions of a link, as seen from this node."""

    outgoing: LinkEffect = NO_EFFECT
    incoming: LinkEffect = NO_EFFECT


# Of a link, outgoing and incoming; all its connections share them.
_Directions = tuple[LinkFault, LinkFault]


class _MessageQueue:
    """One direction of one connection: delivers messages when the fault lets them pass."""

    def __init__(self, fault: LinkFault) -> None:
        self._queue: LinkQueue[Deliver] = LinkQueue()
        self._queue.set_faults([fault])
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, deliver: Deliver, size_bytes: int) -> None:
        self._queue.put(deliver, size_bytes, self._loop.time())
        self._deliver_due()

    def change(self, fault: LinkFault) -> None:
        self._queue.set_faults([fault])
        self._deliver_due()

    def _deliver_due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        passed, next_s = self._queue.take(self._loop.time())
        self._timer = None if next_s is None else self._loop.call_at(next_s, self._deliver_due)
        for deliver in passed:
            deliver()


class _FaultyTransport:
    """Delays the messages of a connection with faults."""

    def __init__(self, directions: _Directions) -> None:
        self._out, self._in = map(_MessageQueue, directions)
        self.outgoing = self._out.put
        self.incoming = self._in.put

    def change(self, directions: _Directions) -> None:
        outgoing, incoming = directions
        self._out.change(outgoing)
        self._in.change(incoming)


class NodeLinkFaults:
    """All links of one node, by the node at the other end."""

    def __init__(self) -> None:
        self._links: dict[int, NodeLink] = {}
        self._directions: dict[int, _Directions] = {}
        self._resets: dict[int, int] = {}
        self._connections: dict[int, WeakSet[Connection]] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    def change(self, links: Mapping[int, NodeLink]) -> None:
        """Replace the faults of all links."""
        before, self._links = self._links, dict(links)
        for peer_id in before.keys() | self._links.keys():
            if before.get(peer_id) != self._links.get(peer_id):
                outgoing, incoming = self._link(peer_id)
                self._directions[peer_id] = LinkFault(outgoing), LinkFault(incoming)
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
        while any(effect.is_cut for effect in self._link(peer_id)):
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
        delay_ms = sum(effect.delay_ms for effect in self._link(peer_id))
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
