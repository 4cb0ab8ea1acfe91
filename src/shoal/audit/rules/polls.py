"""Steps of readers over a whole ledger, combined from walks.

A step from one offset of a reader to its next is a fall if the offset does not rise, and a jump if
it leaves out offsets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from shoal.audit.parts import PartKind, TaskPart
from shoal.audit.read.walk import READERS, GroupReaderKey, LogReaderKey
from shoal.audit.tasks import Jump

Reader = TypeVar("Reader", GroupReaderKey, LogReaderKey)


@dataclass(frozen=True)
class OffsetStep(Generic[Reader]):
    """A step from one offset of a reader to its next."""

    reader: Reader
    origin: int
    landing: int


@dataclass
class OffsetSteps(Generic[Reader]):
    """All falls and all jumps of the readers of one table."""

    falls: dict[Reader, int] = field(default_factory=dict)
    least_fall: dict[Reader, OffsetStep[Reader]] = field(default_factory=dict)
    jumps: list[OffsetStep[Reader]] = field(default_factory=list)
    spans: dict[Reader, tuple[int, int]] = field(default_factory=dict)

    def add_falls(self, reader: Reader, count: int, step: OffsetStep[Reader]) -> None:
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
    answers: Iterable[Iterable[TaskPart]], readers_of: type[Reader], begins: Mapping[Reader, int]
) -> OffsetSteps[Reader]:
    """Combine the walks of these readers. `begins` has the start offset of their assignments."""
    walks: dict[int, TaskPart] = {}
    jumps: dict[int, TaskPart] = {}
    for part in (part for parts in answers for part in parts):
        if part.kind == PartKind.WALK:
            table, number, _ = part.label
            if READERS[table] is readers_of:
                walks[number] = part
        elif part.kind == PartKind.JUMPS:
            jumps[part.label] = part
    steps: OffsetSteps[Reader] = OffsetSteps()
    last: dict[Reader, int] = {}
    for number in sorted(walks):
        _, _, named = walks[number].label
        readers = [readers_of(*names) for names in named]
        for reader, row in zip(readers, walks[number].rows.tolist(), strict=True):
            first, end, lowest, highest, falls, fall_from, fall_to = row
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
                for reader, origin, landing in jumps[number].rows.tolist()
            )
    return steps


def number_jumps(steps: OffsetSteps[GroupReaderKey]) -> list[Jump]:
    """Return the jumps of consumers; their number is their index in `steps.jumps`."""
    return [
        Jump(number, step.reader.topic, step.reader.partition, step.origin, step.landing)
        for number, step in enumerate(steps.jumps)
    ]
