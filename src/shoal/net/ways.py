"""What happens to bytes on their way between two places: pure, no sockets, no clocks.

Rules of this file:
- A *place* goes by several names at once (a zone, a cluster, a node, a role). A `Hindrance`
  holds for every connection that leads from one of its `sources` to one of its `targets`;
  several add up: cut if one cuts, the sum of all delays, the narrowest of all bandwidths.
- TCP loses nothing and changes no order, so neither does a lane: what is held back stays in
  line, and so does the end of a connection. A changed delay holds for what is held already.
- A stall holds only for connections that were there when it began, as when a box on the way
  forgets its flows: new ones pass.
- All connections that a hindrance holds for share its bandwidth.
- Time is whatever the caller's clock says, in seconds; it must not run backwards.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

Names = frozenset[str]
Bytes = bytes | memoryview

# A timer that comes late may make up for this much of a narrow link's time.
CATCH_UP_S: Final = 0.05
# A narrow link takes pieces of about this much of its time, so that its users take turns.
TURN_S: Final = 0.01
LEAST_PIECE_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Effect:
    """How bytes fare in one direction."""

    is_cut: bool = False
    is_stalled: bool = False
    delay_ms: float = 0.0
    bytes_per_s: float | None = None


def together(effects: Iterable[Effect]) -> Effect:
    """What several do to one link; nothing else counts where nothing passes."""
    listed = list(effects)
    if any(effect.is_cut or effect.is_stalled for effect in listed):
        return Effect(is_cut=True)
    rates = [effect.bytes_per_s for effect in listed if effect.bytes_per_s]
    return Effect(
        delay_ms=sum(effect.delay_ms for effect in listed), bytes_per_s=min(rates, default=None)
    )


class Hindrance:
    """One effect between places, and how long its bandwidth is spoken for."""

    def __init__(
        self, sources: Collection[str], targets: Collection[str], effect: Effect, *, number: int
    ) -> None:
        self.sources = frozenset(sources)
        self.targets = frozenset(targets)
        self.effect = effect
        self.number = number
        self.free_at_s = 0.0

    def holds_for(self, source: Names, target: Names, *, born: int) -> bool:
        """Whether it is in the way of a connection that was made as number `born`."""
        if self.effect.is_stalled and born >= self.number:
            return False
        return not self.sources.isdisjoint(source) and not self.targets.isdisjoint(target)

    def spend(self, count: int, now: float) -> None:
        """Take the time that so many bytes need on a narrow link."""
        if self.effect.bytes_per_s:
            begins_s = max(self.free_at_s, now - CATCH_UP_S)
            self.free_at_s = begins_s + count / self.effect.bytes_per_s


class Hindrances:
    """All that is in the way now."""

    def __init__(self) -> None:
        self._all: dict[int, Hindrance] = {}
        self._last = 0

    @property
    def last_number(self) -> int:
        """What a connection that is made now is born as."""
        return self._last

    def add(self, sources: Collection[str], targets: Collection[str], effect: Effect) -> int:
        """The number by which it can be removed."""
        self._last += 1
        self._all[self._last] = Hindrance(sources, targets, effect, number=self._last)
        return self._last

    def remove(self, number: int) -> None:
        self._all.pop(number, None)

    def between(self, source: Names, target: Names, *, born: int) -> tuple[Hindrance, ...]:
        return tuple(one for one in self._all.values() if one.holds_for(source, target, born=born))


class Lane:
    """One direction of one connection: bytes go in, and come out when they may.

    `END` stands for the end of the stream; it waits in line like everything else.
    """

    END: Final = b""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._held: deque[tuple[float, Bytes]] = deque()
        self._hindrances: tuple[Hindrance, ...] = ()
        self._is_shut = False
        self._delay_s = 0.0
        self._narrow: tuple[Hindrance, ...] = ()
        self._piece_bytes = 0

    @property
    def is_free(self) -> bool:
        """Whether bytes may pass by without being put in line."""
        return not self._hindrances and not self._held

    @property
    def is_shut(self) -> bool:
        """Whether nothing passes, however long one waits."""
        return self._is_shut

    def change(self, hindrances: Iterable[Hindrance]) -> None:
        self._hindrances = tuple(hindrances)
        effects = [one.effect for one in self._hindrances]
        self._is_shut = any(effect.is_cut or effect.is_stalled for effect in effects)
        self._delay_s = sum(effect.delay_ms for effect in effects) / 1000
        self._narrow = tuple(one for one in self._hindrances if one.effect.bytes_per_s)
        rates = [effect.bytes_per_s for effect in effects if effect.bytes_per_s]
        self._piece_bytes = max(LEAST_PIECE_BYTES, int(min(rates, default=0) * TURN_S))

    def put(self, data: Bytes, now: float) -> None:
        self._held.append((now, data))
        self.held_bytes += len(data)

    def take(self, now: float) -> tuple[list[Bytes], float | None]:
        """What passes now, and when to ask again; None: not before something changes."""
        passed: list[Bytes] = []
        while self._held and not self._is_shut:
            came_s, data = self._held[0]
            due_s = came_s + self._delay_s
            for narrow in self._narrow:
                due_s = max(due_s, narrow.free_at_s)
            if due_s > now:
                return passed, due_s
            self._held.popleft()
            if self._narrow and len(data) > self._piece_bytes:
                rest = memoryview(data)[self._piece_bytes :]
                data = memoryview(data)[: self._piece_bytes]
                self._held.appendleft((came_s, rest))
            for narrow in self._narrow:
                narrow.spend(len(data), now)
            self.held_bytes -= len(data)
            passed.append(data)
        return passed, None
