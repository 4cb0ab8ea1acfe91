"""Controllers that are started one by one begin one quorum, whatever crashes meanwhile."""

from itertools import permutations
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.metadata.data.requests import ControllerIdentity
from shoal.lite.metadata.server.founding import FoundingState, VoterAgreement, WrongDirectory
from shoal.lite.storage.files import DamagedFile
from shoal.model.errors import SystemFailure

IDS = (1, 2, 3)
# Whose disk is never lost: if all are, a new quorum is all that can be.
KEPT = 1


def founder(node_id: int) -> VoterAgreement:
    return VoterAgreement(FoundingState(node_id, uuid4()), IDS)


@pytest.mark.parametrize("order", list(permutations(IDS)))
def test_three_agree_once_all_have_heard_of_all(order: tuple[int, ...]) -> None:
    founders = {node_id: founder(node_id) for node_id in IDS}
    for _ in range(3):
        for asks in order:
            for asked in order:
                if asks != asked:
                    founders[asked].on_identity(founders[asks].identity())
                    founders[asks].on_identity(founders[asked].identity())
    begun = {found.voters for found in founders.values()}
    assert begun == {tuple((i, founders[i].state.directory) for i in IDS)}


def test_two_of_three_do_not_begin() -> None:
    first, second = founder(1), founder(2)
    for _ in range(5):
        first.on_identity(second.identity())
        second.on_identity(first.identity())
    assert first.voters is None
    assert first.missing() == [3]


def test_one_alone_begins_at_once() -> None:
    alone = VoterAgreement(FoundingState(7, UUID(int=7)), [7])
    assert alone.voters == ((7, UUID(int=7)),)


def test_who_finds_a_quorum_with_its_disk_belongs_to_it() -> None:
    late = founder(3)
    voters = ((1, uuid4()), (2, uuid4()), (3, late.state.directory))
    late.on_identity(ControllerIdentity(1, voters[0][1], voters, is_member=True))
    assert late.voters == voters


def test_who_finds_a_quorum_with_another_disk_is_refused() -> None:
    emptied = founder(3)
    voters = tuple((node_id, uuid4()) for node_id in IDS)
    with pytest.raises(WrongDirectory, match="another disk") as refused:
        emptied.on_identity(ControllerIdentity(1, voters[0][1], voters, is_member=True))
    assert refused.value.directory == voters[2][1]
    assert emptied.voters is None


def test_who_finds_a_quorum_without_it_becomes_an_observer() -> None:
    new = founder(3)
    voters = ((1, uuid4()), (2, uuid4()))
    new.on_identity(ControllerIdentity(2, voters[1][1], voters, is_member=True))
    assert new.voters == voters


def test_those_who_can_never_agree_say_so() -> None:
    first, emptied = founder(1), founder(3)
    first.on_identity(founder(2).identity())
    first.on_identity(emptied.identity())
    assert first.state.proposal is not None
    again = founder(3)
    again.on_identity(founder(2).identity())
    again.on_identity(first.identity())
    first.on_identity(again.identity())
    assert "propose different voters" in (first.disagreement() or "")


@given(seed=st.integers(0, 2**32))
def test_there_is_never_more_than_one_quorum(seed: int) -> None:
    """Identities in any order, lost and late; disks are emptied and processes end meanwhile."""
    random = Random(seed)
    drafts = {node_id: FoundingState(node_id, uuid4()) for node_id in IDS}
    founders = {node_id: VoterAgreement(draft, IDS) for node_id, draft in drafts.items()}
    begun: set[object] = set()
    late: list[tuple[int, ControllerIdentity]] = []
    for _ in range(60):
        node_id = random.choice(IDS)
        chance = random.random()
        if chance < 0.05 and node_id != KEPT:
            drafts[node_id] = FoundingState(node_id, uuid4())
            founders[node_id] = VoterAgreement(drafts[node_id], IDS)
        elif chance < 0.15:
            founders[node_id] = VoterAgreement(drafts[node_id], IDS)
        elif chance < 0.6:
            late.append((random.choice(IDS), founders[node_id].identity()))
        elif late:
            target, identity = late.pop(random.randrange(len(late)))
            founders[target].on_identity(identity)
            drafts[target] = founders[target].state
        begun |= {found.voters for found in founders.values() if found.voters is not None}
    assert len(begun) <= 1


def test_a_draft_is_what_was_written(tmp_path: Path) -> None:
    first = FoundingState.open(tmp_path, 1)
    assert FoundingState.open(tmp_path, 1) == first
    proposed = FoundingState(1, first.directory, ((1, first.directory), (2, uuid4())))
    proposed.save(tmp_path)
    assert FoundingState.open(tmp_path, 1) == proposed
    with pytest.raises(SystemFailure, match="is the folder of controller 1, not of 2"):
        FoundingState.open(tmp_path, 2)
    (tmp_path / "founding.json").write_text("{")
    with pytest.raises(DamagedFile):
        FoundingState.open(tmp_path, 1)
