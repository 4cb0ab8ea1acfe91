"""Single steps of a member that scenarios do not show."""

from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest

from shoal.lite.raft.actions import (
    Action,
    AppendEntries,
    BecameLeader,
    Committed,
    PersistVote,
    ResignedLeader,
    SendToPeer,
)
from shoal.lite.raft.config import RaftConfig
from shoal.lite.raft.errors import NotLeader, RaftInvariantViolated, VoterChangeRefused
from shoal.lite.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftCode,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftMessage,
    VoteRequest,
    VoteResponse,
)
from shoal.lite.raft.model import (
    QuorumState,
    RaftEntry,
    RaftEpochEnd,
    RaftSnapshotId,
    ReplicaKey,
    StoredState,
    Voter,
    Voters,
)
from shoal.lite.raft.node import RaftNode, RaftRole
from shoal.lite.raft.storage.codec import encode_snapshot
from shoal.lite.raft.storage.driver import perform_actions
from shoal.lite.raft.storage.memory import MemoryStorage
from shoal.model.errors import ConfigError

KEYS = {i: ReplicaKey(i, UUID(int=i)) for i in range(1, 6)}


def voters(count: int) -> Voters:
    return Voters(Voter(key.id, key.directory) for key in list(KEYS.values())[:count])


def node_of(count: int) -> RaftNode:
    """Node 1 of so many voters, with an empty disk."""
    return RaftNode(KEYS[1], StoredState(voters(count)), now_ms=0, random=Random(1))


def settle(node: RaftNode, now_ms: int = 0) -> list[Action]:
    """Everything that the node wants done, with its log on the disk at once."""
    done: list[Action] = []
    while actions := node.take_actions():
        done += actions
        node.on_persisted(now_ms, node.log.end_offset)
    return done


def take_sent(node: RaftNode, now_ms: int = 0) -> list[RaftMessage]:
    return [action.message for action in settle(node, now_ms) if isinstance(action, SendToPeer)]


def follower_of(leader_id: int) -> RaftNode:
    node = node_of(3)
    node.receive(0, leader_id, BeginQuorumEpoch(1, leader_id, KEYS[1].directory))
    settle(node)
    return node


def answer(node: RaftNode, **changes: Any) -> RaftFetchResponse:
    """What the leader could say to the fetch that the node has sent."""
    log = node.log
    response = RaftFetchResponse(node.epoch, node.leader_id, log.end_offset, log.last_epoch)
    return replace(response, **changes)


def leader_of_three() -> RaftNode:
    node = node_of(3)
    node.tick(5000)
    node.receive(5000, 2, VoteResponse(0, None, granted=True, pre_vote=True))
    node.receive(5000, 2, VoteResponse(1, None, granted=True, pre_vote=False))
    node.receive(5000, 2, fetch(2, node, offset=0, last_epoch=0))
    settle(node, 5000)
    node.receive(5000, 2, fetch(2, node, offset=1, last_epoch=1))
    settle(node, 5000)
    assert node.is_leader
    return node


def fetch(
    replica_id: int, node: RaftNode, *, offset: int, last_epoch: int, high_watermark: int = 0
) -> RaftFetchRequest:
    directory = KEYS[replica_id].directory
    return RaftFetchRequest(node.epoch, replica_id, directory, offset, last_epoch, high_watermark)


# Cost


def test_a_single_voter_leads_at_once_with_one_write_for_its_vote() -> None:
    node = node_of(1)
    kinds = [type(action) for action in settle(node)]
    assert kinds == [PersistVote, AppendEntries, Committed, BecameLeader]
    assert node.next_deadline_ms() is None


def test_an_idle_single_voter_does_nothing() -> None:
    node = node_of(1)
    settle(node)
    for now_ms in range(0, 10**9, 10**7):
        node.tick(now_ms)
        node.on_persisted(now_ms, node.log.end_offset)
        assert node.take_actions() == []


def test_proposals_before_a_sync_share_it() -> None:
    node = node_of(1)
    settle(node)
    ends = [node.propose(5, [b"a"]), node.propose(5, [b"b", b"c"])]
    [append] = node.take_actions()
    assert isinstance(append, AppendEntries)
    assert [entry.records for entry in append.entries] == [(b"a",), (b"b", b"c")]
    node.on_persisted(6, ends[-1])
    [committed] = node.take_actions()
    assert isinstance(committed, Committed)
    assert committed.high_watermark == ends[-1] == 4


