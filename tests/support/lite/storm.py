"""A storm over a cluster, from a seed: which fault comes next, and when. Pure.

Rules of this file:
- Anything may happen to anything at any time, but for one limit: of brokers that lost their
  disk, no more are without all data again at once than the profile promises to survive.
- The more is broken, the likelier is that something is mended, so that there are moments in
  which the cluster works; but never surely.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple


class Act(NamedTuple):
    """What is done, and to what; the names are those of `LiteCluster`'s methods, or our own."""

    what: str
    values: tuple[int, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.what, *map(str, self.values)])


@dataclass
class Storm:
    """What has been done so far, and what comes next."""

    random: Random
    brokers: tuple[int, ...]
    partitions: int
    # How many disks may be lost at once.
    disks: int = 0
    # Controllers that are processes of their own, if any.
    controllers: tuple[int, ...] = ()
    down: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)
    is_hindered: bool = False
    # Brokers that lost their disk, until they are told to have everything again.
    empty: set[int] = field(default_factory=set)

    @property
    def nodes(self) -> tuple[int, ...]:
        return self.brokers + self.controllers

    def pause_s(self) -> float:
        """How long until the next act: mostly short, sometimes long enough to recover."""
        return self.random.choice((0.02, 0.1, 0.3, 0.6, 1.0, 2.5))

    def next(self) -> Act:
        """The next act; it counts as done."""
        broken = len(self.down | self.paused) + self.is_hindered
        if broken and self.random.random() < broken / (len(self.nodes) + 1):
            return self._mending()
        return self.random.choices(
            [act for act, _ in _HARM], weights=[weight for _, weight in _HARM]
        )[0](self)

    def calm(self) -> list[Act]:
        """What mends everything."""
        acts = [Act("heal")]
        acts += [Act("resume", (node,)) for node in sorted(self.paused)]
        acts += [Act("restart", (node,)) for node in sorted(self.down)]
        self.down.clear()
        self.paused.clear()
        self.is_hindered = False
        return acts

    def _mending(self) -> Act:
        choices = [Act("resume", (node,)) for node in sorted(self.paused)]
        choices += [Act("restart", (node,)) for node in sorted(self.down)]
        choices += [Act("heal")] if self.is_hindered else []
        act = self.random.choice(choices)
        if act.what == "heal":
            self.is_hindered = False
        else:
            self.down.discard(act.values[0])
            self.paused.discard(act.values[0])
        return act

    # Harm

    def kill(self) -> Act:
        return self._end("kill")

    def stop(self) -> Act:
        return self._end("stop_node")

    def _end(self, how: str) -> Act:
        node = self.random.choice(self.nodes)
        self.down.add(node)
        self.paused.discard(node)
        return Act(how, (node,))

    def pause(self) -> Act:
        node = self.random.choice(self.nodes)
        if node in self.down:
            return self.kill()
        self.paused.add(node)
        return Act("pause", (node,))

    def restart(self) -> Act:
        node = self.random.choice(self.nodes)
        self.down.discard(node)
        self.paused.discard(node)
        return Act("restart", (node,))

    def cut(self) -> Act:
        self.is_hindered = True
        source, target = self.random.sample(self.nodes, 2)
        return Act("cut_link", (source, target, self.random.randrange(2)))

    def slow(self) -> Act:
        self.is_hindered = True
        source, target = self.random.sample(self.nodes, 2)
        return Act("slow_link", (source, target, self.random.choice((5, 50, 300))))

    def isolate(self) -> Act:
        self.is_hindered = True
        return Act("isolate", (self.random.choice(self.nodes),))

    def move_leader(self) -> Act:
        return Act("move_leader", (self._partition(), self.random.choice(self.brokers)))

    def shrink(self) -> Act:
        return Act("shrink_in_sync", (self._partition(), self.random.choice(self.brokers)))

    def wipe(self) -> Act:
        broker = self.random.choice(self.brokers)
        if broker not in self.empty and len(self.empty) >= self.disks:
            return self.kill()
        self.empty.add(broker)
        self.down.discard(broker)
        self.paused.discard(broker)
        return Act("wipe", (broker,))

    def crash(self) -> Act:
        self.down.clear()
        self.paused.clear()
        self.is_hindered = False
        return Act("crash")

    def _partition(self) -> int:
        return self.random.randrange(self.partitions)


_HARM: list[tuple[Callable[[Storm], Act], int]] = [
    (Storm.kill, 6),
    (Storm.stop, 2),
    (Storm.pause, 4),
    (Storm.restart, 2),
    (Storm.cut, 4),
    (Storm.slow, 1),
    (Storm.isolate, 2),
    (Storm.move_leader, 2),
    (Storm.shrink, 2),
    (Storm.wipe, 2),
    (Storm.crash, 1),
]
