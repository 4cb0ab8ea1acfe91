"""The model of faults on links, between clients and brokers as between nodes. Pure.

Two appliers use it: `shoal.net.proxy` on the bytes of TCP connections, and
`shoal.lite.base.hooks.links` inside a node of Kafka Lite, on messages.

Rules of this file:
- A fault affects one direction. Several faults on one connection combine: cut if any of them cuts,
  the sum of all delays, the lowest bandwidth.
- TCP neither loses nor reorders bytes, so a `LinkQueue` does not either: held items stay in order,
  and so does the end of the stream. After a change of the faults, held items are scheduled again.
- An item arrives when its last byte does.
- All connections that a fault applies to share its bandwidth.
- An *endpoint* has several names at once (a zone, a cluster, a node, a role). A fault of
  `LinkFaults` applies to every connection from one of its sources to one of its targets.
- A stall applies only to connections that existed when it began, as when a firewall drops its
  connection table: new connections pass.
- The caller passes the time, in seconds; it must not run backwards.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

EndpointNames = frozenset[str]
Bytes = bytes | memoryview
ItemT = TypeVar("ItemT")

# A late timer may send at most this much of a limited link's time at once.
CATCH_UP_S: Final = 0.05
# A limited link sends pieces that take about this long, so that connections share it fairly.
PIECE_S: Final = 0.01
LEAST_PIECE_BYTES: Final = 512


class LinkEffect(NamedTuple):
    """What a fault does to data in one direction."""

    is_cut: bool = False
    is_stalled: bool = False
    delay_ms: float = 0
    bytes_per_s: float = 0  # 0: no limit

    @property
    def is_blocking(self) -> bool:
        """Whether nothing passes."""
        return self.is_cut or self.is_stalled


NO_EFFECT: Final = LinkEffect()


def combine_effects(effects: Iterable[LinkEffect]) -> LinkEffect:
    """Combine the effects of several faults on one link; a cut or stall overrides the others."""
    listed = list(effects)
    if any(effect.is_blocking for effect in listed):
        return LinkEffect(is_cut=True)
    return LinkEffect(
        delay_ms=sum(effect.delay_ms for effect in listed),
        bytes_per_s=min((one.bytes_per_s for one in listed if one.bytes_per_s), default=0),
    )


class LinkFault:
    """One effect; `free_at_s` is the time until which its bandwidth is used."""

    def __init__(self, effect: LinkEffect) -> None:
        self.effect = effect
        self.free_at_s = 0.0

    def reserve_bandwidth(self, size_bytes: int, begins_s: float) -> float:
        """Reserve the time that `size_bytes` take on a limited link; returns its end."""
        self.free_at_s = begins_s + size_bytes / self.effect.bytes_per_s
        return self.free_at_s


class _NamedFault(NamedTuple):
    """A fault between endpoints."""

    sources: EndpointNames
    targets: EndpointNames
    fault: LinkFault


class LinkFaults:
    """All faults between named endpoints that are active now."""

    def __init__(self) -> None:
        self._all: dict[int, _NamedFault] = {}
        self._last = 0

    @property
    def last_fault_number(self) -> int:
        """The number of the newest fault: `created_after` of a connection that is made now."""
        return self._last

    def add(self, sources: Collection[str], targets: Collection[str], effect: LinkEffect) -> int:
        """Add a fault; returns the number to remove it by."""
        self._last += 1
        ends = frozenset(sources), frozenset(targets)
        self._all[self._last] = _NamedFault(*ends, LinkFault(effect))
        return self._last

    def remove(self, number: int) -> None:
        self._all.pop(number, None)

    def between(
        self, source: EndpointNames, target: EndpointNames, *, created_after: int
    ) -> tuple[LinkFault, ...]:
        """The faults that affect a connection from `source` to `target`.

        `created_after` is the number of the last fault that was added before the connection.
        """
        return tuple(
            one.fault
            for number, one in self._all.items()
            if not one.sources.isdisjoint(source)
            and not one.targets.isdisjoint(target)
            and not (one.fault.effect.is_stalled and created_after >= number)
        )


class LinkQueue(Generic[ItemT]):
    """One direction of one connection: holds items until the faults let them pass.

    With `split`, which cuts an item at a size, items may pass a limited link in pieces.
    """

    def __init__(self, split: Callable[[ItemT, int], tuple[ItemT, ItemT]] | None = None) -> None:
        self.held_bytes = 0
        self._split = split
        self._held: deque[tuple[float, int, ItemT]] = deque()
        self._arrives_s: float | None = None  # of the first item, once it is being sent
        self._faults: tuple[LinkFault, ...] = ()
        self._is_blocked = False
        self._delay_s = 0.0
        self._limited: tuple[LinkFault, ...] = ()
        self._piece_bytes = 0

    @property
    def is_free(self) -> bool:
        """Whether data may bypass the queue."""
        return not self._faults and not self._held

    @property
    def is_blocked(self) -> bool:
        """Whether nothing passes until the faults change."""
        return self._is_blocked

    def set_faults(self, faults: Iterable[LinkFault]) -> None:
        before, self._faults = self._faults, tuple(faults)
        if self._faults == before:
            return
        combined = combine_effects(one.effect for one in self._faults)
        self._is_blocked = combined.is_cut
        self._delay_s = combined.delay_ms / 1000
        self._limited = tuple(one for one in self._faults if one.effect.bytes_per_s)
        self._piece_bytes = max(LEAST_PIECE_BYTES, int(combined.bytes_per_s * PIECE_S))
        self._arrives_s = None

    def put(self, item: ItemT, size_bytes: int, now: float) -> None:
        self._held.append((now, size_bytes, item))
        self.held_bytes += size_bytes

    def take(self, now: float) -> tuple[list[ItemT], float | None]:
        """The items that arrive now, and when to call again; None: not before the faults change."""
        passed: list[ItemT] = []
        while self._held and not self._is_blocked:
            if self._arrives_s is None:
                begins_s = self._held[0][0] + self._delay_s
                for fault in self._limited:
                    begins_s = max(begins_s, fault.free_at_s)
                if begins_s > now:
                    return passed, begins_s
                self._arrives_s = self._send_first(max(begins_s, now - CATCH_UP_S))
            if self._arrives_s > now:
                return passed, self._arrives_s
            _, size_bytes, item = self._held.popleft()
            self._arrives_s = None
            self.held_bytes -= size_bytes
            passed.append(item)
        return passed, None

    def _send_first(self, begins_s: float) -> float:
        """Send the first item, or its first piece; returns when its last byte arrives."""
        if not self._limited:
            return begins_s
        came_s, size_bytes, item = self._held[0]
        if self._split is not None and size_bytes > self._piece_bytes:
            piece, rest = self._split(item, self._piece_bytes)
            self._held[0] = (came_s, size_bytes - self._piece_bytes, rest)
            size_bytes = self._piece_bytes
            self._held.appendleft((came_s, size_bytes, piece))
        return max(fault.reserve_bandwidth(size_bytes, begins_s) for fault in self._limited)