def test_nothing_is_committed_before_it_is_on_the_leaders_disk() -> None:
    node = node_of(1)
    settle(node)
    node.propose(5, [b"a"])
    node.take_actions()
    assert node.high_watermark == 1
    node.on_persisted(6, 1)
    assert node.take_actions() == []


def test_a_follower_fetches_on_only_when_everything_is_on_its_disk() -> None:
    node = follower_of(2)
    node.receive(0, 2, answer(node, entries=(RaftEntry(1, (b"a",)),)))
    [append] = node.take_actions()
    assert isinstance(append, AppendEntries)
    node.tick(1)
    assert node.take_actions() == []
    node.on_persisted(2, 1)
    [send] = node.take_actions()
    assert isinstance(send, SendToPeer)
    assert isinstance(send.message, RaftFetchRequest)
    assert send.message.offset == 1


def test_deadlines_are_when_something_happens() -> None:
    for node in (node_of(3), follower_of(2), leader_of_three()):
        for _ in range(20):
            deadline_ms = node.next_deadline_ms()
            assert deadline_ms is not None
            before = (node.role, node.epoch)
            node.tick(deadline_ms - 1)
            assert node.take_actions() == []
            node.tick(deadline_ms)
            assert settle(node, deadline_ms) or before != (node.role, node.epoch)


# Late, doubled and strange messages


def test_only_answers_to_the_present_position_count() -> None:
    node = follower_of(2)
    late = answer(node, diverging=RaftEpochEnd(0, 0))
    node.receive(0, 2, answer(node, entries=(RaftEntry(1, (b"a",)), RaftEntry(1, (b"b",)))))
    settle(node)
    node.receive(0, 2, late)
    node.receive(0, 3, answer(node, entries=(RaftEntry(1, (b"of another",)),)))
    node.receive(0, 2, answer(node, offset=1, entries=(RaftEntry(1, (b"b",)),)))
    assert settle(node) == []
    assert node.log.end_offset == 2


def test_a_lost_fetch_is_sent_again() -> None:
    node = follower_of(2)
    assert take_sent(node) == []
    node.tick(RaftConfig().request_timeout_ms)
    assert [type(message) for message in take_sent(node)] == [RaftFetchRequest]


def test_whoever_asks_again_does_not_wait_from_the_start() -> None:
    # Else an observer that asks more often than the leader answers would never hear of it.
    node = node_of(1)
    settle(node)
    end_offset, epoch = node.log.end_offset, node.epoch
    asked = RaftFetchRequest(epoch, 5, KEYS[5].directory, end_offset, epoch, end_offset)
    until_ms = RaftConfig().fetch_max_wait_ms
    for now_ms in range(0, until_ms, 100):
        node.receive(now_ms, 5, asked)
        assert not take_sent(node, now_ms)
    node.tick(until_ms)
    assert [type(message) for message in take_sent(node, until_ms)] == [RaftFetchResponse]


def test_the_log_is_never_cut_below_the_high_watermark() -> None:
    node = follower_of(2)
    node.receive(0, 2, answer(node, entries=(RaftEntry(1, (b"a",)),), high_watermark=1))
    settle(node)
    with pytest.raises(RaftInvariantViolated, match="truncated to 0, but is committed up to 1"):
        node.receive(0, 2, answer(node, diverging=RaftEpochEnd(0, 0)))


def test_a_snapshot_never_takes_committed_entries_back() -> None:
    node = follower_of(2)
    entries = (RaftEntry(1, (b"a", b"b", b"c")),)
    node.receive(0, 2, answer(node, entries=entries, high_watermark=3))
    node.receive(0, 2, answer(node, snapshot=RaftSnapshotId(2, 1)))
    settle(node)
    data = encode_snapshot(voters(3), (), 1)
    response = FetchSnapshotResponse(1, 2, RaftSnapshotId(2, 1), 0, len(data), data)
    with pytest.raises(RaftInvariantViolated, match="3 is already committed"):
        node.receive(0, 2, response)


def test_a_leader_ignores_who_claims_its_epoch() -> None:
    node = leader_of_three()
    node.receive(5001, 3, BeginQuorumEpoch(node.epoch, 3, KEYS[1].directory))
    node.receive(5001, 3, EndQuorumEpoch(node.epoch, 3, (1,)))
    node.receive(5001, 3, BeginQuorumEpoch(node.epoch, 3, KEYS[2].directory))
    assert node.role is RaftRole.LEADER
    assert [message.leader_id for message in take_sent(node, 5001)] == [1, 1, 1]  # type: ignore[union-attr]


