"""Requests from this broker to other brokers, by Kafka's own messages.

Rules of this file:
- A broker answers one request of a connection after the other, and some take as long as
  replication does. So there are several connections to a broker, by what they are for, and each
  carries one request at a time.
- Nothing is tried again here: whoever asks knows whether that helps.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from shoal.client.errors import ClientError
from shoal.client.transport.connection import Connection
from shoal.client.transport.handshake import send_message
from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.dial import Peer, dial
from shoal.wire.building import build
from shoal.wire.errors import WireError
from shoal.wire.messages import decode_response, request_class, response_class

_MOST_CONNECTIONS = 4


class NodeLinks:
    """The connections for one purpose."""

    def __init__(self, own_id: int) -> None:
        self._own_id = own_id
        self._connections: dict[Peer, list[Connection]] = {}
        self._dialling: dict[Peer, int] = {}
        self._is_closed = False

    async def ask(
        self, peer: Peer, api: tuple[int, int], values: Mapping[str, Any], *, timeout_s: float
    ) -> Any:
        """The answer to a request of this key and version.

        `Refused` with NETWORK_EXCEPTION if there is none.
        """
        request = build(request_class(*api), values)
        try:
            connection = await self._connected(peer)
            frame = await send_message(
                connection, request, client_id=f"broker-{self._own_id}", timeout_s=timeout_s
            )
            return decode_response(frame, response_class(*api))[1]
        except (ClientError, WireError, OSError, TimeoutError) as error:
            message = f"broker {peer.node_id} does not answer: {error}"
            raise Refused(Code.NETWORK_EXCEPTION, message) from error

    async def _connected(self, peer: Peer) -> Connection:
        known = self._connections.setdefault(peer, [])
        known[:] = [connection for connection in known if not connection.is_closed]
        least_busy = min(known, key=lambda connection: connection.unanswered, default=None)
        is_enough = len(known) + self._dialling.get(peer, 0) >= _MOST_CONNECTIONS
        if least_busy is not None and (least_busy.unanswered == 0 or is_enough):
            return least_busy
        self._dialling[peer] = self._dialling.get(peer, 0) + 1
        try:
            connection = await dial(self._own_id, peer)
        finally:
            self._dialling[peer] -= 1
        if self._is_closed:
            await connection.close()
            raise Refused(Code.NETWORK_EXCEPTION, "this broker ends")
        known.append(connection)
        return connection

    async def close(self) -> None:
        self._is_closed = True
        connections = [one for known in self._connections.values() for one in known]
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in connections))
