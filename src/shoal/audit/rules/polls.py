"""Steps of readers over a whole ledger, combined from walks.

A step from one offset of a reader to its next is a fall if the offset does not rise, and a jump if
it leaves out offsets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.audit.parts import TaskPart
from shoal.audit.read.walk import STEPS
from shoal.audit.tasks import Jump

Reader = tuple[Any, ...]  # as in walk.READERS


@dataclass(frozen=True)
class OffsetStep:
    """A step from one offset of a reader to its next."""

    reader: Reader
    origin: int
    landing: int


@dataclass
class OffsetSteps:
    """All falls and all jumps of the readers of one table."""

    falls: dict[Reader, int] = field(default_factory=dict)
    least_fall: dict[Reader, OffsetStep] = field(default_factory=dict)
    jumps: list[OffsetStep] = field(default_factory=list)
    spans: dict[Reader, tuple[int, int]] = field(default_factory=dict)

    def add_falls(self, reader: Reader, count: int, step: OffsetStep) -> None:
        """Add falls of a reader; `step` is the least of them."""
        if count:
            self.falls[reader] = self.falls.get(reader, 0) + count
            known = self.least_fall.get(reader, step)
            self.least_fall[reader] = min(known, step, key=lambda each: (each.origin, each.landing))

    def add_step(self, reader: Reader, origin: int, landing: int) -> None:
        """Add a step that no walk contains: from walk to walk, or from an assignment's start."""
        if landing <= origin:
            self.add_falls(reader, 1, OffsetStep(reader, origin, landing))
        elif landing > origin + 1:
            self.jumps.append(OffsetStep(reader, origin, landing))


def gather_steps(
    answers: Iterable[Iterable[TaskPart]], table: str, begins: Mapping[Reader, int]
) -> OffsetSteps:
    """Combine the walks of a table. `begins` has the start offset of each reader's assignment."""
    walks: dict[int, TaskPart] = {}
    jumps: dict[int, TaskPart] = {}
    for part in (part for parts in answers for part in parts):
        if part.kind == "walk" and part.label[0] == table:
            walks[part.label[1]] = part
        elif part.kind == "jumps":
            jumps[part.label] = part
    steps = OffsetSteps()
    last: dict[Reader, int] = {}
    for number in sorted(walks):
        readers = [tuple(names) for names in walks[number].label[2]]
        for reader, row in zip(readers, walks[number].values.reshape(-1, len(STEPS)), strict=True):
            first, end, lowest, highest, falls, fall_from, fall_to = row.tolist()
            if reader in last:
                steps.add_step(reader, last[reader], first)
            elif reader in begins:  # treated as if it had read the offset before its start
                steps.add_step(reader, begins[reader] - 1, first)
            steps.add_falls(reader, falls, OffsetStep(reader, fall_from, fall_to))
            last[reader] = end
            low, high = steps.spans.get(reader, (lowest, highest))
            steps.spans[reader] = (min(low, lowest), max(high, highest))
        if number in jumps:
            steps.jumps.extend(
                OffsetStep(readers[reader], origin, landing)
                for reader, origin, landing in jumps[number].values.reshape(-1, 3).tolist()
            )
    return steps


def number_jumps(steps: OffsetSteps) -> list[Jump]:
    """Return the jumps of consumers; their number is their index in `steps.jumps`."""
    return [
        Jump(number, step.reader[3], step.reader[4], step.origin, step.landing)
        for number, step in enumerate(steps.jumps)
    ]
