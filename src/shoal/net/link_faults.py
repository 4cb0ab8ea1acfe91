"""Faults on the link between two endpoints. Pure: no sockets, no clocks.

Rules of this file:
- An *endpoint* has several names at once (a zone, a cluster, a node, a role). A `LinkFault`
  applies to every connection from one of its `sources` to one of its `targets`. Several faults
  on one connection combine: cut if any of them cuts, the sum of all delays, the lowest bandwidth.
- TCP neither loses nor reorders bytes, so a `LinkQueue` does not either: held bytes stay in
  order, and so does the end of the stream. A changed delay also applies to bytes already held.
- A stall applies only to connections that existed when it began, as when a firewall drops its
  connection table: new connections pass.
- All connections that a fault applies to share its bandwidth.
- The caller passes the time, in seconds; it must not run backwards.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

EndpointNames = frozenset[str]
Bytes = bytes | memoryview

# A late timer may send at most this much of a limited link's time at once.
CATCH_UP_S: Final = 0.05
# A limited link sends pieces that take about this long, so that connections share it fairly.
PIECE_S: Final = 0.01
LEAST_PIECE_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class LinkEffect:
    """What a fault does to bytes in one direction."""

    is_cut: bool = False
    is_stalled: bool = False
    delay_ms: float = 0.0
    bytes_per_s: float | None = None


def combine_effects(effects: Iterable[LinkEffect]) -> LinkEffect:
    """Combine the effects of several faults on one link; a cut or stall overrides the others."""
    listed = list(effects)
    if any(effect.is_cut or effect.is_stalled for effect in listed):
        return LinkEffect(is_cut=True)
    rates = [effect.bytes_per_s for effect in listed if effect.bytes_per_s]
    return LinkEffect(
        delay_ms=sum(effect.delay_ms for effect in listed), bytes_per_s=min(rates, default=None)
    )


class LinkFault:
    """One effect between endpoints; `free_at_s` is the time until which its bandwidth is used."""

    def __init__(
        self, sources: Collection[str], targets: Collection[str], effect: LinkEffect, *, number: int
    ) -> None:
        self.sources = frozenset(sources)
        self.targets = frozenset(targets)
        self.effect = effect
        self.number = number
        self.free_at_s = 0.0

    def applies_to(
        self, source: EndpointNames, target: EndpointNames, *, created_after: int
    ) -> bool:
        """Whether the fault affects a connection between these endpoints.

        `created_after` is the number of the last fault that was added before the connection.
        """
        if self.effect.is_stalled and created_after >= self.number:
            return False
        return not self.sources.isdisjoint(source) and not self.targets.isdisjoint(target)

    def reserve_bandwidth(self, count: int, now: float) -> None:
        """Reserve the time that `count` bytes need on a limited link."""
        if self.effect.bytes_per_s:
            begins_s = max(self.free_at_s, now - CATCH_UP_S)
            self.free_at_s = begins_s + count / self.effect.bytes_per_s


class LinkFaults:
    """All faults that are active now."""

    def __init__(self) -> None:
        self._all: dict[int, LinkFault] = {}
        self._last = 0

    @property
    def last_fault_number(self) -> int:
        """The number of the newest fault: `created_after` of a connection that is made now."""
        return self._last

    def add(self, sources: Collection[str], targets: Collection[str], effect: LinkEffect) -> int:
        """Add a fault; returns the number to remove it by."""
        self._last += 1
        self._all[self._last] = LinkFault(sources, targets, effect, number=self._last)
        return self._last

    def remove(self, number: int) -> None:
        self._all.pop(number, None)

    def between(
        self, source: EndpointNames, target: EndpointNames, *, created_after: int
    ) -> tuple[LinkFault, ...]:
        """The faults that affect a connection from `source` to `target`."""
        return tuple(
            one
            for one in self._all.values()
            if one.applies_to(source, target, created_after=created_after)
        )


class LinkQueue:
    """One direction of one connection: holds bytes until the faults let them pass.

    `END` marks the end of the stream; it is queued like the bytes before it.
    """

    END: Final = b""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._held: deque[tuple[float, Bytes]] = deque()
        self._faults: tuple[LinkFault, ...] = ()
        self._is_blocked = False
        self._delay_s = 0.0
        self._limited: tuple[LinkFault, ...] = ()
        self._piece_bytes = 0

    @property
    def is_free(self) -> bool:
        """Whether bytes may bypass the queue."""
        return not self._faults and not self._held

    @property
    def is_blocked(self) -> bool:
        """Whether nothing passes until the faults change."""
        return self._is_blocked

    def set_faults(self, faults: Iterable[LinkFault]) -> None:
        self._faults = tuple(faults)
        effects = [one.effect for one in self._faults]
        self._is_blocked = any(effect.is_cut or effect.is_stalled for effect in effects)
        self._delay_s = sum(effect.delay_ms for effect in effects) / 1000
        self._limited = tuple(one for one in self._faults if one.effect.bytes_per_s)
        rates = [effect.bytes_per_s for effect in effects if effect.bytes_per_s]
        self._piece_bytes = max(LEAST_PIECE_BYTES, int(min(rates, default=0) * PIECE_S))

    def put(self, data: Bytes, now: float) -> None:
        self._held.append((now, data))
        self.held_bytes += len(data)

    def take(self, now: float) -> tuple[list[Bytes], float | None]:
        """The bytes that pass now, and when to call again; None: not before the faults change."""
        passed: list[Bytes] = []
        while self._held and not self._is_blocked:
            came_s, data = self._held[0]
            due_s = came_s + self._delay_s
            for fault in self._limited:
                due_s = max(due_s, fault.free_at_s)
            if due_s > now:
                return passed, due_s
            self._held.popleft()
            if self._limited and len(data) > self._piece_bytes:
                rest = memoryview(data)[self._piece_bytes :]
                data = memoryview(data)[: self._piece_bytes]
                self._held.appendleft((came_s, rest))
            for fault in self._limited:
                fault.reserve_bandwidth(len(data), now)
            self.held_bytes -= len(data)
            passed.append(data)
        return passed, None
