"""The log in memory, compared with a plain list of records."""

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.raft.errors import RaftInvariantViolated
from shoal.lite.raft.log import RaftLog
from shoal.lite.raft.model import (
    EntryKind,
    RaftEntry,
    RaftEpochEnd,
    RaftSnapshot,
    RaftSnapshotId,
    StoredState,
    Voter,
    Voters,
)
from shoal.lite.raft.storage.codec import encode_snapshot, encode_voters

VOTERS = Voters([Voter(1, UUID(int=1)), Voter(2, UUID(int=2))])


def log_of(*epochs: int) -> RaftLog:
    """A log with an entry of two records for each epoch."""
    return RaftLog(StoredState(VOTERS, entries=tuple(RaftEntry(e, (b"a", b"b")) for e in epochs)))


def snapshot_at(end_offset: int, epoch: int, voters: Voters = VOTERS) -> RaftSnapshot:
    return RaftSnapshot(RaftSnapshotId(end_offset, epoch), encode_snapshot(voters, (b"s",), epoch))


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """The epochs of two logs that Raft could have made, and how many entries are common.

    Each epoch has one leader, whose log begins somewhere: behind the place where two logs part
    they have no epoch in common, except that one may have more of the last common one.
    """
    common = sorted(draw(st.lists(st.integers(1, 4), max_size=5)))
    tails: tuple[list[int], list[int]] = ([], [])
    for epoch in range(5, 10):
        tails[draw(st.integers(0, 1))].extend([epoch] * draw(st.integers(0, 2)))
    if common:
        tails[draw(st.integers(0, 1))][:0] = [common[-1]] * draw(st.integers(0, 2))
    return common + tails[0], common + tails[1], len(common)


@given(two_logs())
def test_cutting_at_each_parting_ends_at_the_common_beginning(
    logs: tuple[list[int], list[int], int],
) -> None:
    ours, theirs, common = logs
    leader = log_of(*ours)
    follower = log_of(*theirs)
    while parting := leader.find_divergence(follower.end_offset, follower.last_epoch):
        assert isinstance(parting, RaftEpochEnd)
        found = follower.end_of_epoch(parting.epoch)
        end_offset = found.end_offset
        if found.epoch == parting.epoch:
            end_offset = min(end_offset, parting.end_offset)
        assert end_offset < follower.end_offset
        follower.truncate_to(end_offset)
    kept = theirs[: follower.end_offset // 2]
    assert kept == ours[: len(kept)]
    assert len(kept) >= common


def test_where_an_epoch_ends() -> None:
    log = log_of(1, 1, 3, 6)
    assert log.end_of_epoch(0) == (0, 0)
    assert log.end_of_epoch(1) == (1, 4)
    assert log.end_of_epoch(2) == (1, 4)
    assert log.end_of_epoch(5) == (3, 6)
    assert log.end_of_epoch(9) == (6, 8)


def test_a_log_behind_a_snapshot_sends_those_who_are_too_far_back_to_it() -> None:
    log = log_of(1, 2, 2, 3)
    log.compact(snapshot_at(4, 2))
    assert (log.start_offset, log.end_offset) == (4, 8)
    assert log.find_divergence(2, 1) == (4, 2)
    assert log.find_divergence(6, 1) == (4, 2)
    assert log.find_divergence(4, 2) is None
    assert log.find_divergence(6, 2) is None
    assert log.find_divergence(10, 2) == RaftEpochEnd(2, 6)
    assert log.epoch_before(4) == 2
    with pytest.raises(RaftInvariantViolated):
        log.read(2, 100)


def test_reading_gives_one_entry_and_what_fits() -> None:
    log = log_of(1, 1, 1)
    assert len(log.read(0, 0)) == 1
    assert len(log.read(0, log.read(0, 0)[0].size_bytes * 2)) == 2
    assert len(log.read(2, 10_000)) == 2
    assert log.read(6, 10_000) == ()
    assert log.entries_between(2, 4) == (RaftEntry(1, (b"a", b"b")),)


def test_what_cannot_be_is_refused() -> None:
    log = log_of(2)
    with pytest.raises(RaftInvariantViolated, match="epoch 1 follows"):
        log.append(RaftEntry(1, (b"x",)))
    with pytest.raises(RaftInvariantViolated, match="has no records"):
        log.append(RaftEntry(2, ()))
    for offset in (1, 3, -1):
        with pytest.raises(RaftInvariantViolated, match="no entry begins"):
            log.truncate_to(offset)


def test_voters_count_when_written_and_come_back_when_cut() -> None:
    more = VOTERS.with_voter(Voter(3, UUID(int=3)))
    log = log_of(1)
    log.append(RaftEntry(1, (encode_voters(more),), EntryKind.VOTERS))
    log.append(RaftEntry(1, (b"x",)))
    assert (log.voters, log.voters_offset) == (more, 2)
    assert log.voters_at(2) == VOTERS
    assert log.voters_at(3) == more
    log.truncate_to(3)
    assert log.voters == more
    log.truncate_to(2)
    assert (log.voters, log.voters_offset) == (VOTERS, -1)


def test_voters_survive_in_snapshots() -> None:
    more = VOTERS.with_voter(Voter(3, UUID(int=3)))
    log = log_of(1)
    log.append(RaftEntry(1, (encode_voters(more),), EntryKind.VOTERS))
    log.append(RaftEntry(1, (encode_voters(VOTERS),), EntryKind.VOTERS))
    log.compact(snapshot_at(3, 1, more))
    assert log.voters == VOTERS
    log.truncate_to(3)
    assert log.voters == more
    assert RaftLog(StoredState(VOTERS, snapshot=snapshot_at(3, 1, more))).voters == more
    log.replace(snapshot_at(9, 5), VOTERS)
    assert (log.voters, log.end_offset, log.last_epoch) == (VOTERS, 9, 5)


def test_a_voter_is_an_id_and_a_disk() -> None:
    key = Voter(2, UUID(int=22)).key
    assert not VOTERS.has(key)
    assert VOTERS.has_other_directory(key)
    assert not VOTERS.has_other_directory(Voter(3, UUID(int=22)).key)
    assert VOTERS.without(2).ids == (1,)
    assert {n: Voters(Voter(i, UUID(int=i)) for i in range(n)).majority for n in range(1, 6)} == {
        1: 1,
        2: 2,
        3: 2,
        4: 3,
        5: 3,
    }
    shuffled = list(VOTERS)
    Random(3).shuffle(shuffled)
    assert Voters(shuffled) == VOTERS
