"""Histories of the simulation that are about the quorum: its voters, and how hostile its world is.

The controllers are the nodes of production, and the judge of the simulation knows the invariants;
here is only what happens to them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from shoal.lite.raft.config import RaftConfig
from shoal.lite.simulation.history import History
from shoal.lite.simulation.outcome import HistoryOutcome
from shoal.lite.simulation.parts import Parts
from shoal.lite.simulation.setup import (
    HASTY_RAFT,
    RAFT,
    CrashModel,
    Focus,
    Weather,
    draw_steps,
    make_setup,
)

ROUGH = Weather(loss=0.05, duplication=0.05, delay_ms=60, lateness=0.05, late_ms=2000)
# How often each step is taken, in relation to the others.
ORDINARY: Mapping[str, float] = {
    "send": 20,
    "snapshot": 4,
    "move-leader": 10,
    "change-settings": 10,
    "kill-controller": 4,
    "kill-writing-controller": 4,
    "cut-controller": 4,
    "cut-link": 2,
    "resign-controller": 1,
}
_STEPS_PER_S = 30


@dataclass(frozen=True, slots=True)
class QuorumWorld:
    """A quorum, and what is done to it."""

    voters: int = 3
    observers: int = 0
    weather: Weather = ROUGH
    raft: RaftConfig = RAFT
    weights: Mapping[str, float] = field(default_factory=lambda: ORDINARY)

    def play(
        self,
        seed: int,
        events: int,
        parts: type[Parts] = Parts,
        trace: Callable[[str], None] | None = None,
    ) -> HistoryOutcome:
        """Play the history of a seed, and let the quorum find itself again."""
        setup = replace(
            make_setup(seed, CrashModel.PROCESS),
            focus=Focus.QUORUM,
            controllers=self.voters,
            observers=self.observers,
            brokers=1,
            partitions=1,
            replication_factor=1,
            min_insync=1,
            weather=self.weather,
            raft=self.raft,
        )
        steps = draw_steps(Random(seed), self.weights, _STEPS_PER_S)
        return History(setup, steps, parts=parts(), trace=trace).play(events)

    def first_violation(
        self, seeds: range, events: int, parts: type[Parts] = Parts
    ) -> HistoryOutcome | None:
        """The first history that violates an invariant."""
        outcomes = (self.play(seed, events, parts) for seed in seeds)
        return next((outcome for outcome in outcomes if outcome.violation is not None), None)


# Leaders are hunted: each is cut off or killed soon after its election.
HUNTED = QuorumWorld(
    raft=replace(RAFT, fetch_max_bytes=1),
    weights={
        "send": 10,
        "move-leader": 6,
        "change-settings": 6,
        "kill-active-controller": 10,
        "kill-writing-controller": 6,
        "pause-active-controller": 4,
        "cut-controller": 6,
        "resign-controller": 2,
    },
)
# Messages are so slow that several ask for an election at once, and starts are quick.
HASTY = QuorumWorld(
    weather=Weather(loss=0.05, duplication=0.05, delay_ms=70, lateness=0.1, late_ms=2000),
    raft=replace(HASTY_RAFT, fetch_max_bytes=1),
    weights={"send": 4, "bounce-voter": 200, "kill-active-controller": 8, "resign-controller": 8},
)
_CHANGING = {**ORDINARY, "change-voters": 15}
WORLDS = {
    "ordinary": QuorumWorld(),
    "hunted leaders": HUNTED,
    "hasty elections": HASTY,
    "five voters, two observers": QuorumWorld(
        voters=5, observers=2, weights={**ORDINARY, "snapshot": 10}
    ),
    "two voters": QuorumWorld(voters=2, observers=1, weights={**ORDINARY, "snapshot": 12}),
    "changing voters": QuorumWorld(voters=3, observers=2, weights=_CHANGING),
    "from one voter on": QuorumWorld(voters=1, observers=2, weights=_CHANGING),
}
