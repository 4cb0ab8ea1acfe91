"""Connections from one node of a cluster to another: all of them are opened here.

Brokers connect to brokers and controllers, and controllers to each other. So the faults of links
(`hooks.links`) have one place to attach, which knows both ends by their ids. In a traced cluster
the messages of these connections carry clocks (`hooks.frames`).
"""

import asyncio
from typing import NamedTuple

from shoal.client.transport.connection import Connection, connect
from shoal.lite.base.hooks import tracer
from shoal.lite.base.hooks.frames import ClockCarrier
from shoal.lite.base.hooks.links import LINKS

CONNECT_TIMEOUT_S = 2.0
# The largest answer of a node: the records of a fetch, and some room.
_FRAME_LIMIT_BYTES = 512 * 1024 * 1024


class NodeAddress(NamedTuple):
    """The id and the address of a node."""

    node_id: int
    host: str
    port: int


async def connect_to_node(own_id: int, peer: NodeAddress, *, max_in_flight: int = 1) -> Connection:
    """Connect node `own_id` to another one; `ConnectionLost` or `TimeoutError` if that fails."""
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        await LINKS.wait_until_open(peer.node_id)
        connection = await connect(
            peer.host, peer.port, max_in_flight=max_in_flight, limit_bytes=_FRAME_LIMIT_BYTES
        )
    if tracer.current is not None:
        connection.frame_hook = ClockCarrier(tracer.current)
    LINKS.on_connected(peer.node_id, connection)
    return connection
