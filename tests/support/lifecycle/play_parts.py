"""What a play is made of: topics with what was sent to them, mirrors, and how both are laid out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from support.lifecycle.cells import Cell, Delivery
from support.lifecycle.judging import Fate
from support.lifecycle.mirrors import MirrorProcess

REFRESH_S: Final = 0.5
# Long enough for a whole event between two refreshes.
SLOW_REFRESH_S: Final = 5.0
# On these brokers are the topics of an event, and the healthy ones, where it matters.
VICTIM_BROKER, OTHER_BROKER, HEALTHY_BROKER = 1, 2, 3


@dataclass
class Tracked:
    """A topic, what was sent to it in which order, and what became of it."""

    topic: str
    partitions: int = 1
    sent: dict[int, list[str]] = field(default_factory=dict)
    fates: dict[int, dict[str, Fate]] = field(default_factory=dict)

    def next_records(self, generation: str, count: int) -> Iterator[tuple[tuple[str, int], str]]:
        """So many records for each partition, named after a generation."""
        for number in range(self.partitions):
            sent = self.sent.setdefault(number, [])
            for _ in range(count):
                identity = f"{generation}-{len(sent)}"
                sent.append(identity)
                yield (self.topic, number), identity

    def mark(self, fate: Fate, identities: Iterable[str], number: int = 0) -> None:
        self.fates.setdefault(number, {}).update(dict.fromkeys(identities, fate))


@dataclass
class Victim(Tracked):
    """The topic of one cell."""

    cell: Cell | None = None


@dataclass
class Team:
    """The mirror of one delivery, its topics, and a healthy one beside them."""

    delivery: Delivery
    mirror: MirrorProcess
    victims: list[Victim]
    healthy: Tracked

    @property
    def checkpoint_topic(self) -> str:
        return f"__shoal_mirror_{self.mirror.name}"


@dataclass(frozen=True)
class Layout:
    """How topics lie on brokers, and what else an event needs from the start."""

    replicas: tuple[int, ...] = (VICTIM_BROKER,)
    configs: tuple[tuple[str, str], ...] = ()
    # Where the target's topics lie; None leaves it to the mirror to make them.
    target_replicas: tuple[int, ...] | None = None
    target_configs: tuple[tuple[str, str], ...] = ()
    checkpoint_replicas: tuple[int, ...] | None = None
    lone: str = ""  # the side which has a cluster of its own: source or target
    hides_ids: str = ""  # the side that seems to be older than topic ids
    options: tuple[str, ...] = ()  # of the mirror
    checks_times: bool = True
    patience_s: float = 25.0
