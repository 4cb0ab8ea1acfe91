"""How a history went."""

from collections import Counter
from dataclasses import dataclass

from shoal.lite.simulation.errors import Violation


@dataclass(frozen=True, slots=True)
class HistoryOutcome:
    """`violation` is None if all was well. Counters say what was reached."""

    seed: int
    events: int
    counters: Counter[str]
    violation: Violation | None = None
    # The steps that were taken before it ended.
    steps_taken: int = 0
