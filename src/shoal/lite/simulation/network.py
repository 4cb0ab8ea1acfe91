"""Links between nodes that delay, lose, copy and reorder messages, and can be cut one way.

Each link has a source of chance of its own, so what happens on one does not depend on how much
is said on another.
"""

from collections.abc import Iterable
from random import Random

from shoal.lite.simulation.setup import CALM, Weather

_SALT = 0x11E7


class Network:
    """Decides when a message arrives, if it does."""

    def __init__(self, seed: int) -> None:
        self.weather: Weather = CALM
        self._seed = seed
        self._links: dict[tuple[int, int], Random] = {}
        # Until when nothing gets through, by source and target.
        self._cuts: dict[tuple[int, int], int] = {}
        self.lost = 0

    def delays_ms(self, source: int, target: int, now_ms: int, *, may_copy: bool) -> list[int]:
        """After how long a message arrives: once, not at all, or, if it may be copied, twice."""
        link = (source, target)
        if self._cuts and self._cuts.get(link, 0) > now_ms:
            self.lost += 1
            return []
        random = self._links.get(link)
        if random is None:
            random = self._links[link] = Random(self._seed * 1_000_003 + source * 1009 + target)
        weather = self.weather
        chance = random.random()
        if chance < weather.loss:
            self.lost += 1
            return []
        delays = [self._delay_ms(random)]
        if may_copy and chance > 1 - weather.duplication:
            delays.append(self._delay_ms(random))
        return delays

    def _delay_ms(self, random: Random) -> int:
        weather = self.weather
        delay_ms = 1 + int(random.random() * weather.delay_ms)
        if weather.lateness and random.random() < weather.lateness:
            delay_ms += int(random.random() * weather.late_ms)
        return delay_ms

    def disconnect(self, links: Iterable[tuple[int, int]], until_ms: int) -> None:
        for link in links:
            self._cuts[link] = max(self._cuts.get(link, 0), until_ms)

    def heal(self) -> None:
        """End all cuts, and lose no message."""
        self._cuts.clear()
        self.weather = CALM
