"""All connections of a client, by node and channel.

Rules of this file:
- A broker answers the requests of one connection one after the other, so a fetch that waits
  for data holds up whatever is behind it. Requests that may wait have channels of their own:
  a connection for each (node, channel).
- There is one attempt to connect at a time for each of them, shared by all who wait for it. A
  failed one makes the next wait (`reconnect.backoff.ms`, doubling).
- A connection is replaced when it is lost, when it was idle for too long, when its SASL
  session is about to end, and when the broker has moved to another address. What is under way
  on it is still answered.
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
from shoal.client.transport.handshake import Link, shake_hands
from shoal.client.transport.security import tls_context
from shoal.client.transport.versions import BrokerVersions
from shoal.model.errors import ShoalError
from shoal.runtime.tasks import record_failure, run_awaited

CONTROL = "control"
FETCH = "fetch"
PRODUCE = "produce"


class Key(NamedTuple):
    """Whose connection it is, and for what."""

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
        # Taken out of use, but perhaps not closed yet.
        self._retired: list[Connection] = []
        self._is_closed = False
        self.versions: dict[int, BrokerVersions] = {}

    def know(self, brokers: Mapping[int, BrokerAddress]) -> None:
        """The brokers' addresses, from now on."""
        for key, link in list(self._links.items()):
            if _moved(self._brokers.get(key.node_id), brokers.get(key.node_id)):
                self._retire(key, link)
        self._brokers = brokers

    def adopt(self, node_id: int, link: Link) -> None:
        """Use a connection of the bootstrap as the control connection of its broker."""
        key = Key(node_id, CONTROL)
        if key in self._links or key in self._attempts:
            self.discard(link)
            return
        self._links[key] = link
        self.versions[node_id] = link.versions

    def discard(self, link: Link) -> None:
        """Close a connection that is not in the pool, once it is idle."""
        self._retired = [connection for connection in self._retired if connection.is_open]
        self._retired.append(link.connection)
        link.connection.retire()

    def ready(self, node_id: int, channel: str = CONTROL) -> Link | None:
        """The connection if it is open and fit for use."""
        key = Key(node_id, channel)
        link = self._links.get(key)
        if link is None:
            return None
        now = asyncio.get_running_loop().time()
        idle_s = now - link.connection.last_used
        is_worn = (link.expires_at is not None and now >= link.expires_at) or (
            not link.connection.unanswered and idle_s > self._config.connections_max_idle_ms / 1000
        )
        if link.connection.is_closed or is_worn:
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
        """An open connection; makes one if there is none."""
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
            attempt.add_done_callback(lambda task: self._attempted(key, task))
        return await asyncio.shield(attempt)

    async def open(self, host: str, port: int) -> Link:
        """A connection of its own, ready for use, outside the pool."""
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
                return await shake_hands(connection, config)
        except TimeoutError:
            _drop(connection)
            raise RequestTimedOut(
                f"{host}:{port} did not become ready within "
                f"{config.connection_setup_timeout_ms} ms",
                sent=False,
            ) from None
        except BaseException as error:
            _drop(connection)
            if isinstance(error, ConnectionLost):
                # Lost while shaking hands: the caller's request was not even made.
                raise ConnectionLost(str(error), sent=False, remedy=error.remedy) from error
            raise

    async def close(self) -> None:
        """Close all connections and attempts; returns when the sockets are gone."""
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
            raise ConnectionLost(f"broker {key.node_id} is not in the cluster now", sent=False)
        return await self.open(broker.host, broker.port)

    def _attempted(self, key: Key, attempt: asyncio.Task[Link]) -> None:
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
            record_failure("connection attempt", error, "it is made again when it is needed")
        backoff = self._backoffs.setdefault(
            key, Backoff(self._config.reconnect_backoff_ms, self._config.reconnect_backoff_max_ms)
        )
        self._not_before[key] = asyncio.get_running_loop().time() + backoff.failed()

    def _retire(self, key: Key, link: Link) -> None:
        del self._links[key]
        self.discard(link)


def _moved(old: BrokerAddress | None, new: BrokerAddress | None) -> bool:
    return old is not None and new is not None and (old.host, old.port) != (new.host, new.port)


def _drop(connection: Connection | None) -> None:
    if connection is not None:
        connection.abort(ClientClosed(f"{connection.address} did not become ready"))