def test_a_fetch_from_within_an_entry_is_refused() -> None:
    node = leader_of_three()
    node.propose(5001, [b"a", b"b"])
    settle(node, 5001)
    node.receive(5001, 3, fetch(3, node, offset=2, last_epoch=1))
    [response] = [m for m in take_sent(node, 5001) if isinstance(m, RaftFetchResponse)]
    assert response.error is RaftCode.OFFSET_OUT_OF_RANGE
    follower = follower_of(2)
    follower.receive(0, 2, answer(follower, error=RaftCode.OFFSET_OUT_OF_RANGE))
    assert follower.next_deadline_ms() == 50


def test_votes_of_strangers_and_of_other_elections_do_not_count() -> None:
    node = node_of(3)
    node.tick(5000)
    roles = []
    for sender, pre_vote in ((4, True), (2, False), (2, True), (2, True), (4, False)):
        node.receive(5000, sender, VoteResponse(node.epoch, None, granted=True, pre_vote=pre_vote))
        roles.append(node.role)
    assert roles == [RaftRole.PROSPECTIVE] * 2 + [RaftRole.CANDIDATE] * 3
    node.receive(5000, 2, VoteResponse(0, None, granted=True, pre_vote=False))
    assert node.role is RaftRole.CANDIDATE


def test_a_vote_is_given_once_and_repeated_to_the_same() -> None:
    node = node_of(3)

    def ask(candidate_id: int, last_offset: int = 0) -> bool:
        directory = KEYS[candidate_id].directory
        me = KEYS[1].directory
        node.receive(
            0,
            candidate_id,
            VoteRequest(4, candidate_id, directory, me, 0, last_offset, pre_vote=False),
        )
        [response] = take_sent(node)
        assert isinstance(response, VoteResponse)
        return response.granted

    assert ask(2)
    assert not ask(3)
    assert not ask(3, last_offset=10)
    assert ask(2)
    assert node.quorum_state == QuorumState(4, KEYS[2], None)


# Snapshots


def downloading() -> tuple[RaftNode, bytes]:
    node = follower_of(2)
    node.receive(0, 2, answer(node, snapshot=RaftSnapshotId(9, 1)))
    [request] = take_sent(node)
    assert isinstance(request, FetchSnapshotRequest)
    return node, encode_snapshot(voters(3), (b"state",), 1)


def chunk(whole: bytes, position: int = 0, **changes: Any) -> FetchSnapshotResponse:
    """What is left of a snapshot from a position on, or something else."""
    response = FetchSnapshotResponse(
        1, 2, RaftSnapshotId(9, 1), position, size=len(whole), data=whole[position:]
    )
    return replace(response, **changes)


@pytest.mark.parametrize(
    "fields",
    [
        {"data": b""},
        {"size": 3},
        {"size": 1 << 40},
        {"error": RaftCode.SNAPSHOT_NOT_FOUND, "data": b""},
    ],
)
def test_a_download_that_makes_no_sense_is_given_up(fields: dict[str, Any]) -> None:
    node, data = downloading()
    node.receive(0, 2, chunk(data, **fields))
    assert settle(node) == []
    node.tick(50)
    assert [type(message) for message in take_sent(node, 50)] == [RaftFetchRequest]


def test_a_damaged_snapshot_is_fetched_again() -> None:
    node, data = downloading()
    node.receive(0, 2, chunk(data[:-1] + b"?"))
    assert settle(node) == []
    node.tick(50)
    assert [type(message) for message in take_sent(node, 50)] == [RaftFetchRequest]
    assert node.log.end_offset == 0


def test_parts_of_a_snapshot_arrive_once_and_in_order() -> None:
    node, data = downloading()
    node.receive(0, 2, chunk(data, position=5))
    node.receive(0, 2, chunk(data, data=data[:10]))
    node.receive(0, 2, chunk(data, data=data[:10]))
    assert [type(message) for message in take_sent(node)] == [FetchSnapshotRequest]
    node.receive(0, 2, chunk(data, position=10))
    settle(node)
    assert (node.log.start_offset, node.high_watermark) == (9, 9)
    node.receive(0, 2, chunk(data, position=10))
    assert settle(node) == []


