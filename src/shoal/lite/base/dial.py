"""Connections from one node of a cluster to another: all of them are made here.

Brokers fetch from brokers, ask controllers, and controllers ask each other. What cuts or slows the
way between two nodes (`faults.links`) has this one place to do it, and knows both ends by their
ids. In a cluster that is traced, clocks go along (`trace`).
"""

import asyncio
from typing import NamedTuple

from shoal.client.transport.connection import Connection, connect
from shoal.lite.base.hooks import tracer
from shoal.lite.base.hooks.frames import Carrier
from shoal.lite.base.hooks.links import LINKS

CONNECT_PATIENCE_S = 2.0
# What one answer of a node may take up: the records of a fetch, and room to spare.
_FRAME_LIMIT_BYTES = 512 * 1024 * 1024


class Peer(NamedTuple):
    """A node that is to be reached."""

    node_id: int
    host: str
    port: int


async def dial(own_id: int, peer: Peer, *, max_in_flight: int = 1) -> Connection:
    """Connect node `own_id` to another one; `ConnectionLost` or `TimeoutError` if that fails."""
    async with asyncio.timeout(CONNECT_PATIENCE_S):
        await LINKS.way_is_open(peer.node_id)
        connection = await connect(
            peer.host, peer.port, max_in_flight=max_in_flight, limit_bytes=_FRAME_LIMIT_BYTES
        )
    if tracer.current is not None:
        connection.carrier = Carrier(tracer.current)
    LINKS.made(peer.node_id, connection)
    return connection
