"""Limits on the connections of all clients of a broker.

Rules of this file:
- The number of connections is limited: in total (`max.connections`), and per address
  (`max.connections.per.ip`, with its overrides). A connection above a limit is closed at once.
- A connection without traffic for `connections.max.idle.ms` is closed: idle clients, incomplete
  frames, and clients that do not read their answers. A connection that waits for the broker, as
  in a long poll, is not idle.
- The memory of all requests is limited by `queued.max.request.bytes`, or by a default. Above the
  limit, the connections that use most memory are closed until the rest fits.
- Memory that a connection keeps for its next large frame is released after a second.
"""

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

from shoal.lite.base.configs import Layers

CHECK_INTERVAL_S: Final = 0.25
# Apache Kafka has no limit by default; it fails when it runs out of memory.
DEFAULT_HELD_BYTES: Final = 512 * 1024 * 1024
_SPARE_S: Final = 1.0
_logger = logging.getLogger(__name__)


class MonitoredConnection(Protocol):
    """The part of a connection that the limits use."""

    @property
    def client_address(self) -> str: ...
    @property
    def active_s(self) -> float:
        """When bytes were last received or sent."""

    @property
    def is_awaiting_broker(self) -> bool: ...
    @property
    def held_bytes(self) -> int: ...
    def release_memory(self) -> None:
        """Release memory that is not in use."""

    def abort(self) -> None: ...


class ConnectionLimiter:
    """Admits connections and closes those that exceed a limit."""

    def __init__(self) -> None:
        self._by_address: Counter[str] = Counter()
        self._count = 0

    def rejection_reason(self, address: str, layers: Layers) -> str | None:
        """Return why a new connection from an address is rejected; None if it is admitted."""
        if self._count >= layers.integer("max.connections"):
            return "the limit max.connections is reached"
        limit = layers.integer("max.connections.per.ip")
        overrides, _ = layers.broker_value("max.connections.per.ip.overrides")
        for override in (overrides or "").split(","):
            host, separator, value = override.strip().rpartition(":")
            if separator and host == address and value.isdecimal():
                limit = int(value)
        if self._by_address[address] >= limit:
            return "the limit max.connections.per.ip is reached"
        return None

    def add(self, connection: MonitoredConnection) -> None:
        self._count += 1
        self._by_address[connection.client_address] += 1

    def remove(self, connection: MonitoredConnection) -> None:
        self._count -= 1
        self._by_address[connection.client_address] -= 1
        if not self._by_address[connection.client_address]:
            del self._by_address[connection.client_address]

    def enforce(
        self, connections: Iterable[MonitoredConnection], layers: Layers, now_s: float
    ) -> None:
        """Close idle connections, and those that use too much memory."""
        idle_s = layers.integer("connections.max.idle.ms") / 1000
        limit_bytes = layers.integer("queued.max.request.bytes")
        if limit_bytes <= 0:
            limit_bytes = DEFAULT_HELD_BYTES
        holders: list[tuple[int, MonitoredConnection]] = []
        total_bytes = 0
        for connection in list(connections):
            still_s = now_s - connection.active_s
            if still_s > idle_s >= 0 and not connection.is_awaiting_broker:
                _logger.info("closed the idle connection of %s", connection.client_address)
                connection.abort()
                continue
            if still_s > _SPARE_S:
                connection.release_memory()
            held_bytes = connection.held_bytes
            total_bytes += held_bytes
            holders.append((held_bytes, connection))
        if total_bytes > limit_bytes:
            _close_largest(holders, total_bytes - limit_bytes)


def _close_largest(holders: list[tuple[int, MonitoredConnection]], excess_bytes: int) -> None:
    for held_bytes, connection in sorted(holders, key=lambda pair: pair[0], reverse=True):
        if excess_bytes <= 0:
            return
        _logger.warning(
            "closed the connection of %s: its requests use %d bytes of memory, see "
            "queued.max.request.bytes",
            connection.client_address,
            held_bytes,
        )
        connection.abort()
        excess_bytes -= held_bytes