def test_a_snapshot_holds_only_what_is_committed() -> None:
    node = node_of(1)
    settle(node)
    node.propose(1, [b"a"])
    with pytest.raises(RaftInvariantViolated, match="a snapshot at 2"):
        node.save_snapshot(2, [b"a"])
    settle(node)
    node.save_snapshot(2, [b"a"])
    with pytest.raises(RaftInvariantViolated, match="a snapshot at 2"):
        node.save_snapshot(2, [b"a"])


# Leadership


def test_only_an_established_leader_takes_proposals() -> None:
    with pytest.raises(NotLeader, match="the leader is unknown"):
        node_of(3).propose(0, [b"a"])
    with pytest.raises(NotLeader, match="the leader is node 2") as caught:
        follower_of(2).propose(0, [b"a"])
    assert caught.value.leader_id == 2
    node = node_of(1)
    node.take_actions()
    with pytest.raises(NotLeader):
        node.propose(0, [b"a"])


def test_resigning_is_told_to_the_state_machine_and_to_those_who_wait() -> None:
    node = leader_of_three()
    node.receive(5000, 2, fetch(2, node, offset=1, last_epoch=1, high_watermark=1))
    assert settle(node, 5000) == []
    node.resign(5001)
    done = settle(node, 5001)
    assert ResignedLeader(1) in done
    waiting = [a.message for a in done if isinstance(a, SendToPeer) and a.to == 2]
    assert [type(message) for message in waiting] == [EndQuorumEpoch, RaftFetchResponse]
    node.resign(5002)
    assert settle(node, 5002) == []


def test_a_voter_must_catch_up_before_it_votes() -> None:
    node = node_of(1)
    settle(node)
    newcomer = Voter(4, KEYS[4].directory)
    with pytest.raises(VoterChangeRefused, match="has not caught up"):
        node.add_voter(0, newcomer)
    node.receive(0, 4, fetch(4, node, offset=0, last_epoch=0))
    with pytest.raises(VoterChangeRefused, match="has not caught up"):
        node.add_voter(0, newcomer)
    node.receive(0, 4, fetch(4, node, offset=1, last_epoch=1))
    with pytest.raises(VoterChangeRefused, match="has not caught up"):
        node.add_voter(2001, newcomer)
    with pytest.raises(VoterChangeRefused, match="is already a voter"):
        node.add_voter(0, Voter(1, KEYS[1].directory))
    with pytest.raises(VoterChangeRefused, match="is not a voter"):
        node.remove_voter(0, KEYS[4])
    end_offset = node.add_voter(0, newcomer)
    settle(node)
    assert node.voters.ids == (1, 4)
    assert node.high_watermark < end_offset
    node.receive(0, 4, fetch(4, node, offset=end_offset, last_epoch=1))
    assert node.high_watermark == end_offset


def test_a_leader_remembers_a_bounded_number_of_observers() -> None:
    node = node_of(1)
    settle(node)
    for replica_id in range(10, 1100):
        request = RaftFetchRequest(1, replica_id, UUID(int=replica_id), 0, 0, 0)
        node.receive(replica_id, replica_id, request)
    assert len(node.progress) == 1000
    assert 10 not in node.progress
    assert 1099 in node.progress


def test_an_observer_without_a_disk_follows_from_the_beginning() -> None:
    leader = node_of(1)
    settle(leader)
    leader.propose(0, [b"a", b"b"])
    settle(leader)
    observer = RaftNode(
        KEYS[4], StoredState(voters(1)), now_ms=0, random=Random(1), config=RaftConfig()
    )
    storage = MemoryStorage()
    applied: list[bytes] = []
    queue: list[RaftMessage] = []

    def perform(action: Action) -> None:
        if isinstance(action, SendToPeer):
            queue.append(action.message)
        if isinstance(action, Committed):
            applied.extend(record for entry in action.entries[1:] for record in entry.records)

    observer.tick(0)
    perform_actions(observer, storage, perform, 0)
    while queue:
        leader.receive(0, 4, queue.pop(0))
        for message in take_sent(leader):
            observer.receive(0, 1, message)
            perform_actions(observer, storage, perform, 0)
    assert applied == [b"a", b"b"]
    assert storage.end_offset == 3
    assert not observer.is_voter


def test_time_outs_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="must hold"):
        RaftConfig(fetch_max_wait_ms=1000, request_timeout_ms=900)
    with pytest.raises(ConfigError, match="positive"):
        RaftConfig(election_timeout_ms=0)
