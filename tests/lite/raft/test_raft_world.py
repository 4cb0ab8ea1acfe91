"""Quorums in a hostile world keep their promises; saboteurs are found out.

Each sabotage is a bug that a Raft can have. It lives here, as a patch of one method, so that
the proof does not need a switch in the code that it proves.
"""

from collections import Counter
from collections.abc import Callable

import pytest

from shoal.lite.raft.election import Ballot
from shoal.lite.raft.leader import RaftLeader
from shoal.lite.raft.log import RaftLog
from shoal.lite.raft.model import RaftEpochEnd, RaftSnapshotId
from shoal.lite.simulation.sabotage import ForgottenVote
from support.raft.histories import HASTY, HUNTED, WORLDS, QuorumWorld

# Of each history, before it heals.
EVENTS = 500


@pytest.mark.parametrize("name", WORLDS)
def test_invariants_hold_and_the_quorum_finds_itself_again(name: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(25):
        outcome = WORLDS[name].play(seed, EVENTS)
        assert outcome.violation is None, (seed, outcome.violation)
        counts += outcome.counters
    # Trivial histories would prove nothing.
    assert counts["quorum elections"] > 30
    assert counts["kills"] + counts["kills between writes"] > 50
    assert counts["metadata entries"] > 50
    assert ("voter changes" in counts) == ("change-voters" in WORLDS[name].weights)


def test_a_history_is_the_same_again() -> None:
    first: list[str] = []
    second: list[str] = []
    outcomes = [HUNTED.play(7, EVENTS, trace=trace.append) for trace in (first, second)]
    assert first == second
    assert outcomes[0].counters == outcomes[1].counters


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


PATCHES: dict[str, tuple[type, str, Callable[..., object] | property, QuorumWorld]] = {
    "own vote counts twice": (
        Ballot,
        "is_won",
        property(wins_with_a_double_vote),
        WORLDS["ordinary"],
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
    target, attribute, sabotage, world = PATCHES[name]
    monkeypatch.setattr(target, attribute, sabotage)
    assert world.first_violation(range(500), EVENTS) is not None


def test_a_forgotten_vote_is_found() -> None:
    assert HASTY.first_violation(range(500), EVENTS, ForgottenVote) is not None
