"""A failing history with as few steps as possible.

Greedy: steps are left out, first many at a time and then one by one, as long as the same
invariant still fails. Steps do not depend on each other, but chance does, so what is left is a
failure of the same kind, and not always the very same one.
"""

from collections.abc import Callable, Sequence

from shoal.lite.simulation.outcome import HistoryOutcome
from shoal.lite.simulation.setup import Step

Play = Callable[[Sequence[Step]], HistoryOutcome]
# How often a history is played again at most.
MOST_TRIES = 400


def shorten(steps: Sequence[Step], first: HistoryOutcome, play: Play) -> list[Step]:
    """As few of the steps as are found to fail in the same way as `first` did."""
    violation = first.violation
    if violation is None:
        return list(steps)
    # Those that were not taken cannot matter.
    kept = list(steps[: first.steps_taken])
    tries = 0
    size = max(1, len(kept) // 2)
    while tries < MOST_TRIES:
        place = 0
        is_shorter = False
        while place < len(kept) and tries < MOST_TRIES:
            candidate = kept[:place] + kept[place + size :]
            tries += 1
            outcome = play(candidate)
            again = outcome.violation
            if again is not None and again.invariant == violation.invariant:
                kept = candidate[: outcome.steps_taken]
                is_shorter = True
            else:
                place += size
        if size == 1 and not is_shorter:
            break
        size = max(1, size // 2)
    return kept
