"""All connections of a client, by node and channel.

Rules of this file:
- A broker answers the requests of one connection one after the other, so a fetch that waits
  for data delays the requests behind it. Requests that may wait have their own channels, with one
  connection for each (node, channel).
- For each of them at most one attempt to connect runs, shared by all waiting callers. After a
  failure the next attempt waits (`reconnect.backoff.ms`, doubling).
- A connection is replaced when it is lost, when it was idle for too long, when its SASL
  session is about to expire, and when the broker has moved to another address. Requests in flight
  on it still get their responses.
"""

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shoal.client.cluster.metadata import BrokerAddress
from shoal.client.config import ClientConfig
from shoal.client.errors import ClientClosed, ConnectionLost, RequestTimedOut
from shoal.client.transport.backoff import Backoff
from shoal.client.transport.connection import Connection, connect
from shoal.client.transport.handshake import Link, complete_handshake
from shoal.client.transport.security import tls_context
from shoal.client.transport.versions import BrokerVersions
from shoal.model.errors import ShoalError
from shoal.runtime.tasks import record_failure, run_awaited

CONTROL = "control"
FETCH = "fetch"
PRODUCE = "produce"


class Key(NamedTuple):
    """The broker and the purpose of a connection."""

    node_id: int
    channel: str


class Pool:
    """Opens, keeps, replaces and closes connections."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._tls: ssl.SSLContext | None = tls_context(config)
        self._brokers: Mapping[int, BrokerAddress] = {}
        self._links: dict[Key, Link] = {}
        self._attempts: dict[Key, asyncio.Task[Link]] = {}
        self._backoffs: dict[Key, Backoff] = {}
        self._not_before: dict[Key, float] = {}
        # No longer used, but some are not closed yet.
        self._retired: list[Connection] = []
        self._is_closed = False
        self.versions: dict[int, BrokerVersions] = {}

    def set_brokers(self, brokers: Mapping[int, BrokerAddress]) -> None:
        """Set the addresses of the brokers; connections to moved brokers are retired."""
        for key, link in list(self._links.items()):
            if _has_moved(self._brokers.get(key.node_id), brokers.get(key.node_id)):
                self._retire(key, link)
        self._brokers = brokers

    def adopt(self, node_id: int, link: Link) -> None:
        """Use a bootstrap connection as the control connection of its broker."""
        key = Key(node_id, CONTROL)
        if key in self._links or key in self._attempts:
            self.discard(link)
            return
        self._links[key] = link
        self.versions[node_id] = link.versions

    def discard(self, link: Link) -> None:
        """Close a connection that is not in the pool once its requests are answered."""
        self._retired = [connection for connection in self._retired if connection.is_open]
        self._retired.append(link.connection)
        link.connection.retire()

    def ready(self, node_id: int, channel: str = CONTROL) -> Link | None:
        """The connection if it is open and not expired."""
        key = Key(node_id, channel)
        link = self._links.get(key)
        if link is None:
            return None
        now = asyncio.get_running_loop().time()
        idle_s = now - link.connection.last_used
        is_expired = (link.expires_at is not None and now >= link.expires_at) or (
            not link.connection.unanswered and idle_s > self._config.connections_max_idle_ms / 1000
        )
        if link.connection.is_closed or is_expired:
            self._retire(key, link)
            return None
        return link

    def ready_control_links(self) -> Iterator[tuple[int, Link]]:
        """Open control connections, the least busy first."""
        links = [
            (key.node_id, link)
            for key in list(self._links)
            if key.channel == CONTROL and (link := self.ready(*key)) is not None
        ]
        yield from sorted(links, key=lambda pair: pair[1].connection.unanswered)

    async def link(self, node_id: int, channel: str = CONTROL) -> Link:
        """An open connection; connects if necessary."""
        link = self.ready(node_id, channel)
        if link is not None:
            return link
        key = Key(node_id, channel)
        attempt = self._attempts.get(key)
        if attempt is None:
            if self._is_closed:
                raise ClientClosed("the client is closed")
            attempt = run_awaited(f"connect {key}", self._attempt(key))
            self._attempts[key] = attempt
            attempt.add_done_callback(lambda task: self._on_attempt_done(key, task))
        return await asyncio.shield(attempt)

    async def open(self, host: str, port: int) -> Link:
        """Open a connection outside the pool and complete its handshake."""
        config = self._config
        connection: Connection | None = None
        try:
            async with asyncio.timeout(config.connection_setup_timeout_ms / 1000):
                connection = await connect(
                    host,
                    port,
                    max_in_flight=config.max_in_flight,
                    limit_bytes=config.receive_message_max_bytes,
                    tls=self._tls,
                    send_buffer_bytes=config.send_buffer_bytes,
                    receive_buffer_bytes=config.receive_buffer_bytes,
                    spares=config.receive_spares,
                )
                return await complete_handshake(connection, config)
        except TimeoutError:
            _abort(connection)
            raise RequestTimedOut(
                f"{host}:{port} did not complete the handshake within "
                f"{config.connection_setup_timeout_ms} ms",
                sent=False,
            ) from None
        except BaseException as error:
            _abort(connection)
            if isinstance(error, ConnectionLost):
                # Lost during the handshake: the caller's request was not sent.
                raise ConnectionLost(error.message, sent=False, remedy=error.remedy) from error
            raise

    async def close(self) -> None:
        """Close all connections and attempts; returns when the sockets are closed."""
        self._is_closed = True
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        connections = [link.connection for link in self._links.values()]
        self._links.clear()
        for connection in (*connections, *self._retired):
            await connection.close()

    async def _attempt(self, key: Key) -> Link:
        wait_s = self._not_before.get(key, 0.0) - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        broker = self._brokers.get(key.node_id)
        if broker is None:
            raise ConnectionLost(f"broker {key.node_id} is not in the cluster metadata", sent=False)
        return await self.open(broker.host, broker.port)

    def _on_attempt_done(self, key: Key, attempt: asyncio.Task[Link]) -> None:
        del self._attempts[key]
        if attempt.cancelled():
            return
        if attempt.exception() is None:
            self._backoffs.pop(key, None)
            self._not_before.pop(key, None)
            self._links[key] = attempt.result()
            self.versions[key.node_id] = attempt.result().versions
            return
        error = attempt.exception()
        if not isinstance(error, ShoalError | OSError) and error is not None:
            record_failure("connection attempt", error, "the next request tries again")
        backoff = self._backoffs.setdefault(
            key, Backoff(self._config.reconnect_backoff_ms, self._config.reconnect_backoff_max_ms)
        )
        self._not_before[key] = asyncio.get_running_loop().time() + backoff.next_wait_s()

    def _retire(self, key: Key, link: Link) -> None:
        del self._links[key]
        self.discard(link)


def _has_moved(old: BrokerAddress | None, new: BrokerAddress | None) -> bool:
    return old is not None and new is not None and (old.host, old.port) != (new.host, new.port)


def _abort(connection: Connection | None) -> None:
    if connection is not None:
        connection.abort(ClientClosed(f"{connection.address} did not complete the handshake"))
