"""Steps of readers over a whole ledger: falls and jumps, put together from walks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.audit.parts import Part
from shoal.audit.read.walk import STEPS
from shoal.audit.tasks import Jump

Reader = tuple[Any, ...]  # as in walk.READERS


@dataclass(frozen=True)
class Step:
    """From one offset of a reader to its next."""

    reader: Reader
    origin: int
    landing: int


@dataclass
class Steps:
    """All falls, and all jumps that leave out an offset, of the readers of one table."""

    falls: dict[Reader, int] = field(default_factory=dict)
    least_fall: dict[Reader, Step] = field(default_factory=dict)
    jumps: list[Step] = field(default_factory=list)
    spans: dict[Reader, tuple[int, int]] = field(default_factory=dict)

    def fall(self, reader: Reader, count: int, step: Step) -> None:
        """Falls of a reader, and the least of them."""
        if count:
            self.falls[reader] = self.falls.get(reader, 0) + count
            held = self.least_fall.get(reader, step)
            self.least_fall[reader] = min(held, step, key=lambda each: (each.origin, each.landing))

    def step(self, reader: Reader, origin: int, landing: int) -> None:
        """A step that no walk covers: from one to the next, or from an assignment's start."""
        if landing <= origin:
            self.fall(reader, 1, Step(reader, origin, landing))
        elif landing > origin + 1:
            self.jumps.append(Step(reader, origin, landing))


def gather_steps(
    answers: Iterable[Iterable[Part]], table: str, begins: Mapping[Reader, int]
) -> Steps:
    """Put walks of a table together. `begins` tells where readers were told to begin."""
    walks: dict[int, Part] = {}
    jumps: dict[int, Part] = {}
    for part in (part for parts in answers for part in parts):
        if part.kind == "walk" and part.label[0] == table:
            walks[part.label[1]] = part
        elif part.kind == "jumps":
            jumps[part.label] = part
    steps = Steps()
    last: dict[Reader, int] = {}
    for number in sorted(walks):
        readers = [tuple(names) for names in walks[number].label[2]]
        for reader, row in zip(readers, walks[number].values.reshape(-1, len(STEPS)), strict=True):
            first, end, lowest, highest, falls, fall_from, fall_to = row.tolist()
            if reader in last:
                steps.step(reader, last[reader], first)
            elif reader in begins:  # as if it had read the offset before its start
                steps.step(reader, begins[reader] - 1, first)
            steps.fall(reader, falls, Step(reader, fall_from, fall_to))
            last[reader] = end
            low, high = steps.spans.get(reader, (lowest, highest))
            steps.spans[reader] = (min(low, lowest), max(high, highest))
        if number in jumps:
            steps.jumps.extend(
                Step(readers[reader], origin, landing)
                for reader, origin, landing in jumps[number].values.reshape(-1, 3).tolist()
            )
    return steps


def numbered_jumps(steps: Steps) -> list[Jump]:
    """Jumps of consumers, numbered by their place in `steps.jumps`."""
    return [
        Jump(number, step.reader[3], step.reader[4], step.origin, step.landing)
        for number, step in enumerate(steps.jumps)
    ]
