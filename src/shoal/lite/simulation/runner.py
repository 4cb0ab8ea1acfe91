"""Many histories, on all cores.

Rules of this file:
- Histories do not know of each other: each follows from its own seed, and the same seeds give
  equal totals on any number of cores.
- Workers get small shares, so that none waits for another at the end. They are spawned,
  not forked: a fork inherits the locks of threads.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from shoal.lite.simulation.history import History
from shoal.lite.simulation.outcome import HistoryOutcome
from shoal.lite.simulation.parts import Parts
from shoal.lite.simulation.sabotage import SABOTAGES
from shoal.lite.simulation.seed_protocol import play_seed_protocol, seed_steps
from shoal.lite.simulation.setup import CrashModel, Setup, Step, make_setup, make_steps
from shoal.lite.simulation.shorten import shorten
from shoal.runtime.pools import end_with_parent

SEED_PROTOCOL = "seed-protocol"
SABOTAGE_NAMES = (*SABOTAGES, SEED_PROTOCOL)
_SHARE = 10
# The hardest planted bugs show after some ten histories.
SABOTAGE_SEEDS = range(500)
Trace = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """What kind of histories to play: how long, with which crashes, with which mistake."""

    events: int = 1000
    crash: CrashModel | None = None
    sabotage: str | None = None

    def setup(self, seed: int) -> Setup | None:
        """The cluster of a seed; None for the seed's protocol, which has one of its own."""
        if self.sabotage == SEED_PROTOCOL:
            return None
        shown_by = None if self.sabotage is None else SABOTAGES[self.sabotage][1]
        return make_setup(seed, self.crash or shown_by)

    def steps(self, seed: int) -> Iterable[Step]:
        setup = self.setup(seed)
        return seed_steps(seed, self.events) if setup is None else make_steps(setup)

    def play(
        self, seed: int, steps: Iterable[Step] | None = None, trace: Trace | None = None
    ) -> HistoryOutcome:
        """Play the history of a seed, or some of its steps."""
        if steps is None:
            steps = self.steps(seed)
        setup = self.setup(seed)
        if setup is None:
            return play_seed_protocol(seed, list(steps), trace=trace)
        parts = Parts() if self.sabotage is None else SABOTAGES[self.sabotage][0]()
        return History(setup, steps, parts=parts, trace=trace).play(self.events)

    def shorten_history(self, failed: HistoryOutcome) -> list[Step]:
        """As few steps of a failed history as still fail."""
        seed = failed.seed
        return shorten(list(self.steps(seed)), failed, lambda steps: self.play(seed, steps))


@dataclass(slots=True)
class Tally:
    """What many histories came to. Failures are those of the smallest seeds."""

    histories: int = 0
    events: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    # How many histories reached each count at all.
    reached: Counter[str] = field(default_factory=Counter)
    failures: list[HistoryOutcome] = field(default_factory=list)

    def add(self, outcome: HistoryOutcome) -> None:
        self.histories += 1
        self.events += outcome.events
        self.counters.update(outcome.counters)
        self.reached.update(name for name, count in outcome.counters.items() if count)
        if outcome.violation is not None:
            self.failures.append(outcome)

    def merge(self, other: "Tally") -> None:
        self.histories += other.histories
        self.events += other.events
        self.counters.update(other.counters)
        self.reached.update(other.reached)
        self.failures += other.failures
        self.failures.sort(key=lambda failure: failure.seed)


def play_share(kind: Kind, seeds: range) -> Tally:
    """Play some histories, one after the other."""
    tally = Tally()
    for seed in seeds:
        tally.add(kind.play(seed))
    return tally


def play_all(
    kind: Kind,
    seeds: range,
    *,
    jobs: int | None = None,
    most_failures: int = 1,
    progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Play the histories of all seeds, or until enough have failed."""
    jobs = jobs or os.cpu_count() or 1
    shares = _shares(seeds)
    total = Tally()
    if jobs == 1:
        for share in shares:
            total.merge(play_share(kind, share))
            progress(total)
            if len(total.failures) >= most_failures:
                break
        return total
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=end_with_parent) as pool:
        running: set[Future[Tally]] = set()
        while len(total.failures) < most_failures:
            for share in shares:
                running.add(pool.submit(play_share, kind, share))
                if len(running) > 2 * jobs:
                    break
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                total.merge(future.result())
            progress(total)
        for future in running:
            future.cancel()
    return total


def find_sabotages(events: int) -> dict[str, HistoryOutcome | None]:
    """The first history that shows each planted bug; None if no history does."""
    return {name: _find_first(Kind(events, sabotage=name)) for name in SABOTAGE_NAMES}


def _find_first(kind: Kind) -> HistoryOutcome | None:
    outcomes = (kind.play(seed) for seed in SABOTAGE_SEEDS)
    return next((outcome for outcome in outcomes if outcome.violation), None)


def _shares(seeds: range) -> Iterator[range]:
    for start in range(seeds.start, seeds.stop, _SHARE):
        yield range(start, min(start + _SHARE, seeds.stop))
