"""Quorums in a hostile world keep their promises; saboteurs are found out.

Each sabotage is a bug that a Raft can have. It lives here, as a patch of one method, so that
the proof does not need a switch in the code that it proves.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from shoal.lite.raft.election import Ballot
from shoal.lite.raft.leader import RaftLeader
from shoal.lite.raft.log import RaftLog
from shoal.lite.raft.model import RaftEpochEnd, RaftSnapshotId, StoredState
from support.raft.world import Weather, World, first_violation

# Leaders are hunted: each is cut off or killed soon after its election.
HUNTED = Weather(
    hunt=0.9,
    crash=0.05,
    down_ms=900,
    late_ms=800,
    torn=0.3,
    fetch_max_bytes=1,
    propose=0.1,
    snapshot=0,
    cut=0.03,
    cut_ms=2000,
)
# Messages are so slow that several ask for an election at once, and starts are quick.
HASTY = Weather(
    delay_ms=300,
    lateness=0.1,
    crash=0.15,
    down_ms=100,
    cut=0,
    fetch_max_bytes=1,
    propose=0.02,
    snapshot=0,
)
WEATHERS = {
    "ordinary": Weather(),
    "hunted leaders": HUNTED,
    "hasty elections": HASTY,
    "five voters, two observers": Weather(voters=5, observers=2, snapshot=0.02),
    "two voters": Weather(voters=2, observers=1, snapshot=0.03),
    "changing voters": Weather(voters=3, observers=2, change_voters=0.05),
    "from one voter on": Weather(voters=1, observers=2, change_voters=0.03),
}


@pytest.mark.parametrize("name", WEATHERS)
def test_invariants_hold_and_the_quorum_finds_itself_again(name: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(25):
        world = World(seed, WEATHERS[name])
        world.run(steps=500)
        world.calm_down()
        counts += world.counts
    # Trivial histories would prove nothing.
    assert counts["leaders"] > 30
    assert counts["crashes"] > 50
    assert counts["committed"] > 50


def test_a_history_is_the_same_again() -> None:
    first, second = World(7, HUNTED), World(7, HUNTED)
    first.run(steps=500)
    second.run(steps=500)
    assert first.trace == second.trace
    assert first.counts == second.counts


class ForgetfulWorld(World):
    """Whoever starts again has forgotten its vote."""

    def load_state(self, node_id: int) -> StoredState:
        stored = super().load_state(node_id)
        return replace(stored, quorum=replace(stored.quorum, voted_for=None))


def wins_with_a_double_vote(ballot: Ballot) -> bool:
    return len(ballot.granting) + 1 >= ballot._voters.majority


def commits_anything(_leader: RaftLeader, _end_offset: int) -> bool:
    return True


def compares_only_lengths(
    log: RaftLog, offset: int, last_epoch: int
) -> RaftEpochEnd | RaftSnapshotId | None:
    if offset < log.start_offset:
        return log.start
    return None if offset <= log.end_offset else log.end_of_epoch(last_epoch)


PATCHES: dict[str, tuple[type, str, Callable[..., object] | property, Weather]] = {
    "own vote counts twice": (
        Ballot,
        "is_won",
        property(wins_with_a_double_vote),
        WEATHERS["ordinary"],
    ),
    "entries of an older epoch are committed": (
        RaftLeader,
        "_can_commit",
        commits_anything,
        HUNTED,
    ),
    "truncation by epoch is skipped": (RaftLog, "find_divergence", compares_only_lengths, HUNTED),
}


@pytest.mark.parametrize("name", PATCHES)
def test_sabotage_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, attribute, sabotage, weather = PATCHES[name]
    monkeypatch.setattr(target, attribute, sabotage)
    assert first_violation(range(500), weather, steps=500) is not None


def test_a_forgotten_vote_is_found() -> None:
    assert first_violation(range(500), HASTY, 500, ForgetfulWorld) is not None
