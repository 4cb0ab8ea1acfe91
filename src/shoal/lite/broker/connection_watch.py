"""What all clients of a broker together may cost it.

Rules of this file:
- Connections are limited: all (`max.connections`), and those from one address
  (`max.connections.per.ip`, with its overrides). One too many is closed as soon as it is made.
- A connection on which nothing moves for `connections.max.idle.ms` is closed: idle ones, frames
  that stopped half way, and clients that do not read their answers. One that waits for the
  broker, as in a long poll, is not idle.
- What requests hold in memory is limited altogether, by `queued.max.request.bytes`, or by
  default. Where it is more, the connections that hold most are closed, until it is not.
- Memory that a connection keeps for its next large frame is given back after a second.
"""

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

from shoal.lite.base.configs import Layers

LOOK_S: Final = 0.25
# Apache Kafka has no limit by default, and ends when its memory does.
DEFAULT_HELD_BYTES: Final = 512 * 1024 * 1024
_SPARE_S: Final = 1.0
_logger = logging.getLogger(__name__)


class Watched(Protocol):
    """What is to be known of a connection."""

    @property
    def client_address(self) -> str: ...
    @property
    def active_s(self) -> float:
        """When something last moved."""

    @property
    def is_waiting_for_us(self) -> bool: ...
    @property
    def held_bytes(self) -> int: ...
    def let_go(self) -> None:
        """Give back memory that is not needed now."""

    def abort(self) -> None: ...


class ConnectionWatch:
    """Admits connections and looks after them."""

    def __init__(self) -> None:
        self._by_address: Counter[str] = Counter()
        self._count = 0

    def objection(self, address: str, layers: Layers) -> str | None:
        """Why one more connection from an address is not admitted; None if it is."""
        if self._count >= layers.integer("max.connections"):
            return "max.connections is reached"
        limit = layers.integer("max.connections.per.ip")
        overrides, _ = layers.broker_value("max.connections.per.ip.overrides")
        for override in (overrides or "").split(","):
            host, separator, value = override.strip().rpartition(":")
            if separator and host == address and value.isdecimal():
                limit = int(value)
        if self._by_address[address] >= limit:
            return "max.connections.per.ip is reached"
        return None

    def entered(self, connection: Watched) -> None:
        self._count += 1
        self._by_address[connection.client_address] += 1

    def left(self, connection: Watched) -> None:
        self._count -= 1
        self._by_address[connection.client_address] -= 1
        if not self._by_address[connection.client_address]:
            del self._by_address[connection.client_address]

    def look(self, connections: Iterable[Watched], layers: Layers, now_s: float) -> None:
        """Close those that cost too much."""
        idle_s = layers.integer("connections.max.idle.ms") / 1000
        limit_bytes = layers.integer("queued.max.request.bytes")
        if limit_bytes <= 0:
            limit_bytes = DEFAULT_HELD_BYTES
        holders: list[tuple[int, Watched]] = []
        total_bytes = 0
        for connection in list(connections):
            still_s = now_s - connection.active_s
            if still_s > idle_s >= 0 and not connection.is_waiting_for_us:
                _logger.info("%s: closed, nothing has moved", connection.client_address)
                connection.abort()
                continue
            if still_s > _SPARE_S:
                connection.let_go()
            held_bytes = connection.held_bytes
            total_bytes += held_bytes
            holders.append((held_bytes, connection))
        if total_bytes > limit_bytes:
            _relieve(holders, total_bytes - limit_bytes)


def _relieve(holders: list[tuple[int, Watched]], excess_bytes: int) -> None:
    for held_bytes, connection in sorted(holders, key=lambda pair: pair[0], reverse=True):
        if excess_bytes <= 0:
            return
        _logger.warning(
            "%s: closed, its requests hold %d bytes", connection.client_address, held_bytes
        )
        connection.abort()
        excess_bytes -= held_bytes
