"""Requests from this broker to other brokers, with Kafka's own messages.

Rules of this file:
- A broker answers the requests of a connection one after the other, and some answers wait for
  replication. So each purpose uses its own connections to a broker, several of them, and each
  connection carries one request at a time.
- Nothing is retried here: the caller knows whether a retry helps.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from shoal.client.errors import ClientError
from shoal.client.transport.connection import Connection
from shoal.client.transport.handshake import send_message
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.dial import NodeAddress, connect_to_node
from shoal.wire.building import build
from shoal.wire.errors import WireError
from shoal.wire.messages import decode_response, request_class, response_class

_MOST_CONNECTIONS = 4


class BrokerLinks:
    """The connections to other brokers for one purpose."""

    def __init__(self, own_id: int) -> None:
        self._own_id = own_id
        self._connections: dict[NodeAddress, list[Connection]] = {}
        self._dialling: dict[NodeAddress, int] = {}
        self._is_closed = False

    async def request(
        self,
        peer: NodeAddress,
        api: tuple[int, int],
        values: Mapping[str, Any],
        *,
        timeout_s: float,
    ) -> Any:
        """Send a request of this API key and version; return the answer.

        Raise `ApiError` with NETWORK_EXCEPTION if no answer arrives.
        """
        request = build(request_class(*api), values)
        try:
            connection = await self._get_connection(peer)
            frame = await send_message(
                connection, request, client_id=f"broker-{self._own_id}", timeout_s=timeout_s
            )
            return decode_response(frame, response_class(*api))[1]
        except (ClientError, WireError, OSError, TimeoutError) as error:
            message = f"broker {peer.node_id} does not answer: {error}"
            raise ApiError(Code.NETWORK_EXCEPTION, message) from error

    async def _get_connection(self, peer: NodeAddress) -> Connection:
        known = self._connections.setdefault(peer, [])
        known[:] = [connection for connection in known if not connection.is_closed]
        least_busy = min(known, key=lambda connection: connection.unanswered, default=None)
        is_enough = len(known) + self._dialling.get(peer, 0) >= _MOST_CONNECTIONS
        if least_busy is not None and (least_busy.unanswered == 0 or is_enough):
            return least_busy
        self._dialling[peer] = self._dialling.get(peer, 0) + 1
        try:
            connection = await connect_to_node(self._own_id, peer)
        finally:
            self._dialling[peer] -= 1
        if self._is_closed:
            await connection.close()
            raise ApiError(Code.NETWORK_EXCEPTION, "this broker is shutting down")
        known.append(connection)
        return connection

    async def close(self) -> None:
        self._is_closed = True
        connections = [one for known in self._connections.values() for one in known]
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in connections))
